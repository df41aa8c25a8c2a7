"""What an aborted stop does to attempts: none is used up by it, if the database can be reached."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCancelled, JobEnqueue, JobFailure
from runledger_postgres import connect_pool, enqueue_job, enqueue_jobs
from runledger_postgres.errors import QueryError, QueryInternalError, QueryUnavailableError
from runledger_postgres.lifecycle import WriteVerdict, give_back_jobs, run_worker_round
from runledger_runtime.errors import LoopExit
from runledger_runtime.worker import _link
from runledger_runtime.worker._link import PumpLink

SLEEPING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event = 'PgSleep'"
)
GOES_BACK_SLOWLY = """
CREATE FUNCTION public.slowly() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(60);
    RETURN NEW;
END $$;
CREATE TRIGGER slowly BEFORE UPDATE ON runledger.job_queue FOR EACH ROW
    WHEN (NEW.job_type = 'jobs.leaves' AND OLD.status = 'LEASED' AND NEW.status = 'PENDING')
    EXECUTE FUNCTION public.slowly();
"""
STATE = (
    "SELECT status::text || ' ' || attempt || ' ' || coalesce(last_error_code, '-')"
    " FROM runledger.job_queue"
)


def abort_in(start_worker: Any, pool: ConnectionPool[Any], leave: Any) -> None:
    """Run a job until it waits, abort the stop, and have it left by `leave`."""
    began = threading.Event()

    def handler(context: Any, payload: Any) -> None:
        began.set()
        assert context.wait(60)
        leave(context)

    worker = start_worker({"jobs.patient": handler})
    enqueue_job(pool, JobEnqueue("jobs.patient", {}))
    assert began.wait(30)
    worker.stop.abort()
    assert worker.end() is LoopExit.SHUTDOWN


@pytest.mark.core
def test_handler_that_leaves_when_told_gets_its_attempt_back(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    abort_in(start_worker, runledger_pool, lambda context: context.raise_if_cancelled())

    assert look(STATE) == "PENDING 0 -"
    assert look("SELECT count(*) FROM runledger.job_attempts") == 0
    assert look("SELECT status_reason FROM runledger.job_queue") == "SHUTDOWN"


def test_handler_whose_tasks_leave_together_when_told_gets_its_attempt_back(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    def leave(context: Any) -> None:
        told = JobCancelled(context.cancel_reason)
        raise ExceptionGroup("tasks", [told, ExceptionGroup("inner", [told])])

    abort_in(start_worker, runledger_pool, leave)

    assert look(STATE) == "PENDING 0 -"


def test_statement_that_the_abort_cancelled_uses_up_no_attempt(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, eventually: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SELECT pg_sleep(60)")

    worker = start_worker({"jobs.busy": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.busy", {}))
    eventually(lambda: look(SLEEPING) == 1)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert look(STATE) == "PENDING 0 -"


def test_error_of_its_own_that_a_handler_raises_of_the_cancelled_statement_uses_up_no_attempt(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, eventually: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        try:
            with context.connection() as connection:
                connection.execute("SELECT pg_sleep(60)")
        except psycopg.Error as error:
            raise LookupError("no such customer") from error

    worker = start_worker({"jobs.busy": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.busy", {}, max_attempts=1))
    eventually(lambda: look(SLEEPING) == 1)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert look(STATE) == "PENDING 0 -"


def test_row_that_another_transaction_holds_for_a_moment_uses_up_no_attempt(  # noqa: PLR0917  # fixtures
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    look: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = threading.Event()
    verdicts: list[WriteVerdict] = []

    def give_back(*arguments: Any, **keywords: Any) -> list[WriteVerdict]:
        verdicts.extend(given := give_back_jobs(*arguments, **keywords))
        return given

    def handler(context: Any, _payload: Any) -> None:
        began.set()
        assert context.wait(60)
        context.raise_if_cancelled()

    monkeypatch.setattr(_link, "give_back_jobs", give_back)
    worker = start_worker({"jobs.patient": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.patient", {}))
    assert began.wait(30)
    holder = runledger_database.connect()
    holder.execute("SELECT FROM runledger.job_queue FOR UPDATE")

    worker.stop.abort()
    eventually(lambda: len(verdicts) >= 2)
    holder.rollback()

    assert worker.end() is LoopExit.SHUTDOWN
    assert set(verdicts[:-1]) == {WriteVerdict.BUSY}
    assert look(STATE) == "PENDING 0 -"


def test_claim_that_goes_back_slowly_does_not_keep_results_from_being_stored(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, eventually: Any
) -> None:
    began, ends = threading.Semaphore(0), threading.Event()

    def leaves(context: Any, _payload: Any) -> None:
        began.release()
        assert context.wait(60)
        context.raise_if_cancelled()

    def ends_later(_context: Any, _payload: Any) -> None:
        began.release()
        assert ends.wait(60)

    with runledger_pool.connection() as connection:
        connection.execute(GOES_BACK_SLOWLY)
    worker = start_worker({"jobs.leaves": leaves, "jobs.ends": ends_later}, lease_ttl_seconds=3)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.leaves", {}), JobEnqueue("jobs.ends", {})])
    for _ in range(2):
        assert began.acquire(timeout=30)
    worker.stop.abort()
    eventually(lambda: look(SLEEPING) == 1)

    ends.set()

    status = "SELECT status::text FROM runledger.job_queue WHERE job_type = 'jobs.ends'"
    eventually(lambda: look(status) == "SUCCEEDED")
    with runledger_pool.connection() as connection:
        connection.execute("DROP TRIGGER slowly ON runledger.job_queue")
    assert worker.end() is LoopExit.SHUTDOWN


def test_abort_tries_a_server_that_was_away_at_once(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, ends, is_away = threading.Event(), threading.Event(), threading.Event()
    next_tries: list[float] = []
    lost = PumpLink.lost

    def run_if_there(*arguments: Any, **named: Any) -> Any:
        if is_away.is_set():
            raise QueryUnavailableError("db.unavailable", "away")
        return run_worker_round(*arguments, **named)

    def note_next_try(link: PumpLink, error: QueryError) -> None:
        lost(link, error)
        next_tries.append(time.monotonic() + link.seconds_until_retry())

    def handler(_context: Any, _payload: Any) -> None:
        began.set()
        assert ends.wait(30)

    monkeypatch.setattr(_link, "run_worker_round", run_if_there)
    monkeypatch.setattr(PumpLink, "lost", note_next_try)
    worker = start_worker({"jobs.one": handler}, wakeups=False)
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
    assert began.wait(30)
    is_away.set()
    ends.set()
    worker.stop.request("first signal")
    eventually(lambda: bool(next_tries) and next_tries[-1] > time.monotonic() + 1.5)
    is_away.clear()

    worker.stop.abort()
    assert worker.end() is LoopExit.SHUTDOWN

    assert time.monotonic() < next_tries[-1]


def test_server_that_stays_away_is_tried_again_and_again_after_an_abort() -> None:
    link = PumpLink(None, None, worker_id="w", lease_ttl_seconds=60)  # type: ignore[arg-type]  # not used
    link.hurry()
    for _ in range(8):
        link.lost(QueryUnavailableError("db.unavailable", "away"))

    assert 0.01 < link.seconds_until_retry() <= 0.05


def test_threads_and_connections_that_handlers_hold_cost_the_others_no_attempt(
    runledger_database: Any, runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    began, release = threading.Semaphore(0), threading.Event()

    def call() -> None:
        began.release()
        release.wait(60)

    async def calls(_context: Any, _payload: Any) -> None:
        await asyncio.to_thread(call)

    def deaf(context: Any, _payload: Any) -> None:
        with context.connection():
            call()

    with connect_pool(runledger_database.dsn, min_size=1, max_size=1) as pool:
        worker = start_worker(
            {"jobs.calls": calls, "jobs.deaf": deaf}, pool=pool, max_global_concurrency=40
        )
        enqueue_jobs(
            runledger_pool, [JobEnqueue("jobs.deaf", {}), *[JobEnqueue("jobs.calls", {})] * 32]
        )
        for _ in range(33):
            assert began.acquire(timeout=30)

        worker.stop.abort()

        given_back = "SELECT count(*) FROM runledger.job_queue WHERE status = 'PENDING'"
        give_up_at = time.monotonic() + 3
        while look(given_back) < 32 and time.monotonic() < give_up_at:
            time.sleep(0.02)
        assert look(given_back) == 32
        assert look("SELECT sum(attempt) FROM runledger.job_queue WHERE status = 'PENDING'") == 0
        release.set()
        worker.end()


@pytest.mark.parametrize("stores", ["progress", "log", "log of the last attempt"])
def test_attempt_that_has_stored_something_is_given_back_with_it(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, stores: str
) -> None:
    began = threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        if stores == "progress":
            context.progress(1, 2, checkpoint={"page": 1})
        else:
            context.log("INFO", "begun")
        began.set()
        context.wait(60)
        context.raise_if_cancelled()

    worker = start_worker({"jobs.patient": handler})
    most = 1 if "last" in stores else 3
    enqueue_job(runledger_pool, JobEnqueue("jobs.patient", {}, max_attempts=most))
    assert began.wait(30)

    worker.stop.abort()

    assert worker.end() is LoopExit.SHUTDOWN
    assert look(STATE) == "PENDING 0 -"
    if stores == "progress":
        kept = (
            "SELECT progress_done || '/' || progress_total || checkpoint FROM runledger.job_queue"
        )
        assert look(kept) == '1/2{"page": 1}'
    else:
        assert look("SELECT count(*) FROM runledger.job_logs") == 1


def test_failure_of_its_own_counts_though_the_handler_was_told(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    def fail(_context: Any) -> None:
        raise JobFailure.terminal("test.no", "no")

    abort_in(start_worker, runledger_pool, fail)

    assert look(STATE) == "DEAD_LETTERED 1 test.no"


def test_attempt_is_given_back_though_the_pool_is_closed(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    def leave(context: Any) -> None:
        runledger_pool.close()
        context.raise_if_cancelled()

    abort_in(start_worker, runledger_pool, leave)

    assert look(STATE) == "PENDING 0 -"


def test_attempt_that_cannot_be_given_back_is_on_record_and_tried_again(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    look: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: object, **_keywords: object) -> None:
        raise QueryInternalError("db.check_violation", "refused")

    monkeypatch.setattr(_link, "give_back_jobs", fail)

    abort_in(start_worker, runledger_pool, lambda context: context.raise_if_cancelled())

    assert look(STATE) == "PENDING 1 job.worker_shutdown"
