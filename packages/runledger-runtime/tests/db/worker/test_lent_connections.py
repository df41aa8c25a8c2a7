"""Connections that a handler borrows go back to the pool as they came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
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


def test_what_a_handler_listened_to_is_not_heard_by_the_next_borrower(
    single: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("LISTEN gossip")
            connection.commit()
            with runledger_database.connect(autocommit=True) as other:
                other.execute("NOTIFY gossip, 'old'")
            # psycopg keeps what comes with an answer.
            connection.execute("SELECT 1")
            connection.commit()
            with runledger_database.connect(autocommit=True) as other:
                other.execute("NOTIFY gossip, 'new'")

    start_worker({"jobs.listens": handler}, pool=single)
    enqueue_job(single, JobEnqueue("jobs.listens", {}))
    eventually(lambda: look(SUCCEEDED) == 1)

    with single.connection() as connection:
        assert list(connection.notifies(timeout=0)) == []


class ShoutLoader(Loader):
    """Reads any integer as the same text."""

    def load(self, data: Buffer) -> str:
        """Return it."""
        return "LOUD"


class ShoutDumper(Dumper):
    """Writes any integer as the same number."""

    oid = psycopg.adapters.types["int4"].oid

    def dump(self, obj: int) -> bytes:
        """Return it."""
        return b"1000"


def test_what_a_handler_registers_on_the_connection_does_not_reach_the_next_borrower(
    single: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    heard: list[object] = []

    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.adapters.register_loader("int4", ShoutLoader)
            connection.adapters.register_dumper(int, ShoutDumper)
            connection.add_notice_handler(heard.append)
            connection.add_notify_handler(heard.append)
            connection.prepared_max = 1
            connection.server_cursor_factory = None

    start_worker({"jobs.sloppy": handler}, pool=single)
    enqueue_job(single, JobEnqueue("jobs.sloppy", {}))
    eventually(lambda: look(SUCCEEDED) == 1)

    with single.connection() as connection:
        connection.execute("DO $$ BEGIN RAISE NOTICE 'to be heard'; END $$")
        connection.execute("LISTEN gossip")
        connection.execute("NOTIFY gossip")
        connection.commit()
        assert connection.execute("SELECT 7::int4, %s::text", [8]).fetchone() == (7, "8")
        assert connection.prepared_max == 100
        assert connection.server_cursor_factory is psycopg.ServerCursor
    assert heard == []


def test_what_the_pool_configures_is_there_once_for_the_next_borrower(
    runledger_database: Any, start_worker: Any, eventually: Eventually, look: Any
) -> None:
    heard: list[object] = []

    def configure(connection: psycopg.Connection[Any]) -> None:
        connection.execute("SET TimeZone TO 'Pacific/Apia'")
        connection.commit()
        connection.adapters.register_loader("int4", ShoutLoader)
        connection.add_notice_handler(heard.append)

    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SET TimeZone TO 'UTC'")

    with ConnectionPool(
        runledger_database.dsn, min_size=1, max_size=1, configure=configure
    ) as single:
        worker = start_worker({"jobs.sloppy": handler}, pool=single)
        enqueue_jobs(single, [JobEnqueue("jobs.sloppy", {})] * 3)
        eventually(lambda: look(SUCCEEDED) == 3)
        worker.end()

        heard.clear()
        with single.connection() as connection:
            connection.execute("DO $$ BEGIN RAISE NOTICE 'to be heard'; END $$")
            seen = connection.execute("SELECT 7::int4, current_setting('TimeZone')").fetchone()
    assert seen == ("LOUD", "Pacific/Apia")
    assert len(heard) == 1


def test_handlers_are_told_though_there_is_no_thread_to_cancel_their_statements(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "runledger-cancel":
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    def handler(context: Any, _payload: Any) -> None:
        with context.connection(), context.connection():
            context.wait(60)
            context.raise_if_cancelled()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    # One after the other: who told the first must be there for the second.
    start_worker({"jobs.wait": handler}, max_global_concurrency=1)
    requests = [JobEnqueue("jobs.wait", {}, timeout_seconds=1, max_attempts=1)] * 2
    enqueue_jobs(runledger_pool, requests)

    timeouts = "SELECT count(*) FROM runledger.job_attempts WHERE outcome = 'TIMEOUT'"
    eventually(lambda: look(timeouts) == 2)
    assert len(refused) >= 4


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
