"""A handler that breaks what runs it costs its own attempt at most; others go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job
from runledger_postgres.jobs import JobRecord, list_job_attempts
from runledger_runtime.errors import LoopExit

from ..._loop_descriptors import close_descriptors
from ..._nameless import Nameless, NamelessError

pytestmark = pytest.mark.core

Eventually = Callable[[Callable[[], bool]], None]


class Bare(JobCompletion):
    """A completion that does not initialise itself."""

    def __post_init__(self) -> None:
        """Encode nothing."""


class NamelessExit(BaseException, metaclass=Nameless):
    """One that is no Exception, and cannot be described either."""

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]  # the fault
        raise LookupError


def cancel_itself() -> None:
    """Cancel the task that this is called in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def cancel_everything() -> None:
    """Cancel every task of the loop."""
    for task in asyncio.all_tasks():
        task.cancel()


def ended(pool: ConnectionPool[Any], eventually: Eventually, payload: Any) -> JobRecord:
    """Run one job with this payload and return it when its first attempt has ended."""
    job_id = enqueue_job(pool, JobEnqueue("jobs.one", payload)).id
    eventually(lambda: bool(list_job_attempts(pool, job_id, scope=Scope.ADMIN)))
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job


@pytest.mark.parametrize("cancel", [cancel_itself, cancel_everything])
def test_what_a_coroutine_returns_counts_though_it_has_cancelled_its_task(
    cancel: Callable[[], None],
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
) -> None:
    async def handler(_context: Any, _payload: Any) -> JobCompletion:
        cancel()
        return JobCompletion.with_output("done")

    worker = start_worker({"jobs.one": handler}, max_global_concurrency=1)

    for _ in range(2):
        job = ended(runledger_pool, eventually, {})
        assert (job.status, job.output) == (JobStatus.SUCCEEDED, "done")
    assert worker.end() is LoopExit.SHUTDOWN


def test_completion_that_did_not_initialise_itself_is_stored_as_any_other(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    start_worker({"jobs.one": lambda _, payload: Bare(payload, progress_done=2, checkpoint="c")})

    job = ended(runledger_pool, eventually, {"n": 1})

    assert (job.status, job.output, job.checkpoint) == (JobStatus.SUCCEEDED, {"n": 1}, "c")
    assert job.progress_done == 2


def test_completion_without_anything_in_it_is_a_failure_and_the_worker_goes_on(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(_context: Any, payload: Any) -> JobCompletion:
        return JobCompletion.__new__(JobCompletion) if payload else JobCompletion.success()

    start_worker({"jobs.one": handler}, max_global_concurrency=1)

    assert ended(runledger_pool, eventually, 1).last_error_code == "job.handler_exception"
    assert ended(runledger_pool, eventually, 0).status is JobStatus.SUCCEEDED


def test_output_is_stored_as_it_was_when_the_completion_was_made(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(_context: Any, payload: Any) -> JobCompletion:
        completion = JobCompletion.with_output(payload)
        payload.append(object())
        return completion

    start_worker({"jobs.one": handler})

    assert ended(runledger_pool, eventually, [1]).output == [1]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("kind", "code"),
    [(NamelessError, "job.handler_exception"), (NamelessExit, "job.handler_panic")],
    ids=["exception", "exit"],
)
def test_exception_whose_class_cannot_be_named_costs_its_attempt_and_no_thread(  # noqa: PLR0917  # fixtures and cases
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    kind: type[BaseException],
    code: str,
    is_async: bool,
) -> None:
    def handler(_context: Any, payload: Any) -> None:
        if payload:
            raise kind

    async def handler_async(context: Any, payload: Any) -> None:
        handler(context, payload)

    start_worker({"jobs.one": handler_async if is_async else handler}, max_global_concurrency=1)

    assert ended(runledger_pool, eventually, 1).last_error_code == code
    assert ended(runledger_pool, eventually, 0).status is JobStatus.SUCCEEDED


def test_result_whose_class_cannot_be_named_is_refused_as_any_other(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    start_worker({"jobs.one": lambda *_: NamelessError()})

    assert ended(runledger_pool, eventually, 1).last_error_code == "job.invalid_handler_result"


def test_task_factory_of_a_handler_keeps_no_other_from_running(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
        return asyncio.Task(coroutine, loop=loop)

    async def handler(_context: Any, _payload: Any) -> None:
        # It takes no context.
        asyncio.get_running_loop().set_task_factory(make_task)

    start_worker({"jobs.one": handler}, max_global_concurrency=1)

    for _ in range(2):
        assert ended(runledger_pool, eventually, {}).status is JobStatus.SUCCEEDED


def test_abort_of_a_stop_ends_though_a_handler_has_shut_down_the_threads_of_the_loop(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    is_shut_down = threading.Event()

    async def handler(_context: Any, _payload: Any) -> None:
        await asyncio.get_running_loop().shutdown_default_executor()
        is_shut_down.set()
        await asyncio.Event().wait()

    worker = start_worker({"jobs.one": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
    assert is_shut_down.wait(30)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert look("SELECT status || ' ' || attempt FROM runledger.job_queue") == "PENDING 0"


@pytest.mark.parametrize("is_async", [False, True])
def test_handler_that_closes_the_descriptors_of_the_loop_costs_others_an_attempt_at_most(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, is_async: bool
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    entered = threading.Event()

    async def waits(_context: Any, payload: Any) -> None:
        loops.append(asyncio.get_running_loop())
        entered.set()
        if payload:
            await asyncio.Event().wait()

    def close(_context: Any, _payload: Any) -> None:
        close_descriptors(loops[0])

    async def close_async(context: Any, payload: Any) -> None:
        close(context, payload)

    worker = start_worker({"jobs.waits": waits, "jobs.closes": close_async if is_async else close})
    waiting = enqueue_job(runledger_pool, JobEnqueue("jobs.waits", 1, max_attempts=2)).id
    assert entered.wait(30)
    closing = enqueue_job(runledger_pool, JobEnqueue("jobs.closes", {})).id

    eventually(lambda: bool(list_job_attempts(runledger_pool, waiting, scope=Scope.ADMIN)))
    (attempt,) = list_job_attempts(runledger_pool, waiting, scope=Scope.ADMIN)
    assert (attempt.outcome, attempt.error_code) == ("RETRYABLE", "job.handler_exception")
    assert (attempt.error_message or "").startswith("the event loop could not go on")
    later = enqueue_job(runledger_pool, JobEnqueue("jobs.waits", 0)).id
    for job_id in (closing, later):
        eventually(lambda job_id=job_id: has_succeeded(runledger_pool, job_id))
    assert loops[-1] is not loops[0]
    # The other would wait for ever, if it runs again.
    worker.stop.abort()


def has_succeeded(pool: ConnectionPool[Any], job_id: Any) -> bool:
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    return job is not None and job.status is JobStatus.SUCCEEDED
