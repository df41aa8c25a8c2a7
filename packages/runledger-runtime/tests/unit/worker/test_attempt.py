from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from runledger_core import CancelReason, JobCompletion, JobFailure, JobFailureKind
from runledger_runtime.worker._attempt import run_attempt, timeout_failure
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


class OwnError(Exception):
    """What a repository raises of an error of the database."""


def raise_from() -> None:
    try:
        raise psycopg.errors.QueryCanceled
    except psycopg.Error as error:
        raise OwnError from error


def raise_while_handling() -> None:
    try:
        raise psycopg.errors.QueryCanceled
    except psycopg.Error:
        raise OwnError  # noqa: B904  # the case


def raise_from_none() -> None:
    try:
        raise psycopg.errors.QueryCanceled
    except psycopg.Error:
        raise OwnError from None


def raise_in_group() -> None:
    try:
        raise_from()
    except OwnError as error:
        raise ExceptionGroup("tasks", [error, psycopg.errors.QueryCanceled()]) from None


def raise_from_group() -> None:
    raise OwnError from ExceptionGroup("tasks", [LookupError(), psycopg.errors.QueryCanceled()])


def raise_failure() -> None:
    try:
        raise psycopg.errors.QueryCanceled
    except psycopg.Error as error:
        raise JobFailure.retryable("test.own", "own") from error


def raise_memory_error() -> None:
    try:
        raise psycopg.errors.QueryCanceled
    except psycopg.Error as error:
        raise MemoryError from error


def raise_exit() -> None:
    try:
        raise psycopg.errors.QueryCanceled
    except psycopg.Error as error:
        raise SystemExit(1) from error


def raise_something_else() -> None:
    raise LookupError("x")


def raise_something_else_in_group() -> None:
    try:
        raise_from()
    except OwnError as error:
        raise ExceptionGroup("tasks", [error, LookupError("x")]) from None


WRAPPERS = [raise_from, raise_while_handling, raise_from_none, raise_in_group, raise_from_group]


def failure_of_told(
    execution: Execution, reason: CancelReason, leave: Callable[[], None]
) -> JobFailure:
    """Return what an attempt comes to whose handler is told to stop and leaves by this."""

    def handler(*_: object) -> None:
        execution.cancel(reason)
        leave()

    _, outcome = run_attempt(execution, handler)
    assert outcome is not None
    assert isinstance(outcome.result, JobFailure)
    return outcome.result


@pytest.mark.parametrize("leave", WRAPPERS)
def test_handler_that_raises_an_error_of_its_own_of_what_an_abort_raised_has_left(
    start_execution: Callable[..., Execution], leave: Callable[[], None]
):
    failure = failure_of_told(start_execution(), CancelReason.SHUTDOWN, leave)

    assert failure.code == "job.worker_shutdown"


@pytest.mark.parametrize(
    ("leave", "code", "message"),
    [
        (raise_failure, "test.own", "own"),
        (raise_memory_error, "job.handler_panic", "MemoryError: "),
        (raise_exit, "job.handler_panic", "SystemExit: 1"),
        (raise_something_else, "job.handler_exception", "LookupError: x"),
        (raise_something_else_in_group, "job.handler_exception", "LookupError: x"),
    ],
)
def test_failure_panic_or_error_of_another_origin_counts_in_an_abort(
    start_execution: Callable[..., Execution], leave: Callable[[], None], code: str, message: str
):
    failure = failure_of_told(start_execution(), CancelReason.SHUTDOWN, leave)

    assert (failure.code, failure.message) == (code, message)


@pytest.mark.parametrize("leave", WRAPPERS)
def test_error_of_a_cancelled_statement_is_a_timeout_or_an_exception_where_nothing_is_aborted(
    start_execution: Callable[..., Execution], leave: Callable[[], None]
):
    execution = start_execution()

    assert failure_of_told(execution, CancelReason.TIMEOUT, leave) == timeout_failure(execution)
    _, outcome = run_attempt(start_execution(), lambda *_: leave())
    assert outcome is not None
    assert isinstance(outcome.result, JobFailure)
    assert outcome.result.code == "job.handler_exception"


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
