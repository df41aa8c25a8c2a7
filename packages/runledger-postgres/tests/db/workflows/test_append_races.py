"""Appends and gates against each other, and against all else that changes their run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from runledger_core import (
    JobCompletion,
    JobFailure,
    JobLease,
    RunledgerError,
    WorkflowExternalCompletion,
)
from runledger_postgres.lifecycle import (
    FailureEntry,
    SuccessEntry,
    cancel_workflow_run,
    complete_job_failure,
    complete_job_success,
    run_worker_round,
)
from runledger_postgres.workflows import append_workflow_steps, complete_external_workflow_step
from runledger_test_support import Interleaving, Session, Step, StepContext, permute

from ._appending import ADMIN, SUCCESS, TERMINAL, job, request
from .conftest import Workflows, broken_invariants

FATAL = JobFailure.terminal("test.failed", "no")
ENDED = {"SUCCEEDED", "COMPLETED_WITH_ERRORS", "CANCELED"}


APPENDED = [
    job("due"),
    job("needs", {"job": SUCCESS}),
    job("after", {"job": TERMINAL, "gate": TERMINAL}),
]


def append(db: Any, run_id: UUID) -> str:
    try:
        appended = append_workflow_steps(db, request(run_id, *APPENDED), scope=ADMIN)
    except RunledgerError as error:
        return error.code
    return str(appended.disposition)


def complete(db: Any, run_id: UUID, step_key: str = "gate") -> str:
    succeeded = WorkflowExternalCompletion.succeeded()
    try:
        gate = complete_external_workflow_step(db, run_id, step_key, succeeded, scope=ADMIN)
    except RunledgerError as error:
        return error.code
    return str(gate.status)


def cancel(db: Any, run_id: UUID) -> str:
    return str(cancel_workflow_run(db, run_id, scope=ADMIN).status)


ENDS_OF_A_JOB: dict[str, Callable[[Any, JobLease], object]] = {
    "success": lambda db, lease: complete_job_success(db, lease, JobCompletion(1)),
    "failure": lambda db, lease: complete_job_failure(db, lease, FATAL),
}
ROUNDS: dict[str, Callable[[Any, JobLease], str]] = {
    "success": lambda db, lease: str(
        run_worker_round(db, successes=[SuccessEntry(lease, JobCompletion(1))], in_workflows=True)
        .successes[0]
        .verdict
    ),
    "failure": lambda db, lease: str(
        run_worker_round(
            db, failures=[FailureEntry(lease, FATAL, retry_delay_ms=0)], in_workflows=True
        )
        .failures[0]
        .verdict
    ),
}


class Race:
    """A run with an open gate and a job that is running, raced for once in each order."""

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        self.begin()

    def begin(self) -> None:
        """Enqueue another run for the next order."""
        edges = {"gate": [], "other": [], "job": [], "join": ["gate", "other", "job"]}
        self.run_id = self.workflows.enqueue_jobs(edges, gates=("gate", "other"))
        self.lease = self.workflows.claim()["job"].lease

    def session(self, name: str, write: Callable[[Any], object], *, end: str = "commit") -> Session:
        """Return a session that writes, and then ends its transaction."""

        def finish(context: StepContext) -> None:
            getattr(context.connection, end)()

        steps = [Step("write", lambda context: write(context.connection)), Step("end", finish)]
        return Session(name, self.workflows.database.connect, steps=steps)

    def round(self, end: str) -> Session:
        """Return a session that does a worker's round, which is a transaction of its own."""
        steps = [Step("write", lambda context: ROUNDS[end](context.connection, self.lease))]
        return Session(
            "round", lambda: self.workflows.database.connect(autocommit=True), steps=steps
        )

    def play(
        self,
        sessions: Callable[[], Sequence[Session]],
        check: Callable[[dict[str, object]], None],
        *,
        limit: int | None = None,
    ) -> list[Interleaving]:
        """Play orders, all of them without a limit; after each the run must come to its end."""

        def begun() -> Sequence[Session]:
            self.begin()
            return sessions()

        def checked(run: Interleaving) -> None:
            assert [str(outcome) for outcome in run.outcomes if outcome.error] == []
            assert broken_invariants(self.workflows.look) == []
            written = {o.session: o.value for o in run.outcomes if o.step == "write"}
            check(written)
            assert self.ended() in ENDED

        return permute(begun, checked, limit=limit)

    def ended(self) -> str:
        """End all that is open of the run, and return its status."""
        for gate in ("gate", "other"):
            complete(self.workflows.pool, self.run_id, gate)
        status = "SELECT status::text FROM runledger.job_queue WHERE id = %s"
        if self.workflows.value(status, self.lease.job_id) == "LEASED":
            complete_job_success(self.workflows.pool, self.lease)
        while jobs := self.workflows.claim():
            for claimed in jobs.values():
                self.workflows.succeed(claimed)
        return self.workflows.status(self.run_id)


