"""Running one handler: whatever it does becomes an outcome."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import psycopg

from runledger_core import (
    CancelReason,
    JobCancelled,
    JobCompletion,
    JobContext,
    JobFailure,
    JsonValue,
    type_name,
)

from ..event_loop import is_on_lost_loop
from ..forked_child import EndsForkedChild
from ._context import WorkerJobContext
from ._execution import Ending, Execution, Outcome
from ._raised import comes_of, failure_of, gravity_of, leaves_of
from ._traceback import describe_exception

TIMEOUT_CODE: Final = "job.timeout_exceeded"
RELEASE_REASON: Final = "SHUTDOWN"
# What most handlers come to; it is frozen, so one will do.
_SUCCESS: Final = JobCompletion.success()
# What handlers come to that left because an aborted stop told them to.
SHUT_DOWN: Final = JobFailure.retryable(
    "job.worker_shutdown", "the worker was stopped before the handler had ended"
)
_NOT_STARTED: Final = JobFailure.retryable(
    "job.handler_not_started", "the worker could not start a thread for the handler"
)
# What coroutines come to that were cancelled because their event loop could not go on.
_LOOP_LOST: Final = JobFailure.retryable(
    "job.handler_exception",
    "the event loop could not go on; a handler may have closed its file descriptors",
)
# What our telling a handler to stop makes it raise.
_RAISED_WHEN_TOLD: Final = (JobCancelled, asyncio.CancelledError, psycopg.errors.QueryCanceled)

Handler: TypeAlias = Callable[[JobContext, JsonValue], object]
AwaitableHandler: TypeAlias = Callable[[JobContext, JsonValue], Awaitable[object]]


def run_attempt(execution: Execution, handler: Handler) -> tuple[Ending, Outcome | None]:
    """Run the handler and return how it ended, with what to store, if anything."""
    try:
        with EndsForkedChild():
            returned = handler(WorkerJobContext(execution), execution.job.payload)
        result, details = _checked(returned), None
    except BaseException as error:  # noqa: BLE001  # every exit of a handler is an outcome
        result, details = _caught(execution, error)
    return _judged(execution, result, details)


async def run_attempt_async(
    execution: Execution, handler: AwaitableHandler
) -> tuple[Ending, Outcome | None]:
    """Run the handler on the event loop and return the same as `run_attempt`."""
    try:
        with EndsForkedChild():
            returned = await handler(WorkerJobContext(execution), execution.job.payload)
        result, details = _checked(returned), None
    except BaseException as error:  # noqa: BLE001  # a SystemExit would end the event loop
        result, details = _caught(execution, error)
    return _judged(execution, result, details)


def unentered_attempt(execution: Execution) -> tuple[Ending, Outcome | None]:
    """Return how an attempt ended that was cancelled before its coroutine was entered."""
    return _judged(execution, *_caught(execution, asyncio.CancelledError()))


def unstarted_attempt(execution: Execution) -> tuple[Ending, Outcome | None]:
    """Return how an attempt ended for which there was no thread to be had."""
    return _judged(execution, _NOT_STARTED, None)


def timeout_failure(execution: Execution) -> JobFailure:
    """Return the failure of an attempt that took too long."""
    seconds = max(1, execution.job.timeout_seconds)
    return JobFailure.timeout(TIMEOUT_CODE, f"the handler did not end within {seconds} s")


def is_shut_down(outcome: Outcome) -> bool:
    """Tell whether a handler left because an aborted stop told it to."""
    return outcome.result is SHUT_DOWN


def is_unstarted(outcome: Outcome) -> bool:
    """Tell whether there was no thread, or no event loop, for a handler."""
    return outcome.result is _NOT_STARTED


def _judged(
    execution: Execution, result: JobCompletion | JobFailure, details: str | None
) -> tuple[Ending, Outcome | None]:
    if not execution.end():
        return Ending.RETURNED_LATE, None
    if execution.is_cancelled:
        if execution.cancel_reason in {CancelReason.CANCELED, CancelReason.LEASE_LOST}:
            # Nothing of it could be stored: the row belongs to nobody, or to somebody else.
            return Ending.RETURNED, None
        if execution.cancel_reason is CancelReason.TIMEOUT:
            return Ending.RETURNED, Outcome(execution, timeout_failure(execution))
    # A result counts only if it was there before the deadline.
    if time.monotonic() >= execution.deadline_at:
        return Ending.RETURNED, Outcome(execution, timeout_failure(execution))
    return Ending.RETURNED, Outcome(execution, result, details)


def _checked(returned: object) -> JobCompletion | JobFailure:
    if returned is None:
        return _SUCCESS
    if isinstance(returned, JobFailure):
        return JobFailure(returned.kind, returned.code, returned.message)
    if isinstance(returned, JobCompletion):
        return _completed(returned)
    name = type_name(returned)
    if inspect.iscoroutine(returned):
        # Of a `def` that returns that of another, such as a decorator's, or of a callable object
        # that wraps an `async def`.
        returned.close()
        name = (
            "a coroutine, which was not awaited: write an async def, or a class with an async"
            " __call__"
        )
    return JobFailure.terminal("job.invalid_handler_result", f"the handler returned {name}")


def _completed(returned: JobCompletion) -> JobCompletion:
    # As it was encoded when it was made: its output may have been changed since.
    if type(returned) is JobCompletion and hasattr(returned, "output_json"):
        return returned
    # By its own class and complete: a subclass may have forgotten to initialise it.
    return JobCompletion(
        returned.output,
        progress_done=returned.progress_done,
        progress_total=returned.progress_total,
        checkpoint=returned.checkpoint,
    )


def _caught(execution: Execution, error: BaseException) -> tuple[JobFailure, str | None]:
    try:
        leaves = leaves_of(error)
        # Of tasks that were cancelled with the one that failed, say.
        counted = [leaf for leaf in leaves if not _is_left_as_told(execution, leaf)]
        if not counted and execution.cancel_reason is CancelReason.SHUTDOWN:
            return SHUT_DOWN, None
        if not counted and is_on_lost_loop():
            return _LOOP_LOST, describe_exception(error)
        gravest = min(counted or leaves, key=gravity_of)
        is_told_whole = isinstance(gravest, JobFailure) and len(leaves) == 1
        return failure_of(gravest), None if is_told_whole else describe_exception(error)
    except BaseException:  # noqa: BLE001  # an exception whose own attributes raise
        text = f"{type_name(error)}, which cannot be described"
        return JobFailure.panicked("job.handler_panic", text), None


def _is_left_as_told(execution: Execution, error: BaseException) -> bool:
    if execution.cancel_reason is CancelReason.SHUTDOWN:
        # Repositories and ORMs raise an error of their own of a statement that was cancelled.
        return comes_of(error, _RAISED_WHEN_TOLD)
    return isinstance(error, _RAISED_WHEN_TOLD)
