"""Calls of `asyncio.to_thread` that go on after their job count as stuck, as handlers do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_runtime.errors import TooManyStuckHandlers
from runledger_runtime.health import LoopState

Eventually = Callable[[Callable[[], bool]], None]
MOST_THREADS = 32


class Door:
    """What calls wait behind, each in a thread of its own."""

    def __init__(self) -> None:
        self.is_open = threading.Event()

    def wait(self) -> None:
        self.is_open.wait(60)

    async def handler(self, _context: Any, _payload: Any) -> None:
        await asyncio.to_thread(self.wait)


def stuck_handlers(worker: Any) -> int:
    return worker.health.status(LoopState.RUNNING).stuck_handlers


def test_call_that_outlasts_its_job_is_stuck_until_it_returns(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    door = Door()
    worker = start_worker({"jobs.waits": door.handler}, handler_grace_seconds=0)
    request = JobEnqueue("jobs.waits", {}, timeout_seconds=1, max_attempts=1)
    job_id = enqueue_job(runledger_pool, request).id

    def job() -> Any:
        return get_job(runledger_pool, job_id, scope=Scope.ADMIN)

    eventually(lambda: job().status is JobStatus.DEAD_LETTERED)
    assert job().last_error_code == "job.timeout_exceeded"
    eventually(lambda: stuck_handlers(worker) == 1)
    door.is_open.set()
    eventually(lambda: stuck_handlers(worker) == 0)


def test_calls_that_are_stuck_in_every_thread_keep_no_other_job_waiting(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    door, ran = Door(), threading.Event()

    async def quick(_context: Any, _payload: Any) -> None:
        await asyncio.to_thread(ran.set)

    worker = start_worker(
        {"jobs.waits": door.handler, "jobs.quick": quick},
        handler_grace_seconds=0,
        max_stuck_handlers=MOST_THREADS,
        max_global_concurrency=MOST_THREADS + 1,
    )
    stuck = JobEnqueue("jobs.waits", {}, timeout_seconds=1, max_attempts=1)
    enqueue_jobs(runledger_pool, [stuck] * MOST_THREADS)
    eventually(lambda: stuck_handlers(worker) == MOST_THREADS)

    enqueue_job(runledger_pool, JobEnqueue("jobs.quick", {}))

    try:
        assert ran.wait(10)
    finally:
        door.is_open.set()


def test_stuck_calls_end_the_worker_beyond_the_cap(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    door = Door()
    worker = start_worker(
        {"jobs.waits": door.handler}, handler_grace_seconds=0, max_stuck_handlers=1
    )
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.waits", {}, timeout_seconds=1)] * 2)

    eventually(lambda: bool(worker.exits))

    door.is_open.set()
    assert worker.exits == [TooManyStuckHandlers(2, 1)]
