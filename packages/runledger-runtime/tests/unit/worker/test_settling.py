from __future__ import annotations

from collections.abc import Callable

import pytest

from runledger_core import JobCompletion, JobDeadLetterReason, JobFailure
from runledger_postgres.lifecycle import (
    FailureDisposition,
    FailureOutcome,
    SuccessOutcome,
    WriteVerdict,
)
from runledger_runtime.dead_letters import DeadLetter
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._settling import Settling

FATAL = JobFailure.terminal("jobs.fatal", "never")


@pytest.fixture
def told() -> list[DeadLetter]:
    return []


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook()


@pytest.fixture
def settling(book: LeaseBook, told: list[DeadLetter]) -> Settling:
    return Settling(JobRegistry(), book, on_dead_letter=told.append)


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

    again = settling.settle(settling.batch([Outcome(execution, FATAL)]), [], [stored])

    assert again == []
    assert len(book) == 0
    assert [letter.info.failure for letter in told] == [FATAL]


def test_busy_outcome_is_held_and_its_lease_kept(
    start_execution: Callable[..., Execution], book, settling
):
    execution = start_execution()
    book.add(execution)
    outcome = Outcome(execution, JobCompletion.success())
    busy = SuccessOutcome(WriteVerdict.BUSY)

    again = settling.settle(settling.batch([outcome]), [busy], [])

    assert again == []
    assert settling.busy == [outcome]
    assert book.executions() == [execution]


def test_outcome_of_a_lost_lease_is_let_go(
    start_execution: Callable[..., Execution], book, settling, told
):
    execution = start_execution()
    book.add(execution)
    lost = FailureOutcome(WriteVerdict.LEASE_OWNER_MISMATCH)

    again = settling.settle(settling.batch([Outcome(execution, FATAL)]), [], [lost])

    assert (again, len(book), told) == ([], 0, [])
