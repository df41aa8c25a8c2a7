from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runledger_core import JobCompletion, JobDeadLetterReason, JobFailure
from runledger_postgres.errors import QueryUnavailableError
from runledger_postgres.lifecycle import (
    FailureDisposition,
    FailureOutcome,
    SuccessOutcome,
    WriteVerdict,
)
from runledger_runtime.backoff import BackoffPolicy
from runledger_runtime.dead_letters import DeadLetter
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._settling import Settling, Unsettled

from ..._nameless import NamelessError

FATAL = JobFailure.terminal("jobs.fatal", "never")
NOTHING = Unsettled(changed=[], busy=[])


@pytest.fixture
def told() -> list[DeadLetter]:
    return []


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook()


@pytest.fixture
def settling(book: LeaseBook, told: list[DeadLetter]) -> Settling:
    return Settling(JobRegistry(), book, on_dead_letter=told.append)


class BrokenPolicy(BackoffPolicy):
    """Fails with an error that cannot be named."""

    def delay_ms(self, attempt: int) -> int:
        """Fail."""
        raise NamelessError


def test_policy_whose_error_cannot_be_named_is_logged_and_the_default_is_used(
    start_execution: Callable[..., Execution], book, told, caplog
):
    registry = JobRegistry()
    registry.register_backoff("jobs.one", BrokenPolicy())
    settling = Settling(registry, book, on_dead_letter=told.append)

    batch = settling.batch([Outcome(start_execution(), JobFailure.retryable("a.code", "again"))])

    assert batch.failures[0].retry_delay_ms is not None
    assert [record.error for record in caplog.records] == ["object"]


@pytest.mark.parametrize("verdict", [WriteVerdict.STORED, WriteVerdict.REPEATED])
def test_outcome_that_was_stored_before_is_acknowledged_and_its_dead_letter_told(
    start_execution: Callable[..., Execution], book, settling, told, verdict
):
    execution = start_execution()
    book.add(execution)
    stored = FailureOutcome(
        verdict,
        FailureDisposition.DEAD_LETTERED,
        dead_letter_reason=JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE,
    )

    left = settling.settle(settling.batch([Outcome(execution, FATAL)]), [], [stored])

    assert left == NOTHING
    assert len(book) == 0
    assert [letter.info.failure for letter in told] == [FATAL]


def test_dead_letter_holds_what_is_stored_and_not_what_the_handler_made_of_it(
    start_execution: Callable[..., Execution], settling, told
):
    execution = start_execution()
    job = replace(
        execution.job,
        payload={},
        payload_json='{"order": 7}',
        checkpoint=[],
        checkpoint_json='{"page": 2}',
    )
    execution.job = job
    # Of a repeat nothing is known but that it was stored.
    repeated = FailureOutcome(
        WriteVerdict.REPEATED,
        FailureDisposition.DEAD_LETTERED,
        dead_letter_reason=JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE,
    )

    settling.settle(settling.batch([Outcome(execution, FATAL)]), [], [repeated])

    (letter,) = told
    assert (letter.payload(), letter.checkpoint()) == ({"order": 7}, {"page": 2})


def test_job_that_python_cannot_read_is_told_to_nobody(
    start_execution: Callable[..., Execution], book, settling, told
):
    execution = start_execution()
    execution.is_reported = False
    book.add(execution)
    stored = FailureOutcome(
        WriteVerdict.STORED,
        FailureDisposition.DEAD_LETTERED,
        dead_letter_reason=JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE,
    )

    settling.settle(settling.batch([Outcome(execution, FATAL)]), [], [stored])

    assert (len(book), told) == (0, [])


def test_busy_outcome_is_left_and_its_lease_kept(
    start_execution: Callable[..., Execution], book, settling
):
    execution = start_execution()
    book.add(execution)
    outcome = Outcome(execution, JobCompletion.success())
    busy = SuccessOutcome(WriteVerdict.BUSY)

    left = settling.settle(settling.batch([outcome]), [busy], [])

    assert left == Unsettled(changed=[], busy=[outcome])
    assert book.executions() == [execution]


def test_outcome_of_a_lost_lease_is_let_go(
    start_execution: Callable[..., Execution], book, settling, told
):
    execution = start_execution()
    book.add(execution)
    lost = FailureOutcome(WriteVerdict.LEASE_OWNER_MISMATCH)

    left = settling.settle(settling.batch([Outcome(execution, FATAL)]), [], [lost])

    assert (left, len(book), told) == (NOTHING, 0, [])


class ToldObserving:
    """Keeps what would have become events, in the list that dead letters go to."""

    def __init__(self, told: list[object]) -> None:
        self._told = told

    def started(self, execution: Execution) -> None:
        self._told.append(("started", execution))

    def stored(self, outcome: Outcome, stored: object) -> None:
        self._told.append(("stored", outcome))

    def lost(self, execution: Execution) -> None:
        self._told.append(("lost", execution))

    def unstorable(self, outcome: Outcome, error: Exception) -> None:
        self._told.append(("unstorable", outcome))


@pytest.fixture
def observed(book: LeaseBook, told: list[object]) -> Settling:
    observing = ToldObserving(told)
    return Settling(
        JobRegistry(),
        book,
        on_dead_letter=told.append,
        observing=observing,  # pyright: ignore[reportArgumentType]  # by shape
    )


def test_event_of_a_dead_letter_is_handed_over_before_its_hook(
    start_execution: Callable[..., Execution], observed, told
):
    outcome = Outcome(start_execution(), FATAL)
    stored = FailureOutcome(
        WriteVerdict.STORED,
        FailureDisposition.DEAD_LETTERED,
        dead_letter_reason=JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE,
    )

    observed.settle(observed.batch([outcome]), [], [stored])

    assert told[0] == ("stored", outcome)
    assert isinstance(told[1], DeadLetter)


def test_busy_outcome_is_no_event(start_execution: Callable[..., Execution], observed, told):
    outcome = Outcome(start_execution(), JobCompletion.success())

    observed.settle(observed.batch([outcome]), [SuccessOutcome(WriteVerdict.BUSY)], [])

    assert told == []


def test_lost_lease_is_an_event_whether_or_not_there_is_an_outcome(
    start_execution: Callable[..., Execution], observed, told
):
    with_outcome, without = start_execution(), start_execution(claim_number=2)
    observed.begin(with_outcome)
    observed.begin(without)
    outcome = Outcome(with_outcome, JobCompletion.success())
    lost = SuccessOutcome(WriteVerdict.LEASE_OWNER_MISMATCH)

    observed.settle(observed.batch([outcome]), [lost], [])
    observed.let_go(without)

    assert told == [
        ("started", with_outcome),
        ("started", without),
        ("lost", with_outcome),
        ("lost", without),
    ]


def test_outcome_that_can_never_be_stored_is_an_event_and_its_lease_runs_out(
    start_execution: Callable[..., Execution], observed, book, told
):
    execution = start_execution()
    observed.begin(execution)
    outcome = Outcome(execution, FATAL)

    observed.give_up(outcome, QueryUnavailableError("db.check_violation", "refused"))

    assert told[1:] == [("unstorable", outcome)]
    assert (len(book), book.leases()) == (0, [execution.job.lease])
