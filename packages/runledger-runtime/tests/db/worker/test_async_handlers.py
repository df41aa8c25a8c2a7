"""Handlers that are `async def`: what they do becomes an outcome, and they are really cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import (
    CancelReason,
    JobCancelled,
    JobCompletion,
    JobEnqueue,
    JobFailure,
    JobStatus,
    Scope,
    ValidationError,
)
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.jobs import JobRecord, list_job_attempts, list_job_logs
from runledger_postgres.lifecycle import cancel_job
from runledger_runtime.errors import LoopExit, TooManyStuckHandlers
from runledger_runtime.health import LoopState
from runledger_test_support.ageing import expire_lease

pytestmark = pytest.mark.core

Eventually = Callable[[Callable[[], bool]], None]


def job_of(pool: ConnectionPool[Any], job_id: Any) -> JobRecord:
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job


def run_one(
    pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    handler: Any,
    **values: Any,
) -> JobRecord:
    """Run one job with this handler and return it when its first attempt has ended."""
    start_worker({"jobs.one": handler}, handler_grace_seconds=1)
    job_id = enqueue_job(pool, JobEnqueue("jobs.one", {"n": 1}, **values)).id
    eventually(lambda: bool(list_job_attempts(pool, job_id, scope=Scope.ADMIN)))
    return job_of(pool, job_id)


class Notes:
    """What happened in a handler, for the test to wait for."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.seen: list[Any] = []

    async def wait_for_ever(self, context: Any, _payload: Any) -> None:
        self.started.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.seen.append(context.cancel_reason)
            raise


def test_completion_of_a_coroutine_is_stored(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def handler(_context: Any, payload: Any) -> JobCompletion:
        await asyncio.sleep(0)
        return JobCompletion.with_output(payload)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.output) == (JobStatus.SUCCEEDED, {"n": 1})


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (JobFailure.terminal("test.no", "no"), JobStatus.DEAD_LETTERED, "test.no"),
        (LookupError("x"), JobStatus.PENDING, "job.handler_exception"),
        (SystemExit(1), JobStatus.DEAD_LETTERED, "job.handler_panic"),
        (KeyboardInterrupt(), JobStatus.DEAD_LETTERED, "job.handler_panic"),
        (RecursionError(), JobStatus.DEAD_LETTERED, "job.handler_panic"),
        (GeneratorExit(), JobStatus.DEAD_LETTERED, "job.handler_panic"),
        # Nobody here cancelled it.
        (asyncio.CancelledError(), JobStatus.DEAD_LETTERED, "job.handler_panic"),
    ],
)
def test_what_a_coroutine_raises_is_judged_as_that_of_a_thread(  # noqa: PLR0917  # fixtures and cases
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    error: BaseException,
    status: JobStatus,
    code: str,
) -> None:
    async def handler(_context: Any, _payload: Any) -> None:
        await asyncio.sleep(0)
        raise error

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (status, code)


