"""Every pair of writes on one run, in every order of their steps, leaves what some order leaves.

The run is two last prerequisites of one join. Each session is a transaction of its own, its write
and then COMMIT; a batch of the engine may also have passed over what the other held.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from runledger_core import JobCompletion, JobFailure, JobLease, RunledgerError, Scope
from runledger_postgres.lifecycle import (
    FailureEntry,
    SuccessEntry,
    cancel_job,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    complete_jobs,
    fail_jobs,
    heartbeat_job,
    reap_expired_leases,
    release_job,
)
from runledger_test_support import (
    Interleaving,
    Session,
    Step,
    StepContext,
    expire_lease,
    permute,
)

from .conftest import JOB_TYPE, Workflows, broken_invariants

ADMIN = Scope.ADMIN
BUSY_SERVER = JobFailure.retryable("smtp.busy", "try later")
TERMINAL = JobFailure.terminal("test.failed", "no")
EMPTY = """
TRUNCATE runledger.workflow_runs, runledger.job_queue, runledger.job_attempts,
    runledger.job_events, runledger.job_dead_letters CASCADE
"""
EDGES = {
    "a": {}, "b": {}, "free": {}, "behind a": {"a": "terminal"}, "behind b": {"b": "success"},
    "join": {"a": "success", "b": "success"}, "any": {"a": "terminal", "b": "terminal"},
    "tail": {"join": "terminal"},
}  # fmt: skip
LEFT = """
SELECT s.step_key, s.status::text, s.dependency_count_pending, s.dependency_count_unsatisfied,
    q.status::text, q.attempt, q.claim_number
FROM runledger.workflow_steps s LEFT JOIN runledger.job_queue q ON q.id = s.job_id
ORDER BY s.step_key
"""
RUN = """
SELECT status::text, steps_open, steps_failed, steps_canceled FROM runledger.workflow_runs
"""

Leases = Mapping[str, JobLease]


@dataclass(frozen=True, slots=True)
class Write:
    """One write on a step, and what it answers when it passes over what somebody holds."""

    run: Callable[[Any, Leases, str], object]
    passed_over: str | None = None


WRITES = {
    "round success": Write(
        lambda db, leases, key: (
            complete_jobs(db, [SuccessEntry(leases[key], JobCompletion(1))])[0].verdict
        ),
        "BUSY",
    ),
    "round failure": Write(
        lambda db, leases, key: fail_jobs(db, [FailureEntry(leases[key], TERMINAL)])[0].verdict,
        "BUSY",
    ),
    "success": Write(
        lambda db, leases, key: complete_job_success(db, leases[key], JobCompletion(1)).verdict
    ),
    "failure": Write(
        lambda db, leases, key: complete_job_failure(db, leases[key], TERMINAL).verdict
    ),
    "retry": Write(
        lambda db, leases, key: (
            complete_job_failure(db, leases[key], BUSY_SERVER, retry_delay_ms=60_000).verdict
        )
    ),
    "reap": Write(
        lambda db, _leases, _key: len(reap_expired_leases(db, limit=9, retry_delay_ms=1).reaped),
        "0",
    ),
    "cancel": Write(lambda db, leases, key: cancel_job(db, leases[key].job_id, scope=ADMIN).status),
    "claim": Write(
        lambda db, _leases, _key: len(
            claim_jobs(db, worker_id="other", limit=9, lease_ttl_seconds=60, job_types=[JOB_TYPE])
        ),
    ),
    "heartbeat": Write(
        lambda db, leases, key: heartbeat_job(db, leases[key], lease_ttl_seconds=60)
    ),
    "release": Write(lambda db, leases, key: release_job(db, leases[key], reason="test")),
}
LEGAL_REFUSALS = {"job.lease_owner_mismatch", "job.invalid_state_transition"}


class Scene:
    """A run in which both prerequisites run, one of them past the end of its lease if need be."""

    def __init__(self, workflows: Workflows, *, expired: str | None) -> None:
        self.workflows = workflows
        self.expired = expired

    def prepare(self) -> dict[str, JobLease]:
        self.workflows.look.execute(EMPTY)
        self.workflows.enqueue_jobs(EDGES)
        # `free` stays for who claims.
        self.workflows.look.execute(
            "UPDATE runledger.job_queue SET max_attempts = 1, priority = CASE WHEN id = ("
            "SELECT job_id FROM runledger.workflow_steps WHERE step_key = 'free')"
            " THEN 0 ELSE 100 END"
        )
        leases = {key: job.lease for key, job in self.workflows.claim(2).items()}
        if self.expired is not None:
            expire_lease(self.workflows.pool, leases[self.expired].job_id)
        return leases

    def act(self, write: Write, db: Any, leases: Leases, key: str) -> str:
        try:
            return str(write.run(db, leases, key))
        except RunledgerError as error:
            return error.code

    def left(self) -> list[Any]:
        look = self.workflows.look
        assert broken_invariants(look) == []
        return [*look.execute(LEFT).fetchall(), *look.execute(RUN).fetchall()]

    def in_turn(self, *writes: tuple[Write, str]) -> tuple[list[str], list[Any]]:
        leases = self.prepare()
        pool = self.workflows.pool
        return [self.act(write, pool, leases, key) for write, key in writes], self.left()


def check_pair(workflows: Workflows, names: tuple[str, str], keys: tuple[str, str]) -> None:
    a, b = (WRITES[name] for name in names)
    expired = next((key for key, name in zip(keys, names, strict=True) if name == "reap"), None)
    scene = Scene(workflows, expired=expired)

    (a_first, b_second), left = scene.in_turn((a, keys[0]), (b, keys[1]))
    allowed = [(a_first, b_second, left)]
    (b_first, a_second), left = scene.in_turn((b, keys[1]), (a, keys[0]))
    allowed.append((a_second, b_first, left))
    if b.passed_over is not None:
        (a_alone,), left = scene.in_turn((a, keys[0]))
        allowed.append((a_alone, b.passed_over, left))
    if a.passed_over is not None:
        (b_alone,), left = scene.in_turn((b, keys[1]))
        allowed.append((a.passed_over, b_alone, left))

    def session(name: str, write: Write, key: str, leases: Leases) -> Session:
        def commit(context: StepContext) -> None:
            context.connection.commit()

        return Session(
            name,
            workflows.database.connect,
            steps=[
                Step("write", lambda context: scene.act(write, context.connection, leases, key)),
                Step("commit", commit),
            ],
        )

    def sessions() -> list[Session]:
        leases = scene.prepare()
        return [session("a", a, keys[0], leases), session("b", b, keys[1], leases)]

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        results = [str(run.outcome(name, "write").value) for name in ("a", "b")]
        assert {result for result in results if "." in result} <= LEGAL_REFUSALS
        assert (*results, scene.left()) in allowed

    permute(sessions, check)


PAIRS = list(itertools.combinations_with_replacement(WRITES, 2))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_writes_on_the_two_last_prerequisites_of_a_join(workflows: Workflows, pair):
    check_pair(workflows, pair, ("a", "b"))


@pytest.mark.soak
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_writes_on_one_step(workflows: Workflows, pair):
    check_pair(workflows, pair, ("a", "a"))