@pytest.fixture
def race(workflows: Workflows) -> Race:
    return Race(workflows)


def was_blocked(played: Sequence[Interleaving]) -> bool:
    return any(outcome.was_blocked for run in played for outcome in run.outcomes)


def test_one_of_two_equal_appends_adds_the_steps(race: Race):
    def sessions() -> list[Session]:
        return [race.session(name, lambda db: append(db, race.run_id)) for name in ("a", "b")]

    def check(written: dict[str, object]) -> None:
        assert sorted(map(str, written.values())) == ["ALREADY_APPLIED", "APPENDED"]
        count = "SELECT count(*) FROM runledger.workflow_steps WHERE workflow_run_id = %s"
        assert race.workflows.value(count, race.run_id) == 7

    assert was_blocked(race.play(sessions, check))


def test_append_that_is_rolled_back_leaves_the_key_to_the_other(race: Race):
    def sessions() -> list[Session]:
        return [
            race.session("a", lambda db: append(db, race.run_id), end="rollback"),
            race.session("b", lambda db: append(db, race.run_id)),
        ]

    def check(written: dict[str, object]) -> None:
        assert written["b"] == "APPENDED"

    assert was_blocked(race.play(sessions, check))


def test_append_comes_before_the_end_of_its_gate_or_is_refused(race: Race):
    seen: set[object] = set()

    def sessions() -> list[Session]:
        return [
            race.session("append", lambda db: append(db, race.run_id)),
            race.session("gate", lambda db: complete(db, race.run_id)),
        ]

    def check(written: dict[str, object]) -> None:
        assert written["gate"] == "SUCCEEDED"
        is_added = "due" in race.workflows.steps(race.run_id)
        assert is_added == (written["append"] == "APPENDED")
        seen.add(written["append"])

    assert was_blocked(race.play(sessions, check))
    assert seen == {"APPENDED", "workflow.append_window_not_open"}


@pytest.mark.parametrize("end", ENDS_OF_A_JOB)
def test_append_sees_the_end_of_a_prerequisite_that_it_waited_for(race: Race, end):
    def sessions() -> list[Session]:
        return [
            race.session("append", lambda db: append(db, race.run_id)),
            race.session("job", lambda db: ENDS_OF_A_JOB[end](db, race.lease)),
        ]

    def check(written: dict[str, object]) -> None:
        assert written["append"] == "APPENDED"
        # Released or doomed, by whichever came second.
        status = "ENQUEUED" if end == "success" else "CANCELED"
        assert race.workflows.steps(race.run_id)["needs"] == status

    assert was_blocked(race.play(sessions, check))


@pytest.mark.parametrize("end", ROUNDS)
def test_round_beside_an_append_is_busy_or_was_before_it(race: Race, end):
    verdicts: set[object] = set()

    def sessions() -> list[Session]:
        return [race.session("append", lambda db: append(db, race.run_id)), race.round(end)]

    def check(written: dict[str, object]) -> None:
        assert written["append"] == "APPENDED"
        verdicts.add(written["round"])
        if written["round"] == "BUSY":
            with race.workflows.database.connect(autocommit=True) as connection:
                assert ROUNDS[end](connection, race.lease) == "STORED"
        status = "ENQUEUED" if end == "success" else "CANCELED"
        assert race.workflows.steps(race.run_id)["needs"] == status
        assert broken_invariants(race.workflows.look) == []

    race.play(sessions, check)

    assert verdicts == {"BUSY", "STORED"}


