"""Settings of role and database: the whole life of jobs goes on under each of them."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from _faults import Outside, define, eventually, run_again_at_once, supervised
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobFailure, Scope
from runledger_postgres import (
    cancel_job,
    connect_pool,
    enqueue_job,
    enqueue_jobs,
    list_job_events,
    list_job_logs,
    requeue_job,
)
from runledger_postgres.errors import QueryUnavailableError
from runledger_test_support import TemporaryDatabase, expire_lease

FORMATS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "datestyle": "German",
    "intervalstyle": "sql_standard",
    "timezone": "America/Santiago",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "quote_all_identifiers": "on",
    "extra_float_digits": "-15",
    "xmloption": "document",
    "lc_numeric": "C",
}
HOSTILE: dict[str, dict[str, str]] = {
    "serializable": {"default_transaction_isolation": "serializable"},
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "read only": {"default_transaction_read_only": "on", "default_transaction_deferrable": "on"},
    "formats": FORMATS,
    "no path": {"search_path": ""},
    "path of the host": {"search_path": "host, public"},
    "timeouts": {
        "statement_timeout": "5s",
        "lock_timeout": "1ms",
        "idle_in_transaction_session_timeout": "500ms",
    },
    "transaction timeout": {"transaction_timeout": "2s"},
    "idle sessions end": {"idle_session_timeout": "700ms"},
    "plans": {
        "plan_cache_mode": "force_generic_plan",
        "enable_indexscan": "off",
        "jit_above_cost": "0",
        "row_security": "off",
    },
    "commits": {"synchronous_commit": "off", "session_replication_role": "origin"},
}
HOST = """
CREATE SCHEMA host;
CREATE TABLE host.job_queue (LIKE runledger.job_queue);
CREATE TABLE host.job_definitions (LIKE runledger.job_definitions);
CREATE TABLE host.job_attempts (LIKE runledger.job_attempts);
CREATE TYPE host.job_status AS ENUM ('PENDING');
CREATE FUNCTION host.uuidv7() RETURNS int4 LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION host.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT to_timestamp(0)';
CREATE FUNCTION host.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS 'SELECT to_timestamp(0)';
"""
IS_FULL = os.environ.get("RUNLEDGER_TEST_SIZE", "ci") == "full"
# A role's settings come in the same way; few of them tell.
CASES = [
    *(("database", name) for name in HOSTILE),
    *(("role", name) for name in (HOSTILE if IS_FULL else ("serializable", "no path"))),
]
STATUSES = "SELECT job_type || ' ' || status FROM runledger.job_queue ORDER BY 1"

ERRORS = "SELECT concat_ws(' ', job_type, status, last_error_code) FROM runledger.job_queue"


@pytest.fixture
def hostile_pool(
    level: str, runledger_database: TemporaryDatabase
) -> Iterator[Callable[[dict[str, str]], ConnectionPool[Any]]]:
    """Makes a pool whose sessions, and those of the engine, start with settings."""
    name = f"hostile_{secrets.token_hex(6)}"
    admin = runledger_database.connect_directly(autocommit=True)
    pools: list[ConnectionPool[Any]] = []
    role = sql.Identifier(name)

    def make(settings: dict[str, str]) -> ConnectionPool[Any]:
        target, dsn = sql.SQL("DATABASE {}").format(sql.Identifier(admin.info.dbname)), ""
        if level == "role":
            create = sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}")
            admin.execute(create.format(role, name))
            target = sql.SQL("ROLE {}").format(role)
            dsn = make_conninfo(runledger_database.direct_dsn, user=name, password=name)
        for setting, value in settings.items():
            alter = sql.SQL("ALTER {} SET {} = ").format(target, sql.Identifier(setting))
            # A list of names, where the setting is one.
            names = [sql.Literal(part.strip()) for part in value.split(",")]
            admin.execute(alter + sql.SQL(", ").join(names))
        pools.append(connect_pool(dsn or runledger_database.direct_dsn))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(role))


@pytest.mark.parametrize(("level", "name"), CASES)
def test_whole_life_of_jobs_goes_on_under(
    name: str,
    hostile_pool: Callable[[dict[str, str]], ConnectionPool[Any]],
    runledger_database: TemporaryDatabase,
) -> None:
    admin = runledger_database.connect_directly(autocommit=True)
    if "transaction_timeout" in HOSTILE[name] and admin.info.server_version < 170_000:
        pytest.skip("PostgreSQL knows transaction_timeout since 17")
    admin.execute(HOST.encode())
    outside = Outside(admin)
    pool = hostile_pool(HOSTILE[name])
    live_through(pool, outside)

    assert outside.value("SELECT count(*) FROM host.job_queue") == 0


def patiently(write: Callable[[], object]) -> None:
    """Try again while the worker holds the row: whoever sets a short lock timeout has to."""
    while True:
        try:
            write()
        except QueryUnavailableError as error:
            if error.code != "db.lock_timeout":
                raise
        else:
            return


def live_through(pool: ConnectionPool[Any], outside: Outside) -> None:
    """Lead jobs through everything that can happen to one."""
    began = threading.Event()

    def plain(context: Any, payload: Any) -> JobCompletion:
        with context.connection() as connection:
            connection.execute("SELECT 1")
        context.progress(1, 2, checkpoint={"at": [None, 1]})
        context.log("INFO", "ran", answer=42)
        return JobCompletion(output={"got": payload})

    def again(context: Any, _payload: Any) -> None:
        if context.attempt == 1:
            raise JobFailure.retryable("test.again", "busy")

    def fail(context: Any, _payload: Any) -> None:
        if context.run_number == 1:
            raise JobFailure.terminal("test.never", "broken")

    def stay(context: Any, _payload: Any) -> None:
        began.set()
        context.wait(60)

    def orphan(context: Any, _payload: Any) -> None:
        if context.attempt == 1:
            # Long over when it returns: the lease was moved back in time.
            expire_lease(pool, context.job_id)
            context.wait(60)

    handlers = {"again": again, "fail": fail, "orphan": orphan, "plain": plain, "stay": stay}
    define(pool, *handlers, "never")
    with supervised(pool, handlers, poll_interval_ms=100, reaper_retry_delay_ms=1):
        plain_job = enqueue_job(pool, JobEnqueue("plain", {"a": [None, "NULL", "\\'"]}))
        never, failing, staying, _, orphaned = enqueue_jobs(
            pool, [JobEnqueue(kind, {}) for kind in ("never", "fail", "stay", "again", "orphan")]
        )
        keyed = [JobEnqueue("again", {}, idempotency_key="one")] * 2
        assert [job.disposition for job in enqueue_jobs(pool, keyed)] == ["INSERTED", "EXISTING"]
        patiently(lambda: cancel_job(pool, never.id, scope=Scope.ADMIN))
        assert began.wait(30)
        patiently(lambda: cancel_job(pool, staying.id, scope=Scope.ADMIN))
        dead = "SELECT count(*) FROM runledger.job_queue WHERE status = 'DEAD_LETTERED'"
        eventually(lambda: outside.value(dead) == 1)
        patiently(lambda: requeue_job(pool, failing.id, scope=Scope.ADMIN))
        run_again_at_once(outside.connection, orphaned.id)
        eventually(
            lambda: outside.column(STATUSES) == EXPECTED, seen=lambda: outside.column(ERRORS)
        )

    events = list_job_events(pool, plain_job.id, scope=Scope.ADMIN, limit=100)
    assert events[0].event_type == "ENQUEUED"
    assert [log.message for log in list_job_logs(pool, plain_job.id, scope=Scope.ADMIN)]
    output = "SELECT output #>> '{got,a,2}' FROM runledger.job_queue WHERE job_type = 'plain'"
    assert outside.value(output) == "\\'"
    checkpoint = "SELECT checkpoint::text FROM runledger.job_queue WHERE job_type = 'plain'"
    assert outside.value(checkpoint) == '{"at": [null, 1]}'


EXPECTED = [
    "again SUCCEEDED",
    "again SUCCEEDED",
    "fail SUCCEEDED",
    "never CANCELED",
    "orphan SUCCEEDED",
    "plain SUCCEEDED",
    "stay CANCELED",
]
