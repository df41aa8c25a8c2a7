"""How many handlers run at once, and when the next jobs are claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime.errors import LoopExit

Eventually = Callable[[Callable[[], bool]], None]

COUNT = "SELECT count(*) FROM runledger.job_queue WHERE status::text = %s"
# Longer than any test waits: nothing may depend on it.
NEVER_POLLS: dict[str, Any] = {"poll_interval_ms": 120_000, "wakeups": False}


def test_no_more_handlers_run_at_once_than_there_are_slots(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    lock, release = threading.Lock(), threading.Event()
    running, most = 0, 0

    def handler(_context: Any, _payload: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        release.wait(30)
        with lock:
            running -= 1

    enqueued = [JobEnqueue("jobs.long", {})] * 12
    worker = start_worker({"jobs.long": handler}, max_global_concurrency=3)
    enqueue_jobs(runledger_pool, enqueued)
    eventually(lambda: running == 3)

    assert look(COUNT, "LEASED") == 3
    release.set()

    eventually(lambda: look(COUNT, "SUCCEEDED") == 12)
    assert most == 3
    assert worker.end() is LoopExit.SHUTDOWN


def test_handlers_that_crash_give_their_slots_back(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    def crash(_context: Any, _payload: Any) -> None:
        raise SystemExit

    handlers = {"jobs.crash": crash, "jobs.good": lambda *_: None}
    start_worker(handlers, max_global_concurrency=1)
    jobs = [JobEnqueue("jobs.crash", {})] * 5 + [JobEnqueue("jobs.good", {})]
    enqueue_jobs(runledger_pool, jobs)

    eventually(lambda: look(COUNT, "SUCCEEDED") == 1)
    eventually(lambda: look(COUNT, "DEAD_LETTERED") == 5)


def test_full_batch_is_followed_by_the_next_claim_without_a_poll(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    # Once before, for the definition: the jobs must be there when the worker starts.
    settings = NEVER_POLLS | {"claim_batch_size": 2}
    first = start_worker({"jobs.one": lambda *_: None})
    first.end()
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {})] * 40)

    start_worker({"jobs.one": lambda *_: None}, **settings)

    eventually(lambda: look(COUNT, "SUCCEEDED") == 40)


def test_freed_slot_is_filled_without_a_poll(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    first = start_worker({"jobs.one": lambda *_: None})
    first.end()
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {})] * 40)

    start_worker({"jobs.one": lambda *_: None}, max_global_concurrency=1, **NEVER_POLLS)

    eventually(lambda: look(COUNT, "SUCCEEDED") == 40)


def test_stop_of_a_worker_without_a_free_slot_waits_for_no_poll(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    began, release = threading.Event(), threading.Event()

    def handler(_context: Any, _payload: Any) -> None:
        began.set()
        release.wait(30)

    first = start_worker({"jobs.long": handler})
    first.end()
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.long", {})] * 2)
    worker = start_worker({"jobs.long": handler}, max_global_concurrency=1, **NEVER_POLLS)
    assert began.wait(30)

    worker.stop.request("test")
    release.set()

    assert worker.end() is LoopExit.SHUTDOWN
    assert [look(COUNT, status) for status in ("SUCCEEDED", "PENDING")] == [1, 1]


def test_heartbeat_does_not_wait_for_a_row_that_its_own_handler_holds(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.execute(
                "SELECT FROM runledger.job_queue WHERE id = %s FOR UPDATE", [context.job_id]
            )
            # Past the beat, which comes after a third of the lease.
            assert not context.wait(1.5)
        context.progress(1, 2)

    start_worker({"jobs.holds": handler}, lease_ttl_seconds=3)
    enqueue_job(runledger_pool, JobEnqueue("jobs.holds", {}))

    eventually(lambda: look(COUNT, "SUCCEEDED") == 1)
    assert look("SELECT claim_number FROM runledger.job_queue") == 1


@pytest.mark.parametrize("code", ["job.lease_owner_mismatch", "job.lease_expired"])
def test_failure_under_a_code_of_the_engines_is_an_ordinary_failure(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    code: str,
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise JobFailure.retryable(code, "of the handler")

    start_worker({"jobs.one": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))

    eventually(lambda: look("SELECT count(*) FROM runledger.job_attempts") == 1)
    assert look("SELECT outcome::text FROM runledger.job_attempts") == "RETRYABLE"
    assert look("SELECT last_error_code FROM runledger.job_queue") == code
    assert look("SELECT status::text FROM runledger.job_queue") == "PENDING"