@pytest.mark.parametrize("end", ROUNDS)
def test_round_beside_a_gate_is_busy_or_was_before_it(race: Race, end):
    verdicts: set[object] = set()

    def sessions() -> list[Session]:
        complete(race.workflows.pool, race.run_id, "other")
        return [race.session("gate", lambda db: complete(db, race.run_id)), race.round(end)]

    def check(written: dict[str, object]) -> None:
        verdicts.add(written["round"])
        if written["round"] == "BUSY":
            with race.workflows.database.connect(autocommit=True) as connection:
                assert ROUNDS[end](connection, race.lease) == "STORED"
        status = "ENQUEUED" if end == "success" else "CANCELED"
        assert race.workflows.steps(race.run_id)["join"] == status

    race.play(sessions, check)

    assert verdicts == {"BUSY", "STORED"}


@pytest.mark.parametrize("end", ENDS_OF_A_JOB)
def test_last_prerequisites_that_end_at_once_settle_a_join_once(race: Race, scaled, end):
    def sessions() -> list[Session]:
        return [
            race.session("gate", lambda db: complete(db, race.run_id)),
            race.session("other", lambda db: complete(db, race.run_id, "other")),
            race.session("job", lambda db: ENDS_OF_A_JOB[end](db, race.lease)),
        ]

    def check(written: dict[str, object]) -> None:
        status = "ENQUEUED" if end == "success" else "CANCELED"
        assert race.workflows.steps(race.run_id)["join"] == status

    assert was_blocked(race.play(sessions, check, limit=scaled(ci=15, full=90)))


def test_two_reports_of_the_same_end_are_one(race: Race):
    def sessions() -> list[Session]:
        return [race.session(name, lambda db: complete(db, race.run_id)) for name in ("a", "b")]

    def check(written: dict[str, object]) -> None:
        assert written == {"a": "SUCCEEDED", "b": "SUCCEEDED"}

    assert was_blocked(race.play(sessions, check))


def test_gate_of_a_run_that_is_canceled_ends_before_or_with_it(race: Race):
    seen: set[object] = set()

    def sessions() -> list[Session]:
        return [
            race.session("gate", lambda db: complete(db, race.run_id)),
            race.session("cancel", lambda db: cancel(db, race.run_id)),
        ]

    def check(written: dict[str, object]) -> None:
        assert written["cancel"] == race.workflows.status(race.run_id) == "CANCELED"
        is_before = written["gate"] == "SUCCEEDED"
        steps = race.workflows.steps(race.run_id)
        assert steps == dict.fromkeys(("job", "join", "other"), "CANCELED") | {
            "gate": "SUCCEEDED" if is_before else "CANCELED"
        }
        seen.add(written["gate"])

    assert was_blocked(race.play(sessions, check))
    assert seen == {"SUCCEEDED", "workflow.external_step_conflicting_completion_retry"}


def test_steps_that_are_appended_to_a_run_that_is_canceled_end_with_it(race: Race):
    seen: set[object] = set()

    def sessions() -> list[Session]:
        return [
            race.session("append", lambda db: append(db, race.run_id)),
            race.session("cancel", lambda db: cancel(db, race.run_id)),
        ]

    def check(written: dict[str, object]) -> None:
        assert written["cancel"] == race.workflows.status(race.run_id) == "CANCELED"
        steps = race.workflows.steps(race.run_id)
        assert set(steps.values()) == {"CANCELED"}
        assert ("due" in steps) == (written["append"] == "APPENDED")
        seen.add(written["append"])

    assert was_blocked(race.play(sessions, check))
    assert seen == {"APPENDED", "workflow.append_window_not_open"}
