"""Behind a pooler in transaction mode everything works; a direct address brings wake-ups back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobContext, JobEnqueue, JobFailure, JobStatus, Scope
from runledger_postgres import connect_pool, count_jobs_by_status, enqueue_job, enqueue_jobs
from runledger_postgres.wakeup import SLEEP_MARK_CLASS
from runledger_runtime.worker import _wakeup
from runledger_test_support import DatabaseServer, Pooler, TemporaryDatabase
from runledger_test_support.pooler import find_pgbouncer, provide_pooler

pytestmark = [
    pytest.mark.pgbouncer,
    pytest.mark.skipif(find_pgbouncer() is None, reason="pgbouncer is not installed"),
]
# How many job types idle workers have marked; only one with a proven listener does.
MARKS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND classid = %s AND database = (
    SELECT oid FROM pg_database WHERE datname = current_database()
)
"""
Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture(scope="module")
def pooler(runledger_server: DatabaseServer, runledger_pooler: Pooler | None) -> Iterator[Pooler]:
    """The pooler of the session, or one for this module."""
    if runledger_pooler is not None:
        yield runledger_pooler
        return
    with provide_pooler(runledger_server) as own:
        yield own


@pytest.fixture
def pooled(pooler: Pooler, runledger_database: TemporaryDatabase) -> Iterator[ConnectionPool[Any]]:
    """A pool behind the pooler, which keeps no prepared statements."""
    dsn = pooler.dsn(runledger_database.direct_dsn)
    with connect_pool(dsn, prepare_threshold=None) as pool:
        yield pool


def test_worker_behind_a_pooler_runs_jobs_and_listens_at_the_direct_address(
    pooled: ConnectionPool[Any],
    runledger_database: TemporaryDatabase,
    look: Any,
    start_worker: Any,
    eventually: Eventually,
) -> None:
    ran: list[Any] = []

    def handler(context: JobContext, payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SELECT 1")
        context.progress(1, 2)
        context.log("INFO", "ran")
        ran.append(payload)
        if payload == 0 and context.attempt == 1:
            raise JobFailure.retryable("test.again", "busy")

    start_worker(
        {"jobs.one": handler},
        pool=pooled,
        poll_interval_ms=60_000,
        direct_database_url=runledger_database.direct_dsn,
    )
    enqueue_jobs(pooled, [JobEnqueue("jobs.one", number) for number in range(50)])
    eventually(lambda: len(ran) == 51)
    eventually(lambda: count_jobs_by_status(pooled, scope=Scope.ADMIN)[JobStatus.SUCCEEDED] == 50)

    eventually(lambda: look(MARKS, SLEEP_MARK_CLASS) == 1)
    enqueue_job(pooled, JobEnqueue("jobs.one", "woken"))
    eventually(lambda: "woken" in ran)


@pytest.fixture
def attentive_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that knows at once what takes it ten seconds."""
    monkeypatch.setattr(_wakeup, "_ROUND_TRIP_SECONDS", 0.05)
    monkeypatch.setattr(_wakeup, "_ECHO_SECONDS", 0.1)


@pytest.mark.usefixtures("attentive_listener")
def test_worker_that_hears_nothing_polls(
    pooled: ConnectionPool[Any],
    look: Any,
    start_worker: Any,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[Any] = []
    start_worker(
        {"jobs.one": lambda _context, payload: ran.append(payload)},
        pool=pooled,
        poll_interval_ms=100,
        direct_database_url=None,
    )
    enqueue_job(pooled, JobEnqueue("jobs.one", "first"))
    eventually(lambda: ran == ["first"])
    enqueue_job(pooled, JobEnqueue("jobs.one", "second"))

    eventually(lambda: ran == ["first", "second"])
    eventually(lambda: "JOBS_DIRECT_DATABASE_URL" in caplog.text)
    assert look(MARKS, SLEEP_MARK_CLASS) == 0
