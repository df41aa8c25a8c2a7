"""Aborting a stop: handlers that still run are told, and what they do then counts."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from psycopg_pool import ConnectionPool

from runledger_core import CancelReason, JobCompletion, JobEnqueue
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime.errors import LoopExit


def test_stop_tells_handlers_nothing_until_it_is_aborted(
    runledger_pool: ConnectionPool[Any], start_worker: Any
) -> None:
    began = threading.Semaphore(0)
    reasons: SimpleQueue[CancelReason | None] = SimpleQueue()

    def handler(context: Any, _payload: Any) -> None:
        began.release()
        context.wait(60)
        reasons.put(context.cancel_reason)

    worker = start_worker({"jobs.patient": handler}, max_global_concurrency=3)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.patient", {})] * 3)
    for _ in range(3):
        assert began.acquire(timeout=30)

    worker.stop.request("test")
    worker.thread.join(0.5)
    assert reasons.empty()
    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert [reasons.get(timeout=30) for _ in range(3)] == [CancelReason.SHUTDOWN] * 3


def test_work_on_a_lent_connection_ends_with_the_abort(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, eventually: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SELECT pg_sleep(60)")

    worker = start_worker({"jobs.busy": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.busy", {}))
    sleeping = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event = 'PgSleep'"
    )
    eventually(lambda: look(sleeping) == 1)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    eventually(lambda: look(sleeping) == 0)


def test_result_that_a_handler_returns_after_the_abort_is_stored(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    began = threading.Event()

    def handler(context: Any, _payload: Any) -> JobCompletion:
        began.set()
        context.wait(60)
        return JobCompletion.with_output({"told": str(context.cancel_reason)})

    worker = start_worker({"jobs.patient": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.patient", {}))
    assert began.wait(30)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert look("SELECT status::text FROM runledger.job_queue") == "SUCCEEDED"
    assert look("SELECT output FROM runledger.job_queue") == {"told": "SHUTDOWN"}


def test_handler_that_leaves_after_the_abort_is_tried_again_and_holds_no_lease(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    began = threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        began.set()
        context.wait(60)
        context.raise_if_cancelled()

    worker = start_worker({"jobs.patient": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.patient", {}))
    assert began.wait(30)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert look("SELECT status::text FROM runledger.job_queue") == "PENDING"
    assert look("SELECT count(*) FROM runledger.job_workers") == 0


def test_handler_that_ignores_the_abort_is_given_up_after_the_grace(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    began, release = threading.Event(), threading.Event()

    def handler(_context: Any, _payload: Any) -> None:
        began.set()
        release.wait(60)

    worker = start_worker({"jobs.deaf": handler}, handler_grace_seconds=0)
    enqueue_job(runledger_pool, JobEnqueue("jobs.deaf", {}))
    assert began.wait(30)

    worker.stop.abort()

    # Its lease runs out by itself: nobody can tell what the handler still does.
    assert worker.end() is LoopExit.SHUTDOWN
    release.set()
    assert look("SELECT status::text FROM runledger.job_queue") == "LEASED"
