"""Tables that a host has locked: nothing of ours that waited for them stays on the server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec, JobEnqueue, JobLease
from runledger_postgres import WorkerState, enqueue_job
from runledger_postgres.definitions import upsert_job_definition
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import claim_jobs
from runledger_runtime.engine import EngineConnections
from runledger_runtime.worker import _wakeup
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution
from runledger_runtime.worker._lease_keeper import LeaseKeeper
from runledger_runtime.worker._link import PumpLink
from runledger_test_support import TemporaryDatabase

Eventually = Callable[[Callable[[], bool]], None]

# What waits has a second, and half of it before the server is asked to cancel.
TTL_OF_ONE_SECOND = 3
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
BEAT = "SELECT last_heartbeat_at FROM runledger.job_queue"
SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
MARKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
STRANGER = "SELECT pg_advisory_lock(1380743009, hashtext('jobs.two'))"
PROVEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE '%%pg_try_advisory_lock_shared%%'
    AND application_name = 'runledger sleep marks' AND state = 'idle'
"""


@pytest.fixture
def connections(runledger_database: TemporaryDatabase) -> Iterator[EngineConnections]:
    """Connections of an engine."""
    connections = EngineConnections(ConnectionPool[Any](runledger_database.direct_dsn, open=False))
    yield connections
    connections.close()


@pytest.fixture
def leased(runledger_pool: ConnectionPool[Any]) -> Execution:
    """One job under a lease of a minute."""
    upsert_job_definition(runledger_pool, JobDefinitionSpec("jobs.one", max_attempts=3))
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))
    (job,) = claim_jobs(runledger_pool, worker_id="worker-1", limit=1, lease_ttl_seconds=60)
    return Execution(job, runledger_pool, lease_ends_at=time.monotonic() + 60)


def keeper_of(execution: Execution, connections: EngineConnections) -> LeaseKeeper:
    """Return a keeper of the lease; its thread is not started."""
    book = LeaseBook()
    book.add(execution)
    return LeaseKeeper(
        book,
        connections,
        worker_id="worker-1",
        job_types=["jobs.one"],
        concurrency=1,
        lease_ttl_seconds=TTL_OF_ONE_SECOND,
        state=lambda: WorkerState.RUNNING,
    )


def lock(database: TemporaryDatabase, table: str) -> Any:
    """Lock a table as a host does that changes it."""
    host = database.connect_directly()
    host.execute(f"LOCK TABLE runledger.{table}")  # pyright: ignore[reportArgumentType, reportCallIssue]  # of the test
    return host


def test_beats_in_vain_leave_nothing_behind_that_waits(
    leased: Execution,
    connections: EngineConnections,
    runledger_database: TemporaryDatabase,
    look: Any,
    eventually: Eventually,
) -> None:
    keeper = keeper_of(leased, connections)
    host = lock(runledger_database, "job_queue")

    for _ in range(2):
        with pytest.raises(QueryError) as caught:
            keeper._turn()
        keeper._failed(caught.value)
        assert caught.value.code == "db.statement_timeout"

    eventually(lambda: look(WAITING) == 0)
    host.rollback()
    keeper._turn()
    keeper._connection.close()


@pytest.mark.core
def test_locked_row_of_the_worker_does_not_keep_its_leases_from_being_renewed(
    leased: Execution,
    connections: EngineConnections,
    runledger_database: TemporaryDatabase,
    look: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper = keeper_of(leased, connections)
    keeper._turn()
    connection = keeper._connection.open()
    lock(runledger_database, "job_workers")

    for _ in range(3):
        before = look(BEAT)
        wait = keeper._turn()
        assert look(BEAT) > before
        # The next beat is not put off by what this one could not show.
        assert wait < TTL_OF_ONE_SECOND / 3

    assert look(WAITING) == 0
    assert keeper._connection.open() is connection
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "this worker is not shown in job_workers"
    ]
    keeper._connection.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda link, _lease: link.find_claims(LeaseBook()),
        lambda link, lease: link.give_back([lease], reason="test", retry_delay_ms=0),
    ],
    ids=["find", "give back"],
)
def test_claims_that_are_asked_for_in_vain_leave_nothing_behind_that_waits(  # noqa: PLR0917  # fixtures
    ask: Callable[[PumpLink, JobLease], object],
    leased: Execution,
    connections: EngineConnections,
    runledger_database: TemporaryDatabase,
    look: Any,
    eventually: Eventually,
) -> None:
    link = PumpLink(
        connections, leased.pool, worker_id="worker-1", lease_ttl_seconds=TTL_OF_ONE_SECOND
    )
    host = lock(runledger_database, "job_queue")

    with pytest.raises(QueryError) as caught:
        ask(link, leased.job.lease)

    assert caught.value.code == "db.statement_timeout"
    eventually(lambda: look(WAITING) == 0)
    host.rollback()
    ask(link, leased.job.lease)
    link.close()


def test_mark_that_a_stranger_holds_makes_the_worker_poll(  # noqa: PLR0917  # fixtures
    runledger_pool: ConnectionPool[Any],
    runledger_database: TemporaryDatabase,
    start_worker: Any,
    look: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than a test waits: who waited for the mark would not run a job.
    monkeypatch.setattr(_wakeup, "_DEADLINE_SECONDS", 120.0)
    stranger = runledger_database.connect_directly(autocommit=True)
    stranger.execute(STRANGER)
    ran = threading.Semaphore(0)
    start_worker(
        {name: lambda *_: ran.release() for name in ("jobs.one", "jobs.two")}, poll_interval_ms=50
    )
    eventually(lambda: look(PROVEN) == 1)

    enqueue_job(runledger_pool, JobEnqueue("jobs.two", {}))
    assert ran.acquire(timeout=30)
    eventually(lambda: look(SUCCEEDED) == 1)
    # All or none: it would sleep through jobs of the other type.
    assert look(MARKS) == 0

    stranger.close()
    eventually(lambda: look(MARKS) == 2)
