"""Stopping: claims end, running jobs end, nothing stays leased."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import InvalidConfig, LoopExit
from runledger_runtime.registry import JobRegistry
from runledger_runtime.shutdown import StopToken
from runledger_runtime.worker import run_worker_loop

Eventually = Callable[[Callable[[], bool]], None]


@pytest.mark.core
def test_stop_drains_running_jobs_and_leaves_the_rest_pending(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    started, release = threading.Event(), threading.Event()

    def handler(_context: Any, _payload: Any) -> None:
        started.set()
        release.wait(30)

    worker = start_worker({"jobs.long": handler}, max_global_concurrency=1)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.long", {}) for _ in range(3)])
    assert started.wait(30)

    worker.stop.request("test")
    release.set()

    assert worker.end() is LoopExit.SHUTDOWN
    counts = "SELECT count(*) FROM runledger.job_queue WHERE status::text = %s"
    assert [look(counts, status) for status in ("SUCCEEDED", "PENDING", "LEASED")] == [1, 2, 0]
    assert look("SELECT count(*) FROM runledger.job_workers") == 0


@pytest.mark.parametrize("ttl_seconds", [1, 2])
def test_leases_are_kept_through_a_drain_of_three_ttls(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, ttl_seconds: int
) -> None:
    started = threading.Semaphore(0)

    def handler(_context: Any, _payload: Any) -> None:
        started.release()
        threading.Event().wait(3.0 * ttl_seconds)

    settings = {"lease_ttl_seconds": ttl_seconds, "max_global_concurrency": 8}
    worker = start_worker({"jobs.long": handler}, **settings)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.long", {}) for _ in range(8)])
    for _ in range(8):
        assert started.acquire(timeout=30)

    assert worker.end() is LoopExit.SHUTDOWN

    ended = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
    assert look(ended) == 8
    assert look("SELECT max(claim_number) FROM runledger.job_queue") == 1


def test_loop_started_after_a_stop_asks_the_database_nothing() -> None:
    stop = StopToken()
    stop.request("before")
    pool: ConnectionPool[Any] = ConnectionPool(open=False)

    assert run_worker_loop(pool, JobRegistry(), JobsConfig(), stop) is LoopExit.SHUTDOWN


def test_invalid_settings_are_refused_without_a_connection() -> None:
    pool: ConnectionPool[Any] = ConnectionPool(open=False)

    ended = run_worker_loop(pool, JobRegistry(), JobsConfig(lease_ttl_seconds=0), StopToken())

    assert isinstance(ended, InvalidConfig)
    assert ended.error.code == "config.invalid_lease_ttl_seconds"


def test_worker_without_handlers_waits_for_the_stop() -> None:
    stop = StopToken()
    pool: ConnectionPool[Any] = ConnectionPool(open=False)
    ended: list[object] = []
    thread = threading.Thread(
        target=lambda: ended.append(run_worker_loop(pool, JobRegistry(), JobsConfig(), stop))
    )
    thread.start()

    stop.request("test")

    thread.join(10)
    assert ended == [LoopExit.SHUTDOWN]


def test_twenty_start_stop_cycles_leave_no_threads(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    ran: list[int] = []
    before: int | None = None
    for cycle in range(20):
        worker = start_worker({"jobs.one": lambda *_: ran.append(1)})
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
        eventually(lambda expected=cycle + 1: len(ran) == expected)
        worker.end()
        if before is None:
            before = threading.active_count()

    assert before is not None
    eventually(lambda: threading.active_count() <= before)
