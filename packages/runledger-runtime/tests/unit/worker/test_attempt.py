from __future__ import annotations

import time
from collections.abc import Callable

from runledger_core import JobCompletion, JobFailure, JobFailureKind
from runledger_runtime.worker._attempt import run_attempt
from runledger_runtime.worker._execution import Ending, Execution


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
