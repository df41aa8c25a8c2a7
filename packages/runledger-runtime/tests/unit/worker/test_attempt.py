from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from runledger_core import JobCompletion, JobFailure, JobFailureKind
from runledger_runtime.worker._attempt import run_attempt
from runledger_runtime.worker._execution import Ending, Execution, Outcome

from ..._nameless import NamelessError


def test_result_of_before_the_deadline_counts(start_execution: Callable[..., Execution]):
    ending, outcome = run_attempt(start_execution(), lambda *_: None)

    assert ending is Ending.RETURNED
    assert outcome is not None
    assert outcome.result == JobCompletion.success()


def test_result_of_after_the_deadline_is_a_timeout_though_nobody_told_the_handler(
    start_execution: Callable[..., Execution],
):
    execution = start_execution()
    execution.deadline_at = time.monotonic()

    ending, outcome = run_attempt(execution, lambda *_: JobCompletion.with_output("late"))

    assert ending is Ending.RETURNED
    assert outcome is not None
    assert isinstance(outcome.result, JobFailure)
    assert outcome.result.kind is JobFailureKind.TIMEOUT


def test_result_of_after_the_attempt_was_given_up_is_dropped(
    start_execution: Callable[..., Execution],
):
    execution = start_execution()

    assert execution.end()

    assert run_attempt(execution, lambda *_: None) == (Ending.RETURNED_LATE, None)


class NamelessEndError(NamelessError):
    """One that cannot be told from others either."""

    @property
    def __class__(self) -> type[BaseException]:  # type: ignore[override]  # the fault
        raise LookupError


def test_exception_that_can_neither_be_named_nor_described_is_an_outcome(
    start_execution: Callable[..., Execution],
):
    def handler(*_: object) -> None:
        raise NamelessEndError

    outcomes: list[Outcome | None] = []
    with suppress(LookupError):
        outcomes.append(run_attempt(start_execution(), handler)[1])

    assert len(outcomes) == 1
    assert outcomes[0] is not None
    assert outcomes[0].result == JobFailure.panicked(
        "job.handler_panic", "object, which cannot be described"
    )
