"""An idle worker is woken; it holds no transaction while it waits or while handlers run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, Scope
from runledger_postgres import cancel_job, enqueue_job
from runledger_runtime.health import LoopState

Eventually = Callable[[Callable[[], bool]], None]

SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
# A sleeping worker holds a shared advisory lock for each of its types.
MARKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
LISTENER = """
SELECT max(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'runledger listener'
"""
OLD_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND xact_start < clock_timestamp() - interval '500 milliseconds'
"""
COMMIT_GATE = """
CREATE FUNCTION public.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER gate AFTER UPDATE ON runledger.job_queue
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status = 'PENDING' AND NEW.status = 'LEASED')
    EXECUTE FUNCTION public.wait_at_gate();
"""
# Longer than a test waits: what runs meanwhile was woken.
ASLEEP_MS = 120_000


@pytest.mark.core
def test_listener_that_was_killed_comes_back_and_the_worker_is_woken_again(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    worker = start_worker({"jobs.one": lambda _context, _payload: None}, poll_interval_ms=ASLEEP_MS)
    eventually(lambda: look(MARKS) == 1)
    assert worker.health.status(LoopState.RUNNING).is_woken is True

    for number in range(1, 4):
        listener = look(LISTENER)
        assert look("SELECT pg_terminate_backend(%s)", listener)
        eventually(lambda old=listener: look(LISTENER) not in {None, old})
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
        eventually(lambda number=number: look(SUCCEEDED) == number)


def test_direct_address_that_leads_nowhere_is_told_once_and_jobs_are_polled_for(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = start_worker(
        {"jobs.one": lambda _context, _payload: None},
        direct_database_url="postgresql://127.0.0.1:1/nowhere?connect_timeout=1",
        poll_interval_ms=50,
    )
    for number in range(1, 4):
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
        eventually(lambda number=number: look(SUCCEEDED) == number)

    unheard = "notifications cannot be listened for, so jobs are found by polling only"
    eventually(lambda: any(record.getMessage() == unheard for record in caplog.records))
    (told,) = [record for record in caplog.records if record.getMessage() == unheard]
    assert told.levelno == logging.WARNING
    assert "refused" in vars(told)["reason"]
    assert worker.health.status(LoopState.RUNNING).is_woken is False


def test_cancel_that_nobody_heard_is_seen_once_the_listener_is_back(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    started, told = threading.Event(), threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        started.set()
        if context.wait(30):
            told.set()

    # The next beat of its own would come after 200 seconds.
    start_worker({"jobs.long": handler}, lease_ttl_seconds=600)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
    assert started.wait(30)
    allow = """
    UPDATE pg_database SET datallowconn = %s WHERE datname = current_database() RETURNING 1
    """

    assert look(allow, False)
    assert look("SELECT pg_terminate_backend(%s, 5000)", look(LISTENER))
    cancel_job(runledger_pool, job_id, scope=Scope.ADMIN)
    assert not told.is_set()
    assert look(allow, True)

    assert told.wait(30)


@pytest.mark.core
def test_no_transaction_is_open_while_handlers_run(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    started, release = threading.Event(), threading.Event()

    def handler(_context: Any, _payload: Any) -> None:
        started.set()
        release.wait(30)

    start_worker({"jobs.long": handler}, lease_ttl_seconds=1)
    enqueue_job(runledger_pool, JobEnqueue("jobs.long", {}))
    assert started.wait(30)
    beat = look("SELECT last_heartbeat_at FROM runledger.job_queue")

    for _ in range(3):
        eventually(
            lambda last=beat: look("SELECT last_heartbeat_at FROM runledger.job_queue") > last
        )
        beat = look("SELECT last_heartbeat_at FROM runledger.job_queue")
        assert look(OLD_TRANSACTIONS) == 0

    release.set()
    eventually(lambda: look(SUCCEEDED) == 1)


@pytest.mark.core
def test_claim_that_is_answered_after_the_stop_gives_its_attempt_back(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    ran: list[object] = []
    worker = start_worker({"jobs.one": lambda _context, payload: ran.append(payload)})
    eventually(lambda: look(MARKS) == 1)
    with runledger_database.connect() as gate:
        # The commit of a claim waits at this gate: its reply comes when the stop is known.
        gate.execute(COMMIT_GATE)
        gate.commit()
        gate.execute("SELECT pg_advisory_xact_lock(7)")
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
        eventually(lambda: look("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        worker.stop.request("test")
        gate.rollback()

    worker.end()

    assert ran == []
    job = look("SELECT (status::text, attempt, claim_number) FROM runledger.job_queue")
    assert job == ("PENDING", "0", "1")
    assert look("SELECT payload ->> 'kind' FROM runledger.job_events") == "RELEASE"