def test_loop_goes_on_after_the_worst_that_a_coroutine_can_raise(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def handler(_context: Any, payload: Any) -> None:
        if payload:
            raise SystemExit(3)

    start_worker({"jobs.one": handler}, max_global_concurrency=1)
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", 1))
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.one", 0)).id

    eventually(lambda: job_of(runledger_pool, job_id).status is JobStatus.SUCCEEDED)


def test_coroutine_that_cancels_itself_is_a_panic(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def handler(_context: Any, _payload: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (JobStatus.DEAD_LETTERED, "job.handler_panic")


def test_function_that_returns_a_coroutine_is_told_to_be_async(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def inner() -> None: ...

    job = run_one(runledger_pool, start_worker, eventually, lambda *_: inner())

    assert job.last_error_code == "job.invalid_handler_result"
    assert "async def" in (job.last_error_message or "")


def test_timeout_cancels_the_coroutine_and_schedules_a_retry(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    notes = Notes()

    job = run_one(runledger_pool, start_worker, eventually, notes.wait_for_ever, timeout_seconds=1)

    assert notes.seen == [CancelReason.TIMEOUT]
    assert (job.status, job.last_error_code) == (JobStatus.PENDING, "job.timeout_exceeded")


def test_timeout_cancels_the_children_of_a_task_group(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    notes = Notes()

    async def handler(context: Any, payload: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(notes.wait_for_ever(context, payload))

    job = run_one(runledger_pool, start_worker, eventually, handler, timeout_seconds=1)

    assert notes.seen == [CancelReason.TIMEOUT] * 3
    assert (job.status, job.last_error_code) == (JobStatus.PENDING, "job.timeout_exceeded")


def test_failure_of_one_child_of_a_task_group_is_an_exception_of_the_handler(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def fail() -> None:
        raise LookupError("x")

    async def handler(_context: Any, _payload: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(fail())

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (JobStatus.PENDING, "job.handler_exception")


def test_timeout_of_its_own_is_an_exception_of_the_handler(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def handler(_context: Any, _payload: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert job.last_error_code == "job.handler_exception"


def test_timeout_closes_the_async_generator_that_the_handler_was_in(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    seen: list[str] = []

    async def pages() -> AsyncGenerator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.01)
        finally:
            seen.append("closed")

    async def handler(_context: Any, _payload: Any) -> None:
        async for _ in pages():
            pass

    run_one(runledger_pool, start_worker, eventually, handler, timeout_seconds=1)

    assert seen == ["closed"]


def test_cleaning_up_within_the_grace_period_is_not_disturbed(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    seen: list[str] = []

    async def handler(_context: Any, _payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            seen.append("cleaned up")

    run_one(runledger_pool, start_worker, eventually, handler, timeout_seconds=1)

    assert seen == ["cleaned up"]


def test_cancel_of_the_job_cancels_the_coroutine(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    notes = Notes()
    start_worker({"jobs.long": notes.wait_for_ever}, lease_ttl_seconds=3)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
    assert notes.started.acquire(timeout=30)

    cancel_job(runledger_pool, job_id, scope=Scope.ADMIN)

    eventually(lambda: notes.seen == [CancelReason.CANCELED])
    assert job_of(runledger_pool, job_id).status is JobStatus.CANCELED


def test_lost_lease_cancels_the_coroutine(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    runledger_database: Any,
) -> None:
    notes = Notes()
    start_worker({"jobs.long": notes.wait_for_ever}, lease_ttl_seconds=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
    assert notes.started.acquire(timeout=30)
    outside = runledger_database.connect(autocommit=True)
    with outside.transaction():
        # Expired and taken by another worker before the next beat can see it.
        expire_lease(outside, job_id)
        outside.execute(
            "UPDATE runledger.job_queue SET worker_id = 'other', claim_number = claim_number + 1,"
            " attempt = attempt + 1, lease_expires_at = now() + interval '1 minute' WHERE id = %s",
            [job_id],
        )

    eventually(lambda: notes.seen == [CancelReason.LEASE_LOST])


def test_coroutine_that_swallows_its_cancellation_is_stuck_until_it_returns(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    doors: list[Callable[[], object]] = []
    ran = threading.Event()

    async def stubborn(_context: Any, _payload: Any) -> str:
        loop, door = asyncio.get_running_loop(), asyncio.Event()
        doors.append(lambda: loop.call_soon_threadsafe(door.set))
        while not door.is_set():
            try:
                await door.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    worker = start_worker(
        {"jobs.stuck": stubborn, "jobs.next": lambda *_: ran.set()},
        max_global_concurrency=1,
        handler_grace_seconds=0,
    )
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}, timeout_seconds=1)).id
    enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}))

    assert ran.wait(30)
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 1)
    doors[0]()
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 0)
    job = job_of(runledger_pool, job_id)
    assert (job.status, job.last_error_code) == (JobStatus.PENDING, "job.timeout_exceeded")


def test_coroutines_that_swallow_cancellation_end_the_worker_beyond_the_cap(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    doors: list[Callable[[], object]] = []

    async def stubborn(_context: Any, _payload: Any) -> None:
        loop, door = asyncio.get_running_loop(), asyncio.Event()
        doors.append(lambda: loop.call_soon_threadsafe(door.set))
        while not door.is_set():
            try:
                await door.wait()
            except asyncio.CancelledError:
                continue

    worker = start_worker({"jobs.stuck": stubborn}, handler_grace_seconds=0, max_stuck_handlers=1)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.stuck", {}, timeout_seconds=1)] * 2)

    eventually(lambda: bool(worker.exits))

    for door in doors:
        door()
    assert worker.exits == [TooManyStuckHandlers(2, 1)]


def test_coroutine_that_blocks_the_loop_costs_no_lease_and_is_reported(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes, release = Notes(), threading.Event()

    async def block(_context: Any, _payload: Any) -> None:
        notes.started.release()
        release.wait(60)

    worker = start_worker(
        {"jobs.waits": notes.wait_for_ever, "jobs.blocks": block}, lease_ttl_seconds=1
    )
    waits = enqueue_job(runledger_pool, JobEnqueue("jobs.waits", {})).id
    assert notes.started.acquire(timeout=30)
    blocks = enqueue_job(runledger_pool, JobEnqueue("jobs.blocks", {})).id
    assert notes.started.acquire(timeout=30)

    warning = "a coroutine blocks the event loop"
    eventually(lambda: any(text.startswith(warning) for text in caplog.messages))
    # The loop has been blocked for a whole lease now.
    alive = "SELECT count(*) FROM runledger.job_queue WHERE lease_expires_at > clock_timestamp()"
    assert look(alive) == 2
    release.set()
    eventually(lambda: job_of(runledger_pool, blocks).status is JobStatus.SUCCEEDED)
    assert job_of(runledger_pool, waits).status is JobStatus.LEASED
    (message,) = [text for text in caplog.messages if text.startswith(warning)]
    assert "in block" in message
    # The other would wait for ever.
    worker.stop.abort()


def test_attempt_that_a_blocked_loop_never_came_to_is_not_entered_later(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    blocked, release = threading.Event(), threading.Event()
    entered: list[int] = []

    async def block(_context: Any, _payload: Any) -> None:
        blocked.set()
        release.wait(60)

    async def enter(context: Any, _payload: Any) -> None:
        entered.append(context.attempt)

    worker = start_worker({"jobs.blocks": block, "jobs.next": enter}, handler_grace_seconds=0)
    enqueue_job(runledger_pool, JobEnqueue("jobs.blocks", {}))
    assert blocked.wait(30)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}, timeout_seconds=1)).id

    def is_given_up() -> bool:
        job = job_of(runledger_pool, job_id)
        return job.attempt == 1 and job.status is JobStatus.PENDING

    eventually(is_given_up)
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 1)
    release.set()

    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 0)
    assert entered == []
    assert job_of(runledger_pool, job_id).last_error_code == "job.timeout_exceeded"


def test_services_are_refused_on_the_loop_and_work_in_threads(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    refusals: list[str] = []

    async def handler(context: Any, _payload: Any) -> JobCompletion:
        def borrow() -> Any:
            with context.connection() as connection:
                return connection.execute("SELECT 7").fetchone()[0]

        for service in (
            lambda: context.progress(1, 2),
            lambda: context.log("INFO", "hello"),
            borrow,
            lambda: context.wait(0),
        ):
            try:
                service()
            except ValidationError as refused:
                refusals.append(refused.code)
        await asyncio.to_thread(context.progress, 1, 2, checkpoint="half")
        await asyncio.to_thread(context.log, "INFO", "hello")
        return JobCompletion.with_output(await asyncio.to_thread(borrow))

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert refusals == ["job.blocks_event_loop"] * 4
    assert (job.status, job.output, job.checkpoint) == (JobStatus.SUCCEEDED, 7, "half")
    assert [line.message for line in list_job_logs(runledger_pool, job.id, scope=Scope.ADMIN)] == [
        "hello"
    ]


def test_timeout_cancels_a_statement_that_the_coroutine_awaits_in_a_thread(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    ended: list[str] = []

    async def handler(context: Any, _payload: Any) -> None:
        def sleep() -> None:
            try:
                with context.connection() as connection:
                    connection.execute("SELECT pg_sleep(60)")
            except Exception as error:
                ended.append(type(error).__name__)
                raise

        await asyncio.to_thread(sleep)

    job = run_one(runledger_pool, start_worker, eventually, handler, timeout_seconds=1)

    eventually(lambda: ended == ["QueryCanceled"])
    assert job.last_error_code == "job.timeout_exceeded"


def test_child_task_that_is_left_behind_goes_on_and_is_refused_services(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    doors: list[Callable[[], object]] = []
    children: list[asyncio.Task[None]] = []
    refusals: list[CancelReason] = []

    async def child(context: Any) -> None:
        loop, door = asyncio.get_running_loop(), asyncio.Event()
        doors.append(lambda: loop.call_soon_threadsafe(door.set))
        await door.wait()
        try:
            await asyncio.to_thread(context.progress, 1)
        except JobCancelled as refused:
            refusals.append(refused.reason)

    async def handler(context: Any, _payload: Any) -> None:
        children.append(asyncio.create_task(child(context)))
        await asyncio.sleep(0)

    job = run_one(runledger_pool, start_worker, eventually, handler)
    doors[0]()

    eventually(lambda: refusals == [CancelReason.LEASE_LOST])
    assert job.status is JobStatus.SUCCEEDED


def test_end_of_the_worker_cancels_what_was_left_behind_and_ends_the_loop(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    ended: list[str] = []
    children: list[asyncio.Task[None]] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("child")

    async def handler(_context: Any, _payload: Any) -> None:
        children.append(asyncio.create_task(child()))
        await asyncio.sleep(0)

    worker = start_worker({"jobs.one": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
    eventually(lambda: bool(children))

    assert worker.end() is LoopExit.SHUTDOWN

    assert ended == ["child"]
    names = [thread.name for thread in threading.enumerate()]
    assert "runledger-event-loop" not in names


def test_more_coroutines_run_at_once_than_a_worker_has_threads(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    waiting: list[int] = []
    door: list[asyncio.Event] = []

    async def handler(_context: Any, _payload: Any) -> None:
        if not door:
            door.append(asyncio.Event())
        waiting.append(1)
        if len(waiting) == 200:
            door[0].set()
        await door[0].wait()

    start_worker({"jobs.many": handler}, max_global_concurrency=200)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.many", {})] * 200)

    succeeded = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
    eventually(lambda: look(succeeded) == 200)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("runledger-handler-")]
    assert names.count("runledger-event-loop") == 1


def test_no_more_coroutines_run_at_once_than_the_worker_may(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    running: list[int] = [0]
    most: list[int] = [0]

    async def handler(_context: Any, _payload: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.01)
        running[0] -= 1

    start_worker({"jobs.many": handler}, max_global_concurrency=3)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.many", {})] * 30)

    succeeded = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
    eventually(lambda: look(succeeded) == 30)
    assert most == [3]


def test_abort_of_a_stop_cancels_coroutines_and_uses_up_no_attempt(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    notes = Notes()
    worker = start_worker({"jobs.long": notes.wait_for_ever})
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.long", {})] * 3)
    for _ in range(3):
        assert notes.started.acquire(timeout=30)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert notes.seen == [CancelReason.SHUTDOWN] * 3
    given_back = (
        "SELECT count(*) FROM runledger.job_queue"
        " WHERE status = 'PENDING' AND attempt = 0 AND worker_id IS NULL"
    )
    assert look(given_back) == 3
    assert look("SELECT count(*) FROM runledger.job_attempts") == 0
