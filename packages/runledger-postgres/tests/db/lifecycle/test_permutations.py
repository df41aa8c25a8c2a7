"""Every pair of writes on one job, in every order of their steps, has the outcome of some order.

Each session is a transaction of its own: its statement, then COMMIT or ROLLBACK. What both leave
behind must be what one after the other leaves, whichever came first; a claim or a reaper may also
have passed over a row that the other held.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobEnqueue, JobFailure, JobLease, RunledgerError, Scope
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import (
    HeartbeatVerdict,
    SuccessEntry,
    cancel_job,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    complete_jobs,
    heartbeat_job,
    heartbeat_jobs,
    reap_expired_leases,
    release_job,
    requeue_job,
)
from runledger_test_support import (
    Interleaving,
    Session,
    Step,
    StepContext,
    expire_lease,
    permute,
)

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
REQUEST = JobEnqueue("test.job", {}, idempotency_key="order-1")
BUSY_SERVER = JobFailure.retryable("smtp.busy", "try later")

Result: TypeAlias = str
# The results of both sessions, and the job that they leave.
Outcome: TypeAlias = tuple[Result, Result, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Write:
    """One write, and what it answers when it passes over a row that somebody holds."""

    run: Callable[[Any, JobLease], object]
    passed_over: Result | None = None


WRITES = {
    "claim": Write(
        lambda db, _: len(
            claim_jobs(
                db, worker_id="worker-2", limit=1, lease_ttl_seconds=60, job_types=["test.job"]
            )
        ),
        "0",
    ),
    "heartbeat": Write(lambda db, lease: heartbeat_job(db, lease, lease_ttl_seconds=60)),
    "complete": Write(
        lambda db, lease: complete_job_success(db, lease, JobCompletion(1)).verdict,
    ),
    "fail": Write(
        lambda db, lease: complete_job_failure(db, lease, BUSY_SERVER, retry_delay_ms=9_000).verdict
    ),
    "reap": Write(
        lambda db, _: len(reap_expired_leases(db, limit=1, retry_delay_ms=9_000).reaped), "0"
    ),
    "cancel": Write(lambda db, lease: cancel_job(db, lease.job_id, scope=ADMIN).status),
    "release": Write(lambda db, lease: release_job(db, lease, reason="test")),
    "requeue": Write(lambda db, lease: requeue_job(db, lease.job_id, scope=ADMIN).run_number),
    "enqueue": Write(lambda db, _: enqueue_job(db, REQUEST).disposition),
}
BATCHES = {
    "heartbeats": Write(
        lambda db, lease: heartbeat_jobs(db, [lease], lease_ttl_seconds=60)[0],
        HeartbeatVerdict.BUSY,
    ),
    "completions": Write(
        lambda db, lease: complete_jobs(db, [SuccessEntry(lease, JobCompletion(1))])[0].verdict,
        "BUSY",
    ),
}
# What changes a job in this state; two writes that change nothing cannot race.
EFFECTIVE = {
    "PENDING": {"claim", "cancel"},
    "LEASED": {"heartbeat", "complete", "fail", "cancel", "release"},
    "EXPIRED": {"reap", "cancel"},
    "ENDED": {"requeue"},
    "ABSENT": {"enqueue"},
}
LEGAL_REFUSALS = {"job.lease_owner_mismatch", "job.invalid_state_transition", "job.not_found"}


def prepare(queue: Queue, state: str) -> JobLease:
    """Leave one job in this state; return its first claim's lease."""
    for table in ("job_queue", "job_attempts", "job_events"):
        queue.execute(f"DELETE FROM runledger.{table}")
    if state == "ABSENT":
        return JobLease(UUID(int=1), 1, attempt=1, claim_number=1, worker_id="worker-1")
    enqueue_job(queue.pool, REQUEST)
    lease = queue.lease()
    if state == "PENDING":
        release_job(queue.pool, lease, reason="test")
    elif state == "EXPIRED":
        expire_lease(queue.pool, lease.job_id)
    elif state == "ENDED":
        complete_job_success(queue.pool, lease, JobCompletion(1))
    return lease


def act(write: Write, db: Any, lease: JobLease) -> Result:
    try:
        return str(write.run(db, lease))
    except RunledgerError as error:
        return error.code


