"""A database that is away for minutes: afterwards every loop and the user's pool go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from _faults import SUCCEEDED, Outside, define, eventually, passes, run_again_at_once, supervised
from psycopg_pool import ConnectionPool

from runledger_core import CancelReason, JobEnqueue
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_test_support import FaultProxy, ProxyMode, TemporaryDatabase

RECOVERY_SECONDS = 10
MARKS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
LONG_DONE = """
SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED' AND job_type = 'jobs.long'
"""
SEEN_SINCE = "SELECT count(*) FROM runledger.job_workers WHERE last_seen_at > %s"


def pool_behind(proxy: FaultProxy, *, reconnect_seconds: int) -> ConnectionPool[Any]:
    """Return a pool that goes through its own reconnect timeout while the database is away."""
    return ConnectionPool(
        proxy.dsn,
        min_size=2,
        max_size=4,
        reconnect_timeout=reconnect_seconds,
        kwargs={"connect_timeout": 5},
        open=True,
    )


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_outage_of_minutes_is_over_ten_seconds_after_the_database_is_back(
    runledger_database: TemporaryDatabase,
    scaled: Callable[..., int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    observing = runledger_database.connect_directly(autocommit=True)
    outside = Outside(observing)
    define(observing, "jobs.long", "jobs.short")
    began, told, reasons = threading.Event(), threading.Event(), list[Any]()

    def outlast(context: Any, _payload: Any) -> None:
        if context.attempt > 1:
            return
        began.set()
        context.wait(600)
        reasons.append(context.cancel_reason)
        told.set()

    handlers = {"jobs.long": outlast, "jobs.short": lambda *_: None}
    with (
        FaultProxy(runledger_database.direct_dsn) as proxy,
        pool_behind(proxy, reconnect_seconds=scaled(ci=1, full=10)) as pool,
        supervised(pool, handlers) as running,
    ):
        eventually(lambda: outside.value(MARKS) == 2)
        lost = enqueue_job(pool, JobEnqueue("jobs.long", {})).id
        enqueue_jobs(pool, [JobEnqueue("jobs.short", {})] * 10)
        assert began.wait(30)
        eventually(lambda: outside.value(SUCCEEDED) == 10)

        caplog.set_level(logging.WARNING, "runledger_runtime")
        proxy.set_mode(ProxyMode.RESET)
        proxy.set_mode(ProxyMode.REFUSE)
        away_since = time.monotonic()
        assert told.wait(30)
        with pytest.raises(psycopg.OperationalError), pool.connection(timeout=1) as connection:
            connection.execute("SELECT 1")
        enqueue_jobs(observing, [JobEnqueue("jobs.short", {})] * 10)
        threading.Event().wait(away_since + scaled(ci=4, full=300) - time.monotonic())
        health = running.health()
        logged = len(caplog.records)
        back_at = datetime.now(UTC)
        back_at_server = outside.value("SELECT clock_timestamp()")
        proxy.set_mode(ProxyMode.PASS)
        eventually(
            lambda: (
                all(seen is not None and seen > back_at for seen in passes(running).values())
                and outside.value(SEEN_SINCE, back_at_server)
                and outside.value(SUCCEEDED) == 20 + outside.value(LONG_DONE)
            ),
            seconds=RECOVERY_SECONDS,
        )
        enqueue_job(pool, JobEnqueue("jobs.short", {}))
        run_again_at_once(observing, lost)
        eventually(lambda: outside.value(SUCCEEDED) == 22)
        eventually(lambda: outside.value(MARKS) == 2)

    assert all(loop.consecutive_errors > 2 for loop in health.loops), health
    assert reasons == [CancelReason.LEASE_LOST]
    assert logged <= scaled(ci=12, full=40), [record.message for record in caplog.records]
