"""Connections that a handler borrows go back to the pool as they came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, Scope
from runledger_postgres import cancel_job, connect_pool, enqueue_job, enqueue_jobs

Eventually = Callable[[Callable[[], bool]], None]

SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"


@pytest.fixture
def single(runledger_database: Any) -> Any:
    """A pool of one connection, so that the next borrower gets what the last one left."""
    with connect_pool(runledger_database.dsn, min_size=1, max_size=1) as pool:
        yield pool


@pytest.mark.core
def test_work_is_committed_after_the_block_and_rolled_back_if_it_raises(
    single: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    with single.connection() as connection:
        connection.execute("CREATE TABLE notes (n int)")

    def handler(context: Any, payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("INSERT INTO notes VALUES (%s)", [payload["n"]])
            if payload["n"] == 2:
                raise ValueError

    start_worker({"jobs.note": handler}, pool=single)
    enqueue_jobs(single, [JobEnqueue("jobs.note", {"n": n}) for n in (1, 2, 3)])

    eventually(lambda: look("SELECT count(*) FROM runledger.job_attempts") == 3)
    assert look("SELECT array_agg(n ORDER BY n) FROM notes") == [1, 3]


def test_prepared_statements_of_the_pool_survive_many_loans(
    single: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    def handler(context: Any, payload: Any) -> None:
        with context.connection() as connection, connection.transaction():
            connection.execute("SELECT %s::int4", [payload["n"]])

    start_worker({"jobs.sql": handler}, pool=single)
    for n in range(20):
        enqueue_job(single, JobEnqueue("jobs.sql", {"n": n}))

    eventually(lambda: look(SUCCEEDED) == 20)
    assert look("SELECT max(attempt) FROM runledger.job_queue") == 1


def test_what_a_handler_sets_does_not_reach_the_next_borrower(
    single: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SET search_path TO nowhere")
            connection.execute("SET TimeZone TO 'Pacific/Apia'")
            connection.execute("LISTEN gossip")
            connection.execute("CREATE TEMP TABLE leftover (n int)")
            connection.execute("SELECT pg_advisory_lock(7)")
            connection.commit()
            connection.autocommit = True
            connection.row_factory = dict_row
            connection.read_only = True

    start_worker({"jobs.sloppy": handler}, pool=single)
    enqueue_job(single, JobEnqueue("jobs.sloppy", {}))
    eventually(lambda: look(SUCCEEDED) == 1)

    with single.connection() as connection:
        left = connection.execute(
            "SELECT current_setting('search_path'), current_setting('TimeZone') = 'Pacific/Apia',"
            " to_regclass('pg_temp.leftover') IS NULL,"
            " (SELECT count(*) FROM pg_listening_channels()),"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            "  AND pid = pg_backend_pid())"
        ).fetchone()
        assert left == ('"$user", public', False, True, 0, 0)
        assert (connection.autocommit, connection.read_only) == (False, None)


def test_cancel_never_hits_the_next_borrower_of_the_connection(
    single: ConnectionPool[Any],
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
) -> None:
    started, errors = threading.Event(), list[str]()

    def handler(context: Any, _payload: Any) -> None:
        with context.connection():
            started.set()
            context.wait(30)

    def borrow() -> None:
        try:
            with single.connection() as connection:
                connection.execute("SELECT pg_sleep(0.2)")
        except psycopg.Error as error:
            errors.append(type(error).__name__)

    start_worker({"jobs.wait": handler}, pool=single, lease_ttl_seconds=600)
    for _ in range(5):
        started.clear()
        job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.wait", {})).id
        assert started.wait(30)
        borrower = threading.Thread(target=borrow)
        borrower.start()
        cancel_job(runledger_pool, job_id, scope=Scope.ADMIN)
        borrower.join(30)

    assert errors == []