def left_behind(queue: Queue) -> dict[str, Any]:
    assert queue.consistency_errors() == {}
    jobs = queue.fetch(
        "SELECT id, status::text, is_ready, run_number, attempt, claim_number, worker_id"
        " FROM runledger.job_queue"
    )
    return {"jobs": len(jobs)} | {
        key: value
        for job in jobs
        for key, value in (job | {"timeline": queue.timeline(job["id"])}).items()
        if key != "id"
    }


def one_after_the_other(
    queue: Queue, state: str, first: Write | None, second: Write | None
) -> tuple[Result | None, Result | None, dict[str, Any]]:
    lease = prepare(queue, state)
    results = [write and act(write, queue.pool, lease) for write in (first, second)]
    return results[0], results[1], left_behind(queue)


def allowed_outcomes(queue: Queue, state: str, a: Write, b: Write, ends: tuple[str, str]):
    """Return the outcomes of both orders, and those in which one passed over the other's row."""
    a_lasts, b_lasts = (end == "commit" for end in ends)
    result_a, _, left_by_a = one_after_the_other(queue, state, a, None)
    result_b, _, left_by_b = one_after_the_other(queue, state, b, None)
    _, _, untouched = one_after_the_other(queue, state, None, None)
    alone_a, alone_b = left_by_a if a_lasts else untouched, left_by_b if b_lasts else untouched
    if a_lasts and b_lasts:
        a_first = one_after_the_other(queue, state, a, b)
        later_b, earlier_b, left = one_after_the_other(queue, state, b, a)
        allowed = [a_first, (earlier_b, later_b, left)]
    elif b_lasts:
        # What is undone was seen by nobody, but may have seen what the other committed before.
        _, after_b, _ = one_after_the_other(queue, state, b, a)
        allowed = [(result_a, result_b, left_by_b), (after_b, result_b, left_by_b)]
    else:
        _, after_a, _ = one_after_the_other(queue, state, a, b)
        allowed = [(result_a, result_b, left_by_a), (result_a, after_a, left_by_a)]
    if a.passed_over is not None:
        allowed.append((a.passed_over, result_b, alone_b))
    if b.passed_over is not None:
        allowed.append((result_a, b.passed_over, alone_a))
    return allowed


def check_pair(queue: Queue, state: str, names: tuple[str, str], ends: tuple[str, str]) -> None:
    a, b = ((WRITES | BATCHES)[name] for name in names)
    allowed = allowed_outcomes(queue, state, a, b, ends)

    def session(name: str, write: Write, lease: JobLease, end: str) -> Session:
        def finish(context: StepContext) -> None:
            getattr(context.connection, end)()

        return Session(
            name,
            queue.database.connect,
            steps=[
                Step("write", lambda context: act(write, context.connection, lease)),
                Step("end", finish),
            ],
        )

    def sessions() -> list[Session]:
        lease = prepare(queue, state)
        return [session("a", a, lease, ends[0]), session("b", b, lease, ends[1])]

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        results = [str(run.outcome(name, "write").value) for name in ("a", "b")]
        assert {result for result in results if "." in result} <= LEGAL_REFUSALS
        assert (*results, left_behind(queue)) in allowed

    permute(sessions, check)


def pairs(state: str) -> list[tuple[str, str]]:
    return [
        pair
        for pair in itertools.combinations_with_replacement(WRITES, 2)
        if EFFECTIVE[state].intersection(pair)
    ]


@pytest.mark.parametrize(
    ("state", "pair"),
    [(state, pair) for state in EFFECTIVE for pair in pairs(state)],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_both_commit(queue: Queue, pair, state):
    check_pair(queue, state, pair, ("commit", "commit"))


@pytest.mark.soak
@pytest.mark.parametrize("ends", [("rollback", "commit"), ("commit", "rollback")], ids="-".join)
@pytest.mark.parametrize("pair", pairs("LEASED"), ids="-".join)
def test_one_rolls_back(queue: Queue, pair, ends):
    check_pair(queue, "LEASED", pair, ends)


@pytest.mark.soak
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("batch", BATCHES)
def test_batch_of_the_engine_beside_a_write(queue: Queue, batch, write):
    check_pair(queue, "LEASED", (batch, write), ("commit", "commit"))
