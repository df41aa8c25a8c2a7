from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine

from runledger_core import JobDefinitionSpec, JobEnqueue, Scope
from runledger_postgres import connect_pool, enqueue_job, get_job
from runledger_postgres.definitions import upsert_job_definition
from runledger_postgres.errors import QueryError
from runledger_postgres.migrations import (
    SchemaCompatibilityError,
    ensure_schema_compatible,
    migrate,
)
from runledger_postgres.migrations._turn import MIGRATION_LOCK_KEY
from runledger_test_support import TemporaryDatabase

pytestmark = pytest.mark.core

NAMES = [
    "202603280001_runledger_baseline",
    "202604100001_runledger_migration_history",
    "202605180001_add_enqueue_request_snapshots",
    "202605220001_enforce_enqueue_request_snapshots",
    "202606030001_workflow_results",
]


def history_of(database: TemporaryDatabase) -> list[tuple[Any, ...]] | None:
    """Return versions and names, or None if there is no history."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        if connection.execute("SELECT to_regnamespace('runledger')").fetchone() == (None,):
            return None
        return connection.execute(
            "SELECT version, name FROM runledger.runledger_migration_history ORDER BY version"
        ).fetchall()


@contextmanager
def role(database: TemporaryDatabase, *grants: str) -> Iterator[str]:
    """Give a role of ordinary rights for a block, and drop it with what it owns."""
    name = f"runledger_test_{uuid4().hex}"
    identifier = sql.Identifier(name)
    with psycopg.connect(database.direct_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} NOSUPERUSER LOGIN").format(identifier))
        for grant in grants:
            statement = sql.SQL(grant)  # pyright: ignore[reportArgumentType]  # of this file only
            admin.execute(statement.format(role=identifier, database=sql.Identifier(database.name)))
        try:
            yield name
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(identifier))
            admin.execute(sql.SQL("DROP ROLE {}").format(identifier))


def connect_as(database: TemporaryDatabase, name: str) -> psycopg.Connection[Any]:
    """Return a connection whose session acts as the role, whatever pg_hba.conf asks for."""
    connection = database.connect_directly(autocommit=True)
    connection.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(name)))
    return connection


def test_empty_database_gets_every_migration_in_order(
    runledger_unmigrated_database: TemporaryDatabase,
):
    seen: list[str] = []

    with connect_pool(runledger_unmigrated_database.dsn) as pool:
        applied = migrate(pool, on_progress=seen.append)

    assert applied == NAMES
    assert seen == NAMES
    assert history_of(runledger_unmigrated_database) == [
        (202603280001, "202603280001_runledger_baseline"),
        (202604100001, "202604100001_runledger_migration_history"),
        (202605180001, "202605180001_add_enqueue_request_snapshots"),
        (202605220001, "202605220001_enforce_enqueue_request_snapshots"),
        (202606030001, "202606030001_workflow_results"),
    ]


def test_both_snapshot_constraints_are_validated(runledger_unmigrated_database: TemporaryDatabase):
    connection = runledger_unmigrated_database.connect(autocommit=True)

    migrate(connection)

    assert connection.execute(
        "SELECT conname, convalidated FROM pg_constraint"
        " WHERE conname LIKE 'ck\\_%enqueue\\_request' ORDER BY conname"
    ).fetchall() == [
        ("ck_job_queue_idempotency_enqueue_request", True),
        ("ck_workflow_runs_idempotency_enqueue_request", True),
    ]


@pytest.mark.core
def test_second_run_writes_nothing_and_waits_for_nobody(runledger_database: TemporaryDatabase):
    busy = runledger_database.connect()
    busy.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK_KEY])
    busy.execute("LOCK TABLE runledger.job_queue, runledger.workflow_runs")
    connection = runledger_database.connect(autocommit=True)
    next_transaction = "SELECT pg_snapshot_xmax(pg_current_snapshot())"
    before = connection.execute(next_transaction).fetchone()

    applied = migrate(connection)

    assert applied == []
    assert connection.execute(next_transaction).fetchone() == before


def test_pool_of_one_connection_is_enough(runledger_unmigrated_database: TemporaryDatabase):
    with connect_pool(runledger_unmigrated_database.dsn, max_size=1) as pool:
        migrate(pool)
        ensure_schema_compatible(pool)


def test_joined_transaction_is_the_callers_to_end(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect()
    connection.execute("CREATE TABLE of_the_host (id int)")

    assert migrate(connection) == NAMES
    assert history_of(runledger_unmigrated_database) is None
    connection.rollback()
    assert history_of(runledger_unmigrated_database) is None
    migrate(connection)
    connection.commit()

    ensure_schema_compatible(runledger_unmigrated_database.connect())


def test_idle_connection_without_autocommit_is_not_committed(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect()

    migrate(connection)
    connection.close()

    assert history_of(runledger_unmigrated_database) is None


def test_joined_transaction_keeps_its_settings(runledger_unmigrated_database: TemporaryDatabase):
    connection = runledger_unmigrated_database.connect()
    connection.execute("SET search_path = of_the_host, public")
    connection.execute("SET LOCAL lock_timeout = '7s'")
    connection.execute("SET LOCAL statement_timeout = '9s'")
    connection.commit()
    connection.execute("SET LOCAL lock_timeout = '7s'")
    connection.execute("SET LOCAL statement_timeout = '9s'")

    migrate(connection)

    assert connection.execute(
        "SELECT current_setting('search_path'), current_setting('lock_timeout'),"
        " current_setting('statement_timeout')"
    ).fetchone() == ("of_the_host, public", "7s", "9s")


def test_sqlalchemy_connection_is_joined(runledger_unmigrated_database: TemporaryDatabase):
    url = runledger_unmigrated_database.dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            migrate(connection)
            connection.rollback()
            assert history_of(runledger_unmigrated_database) is None
            migrate(connection)
            connection.commit()
    finally:
        engine.dispose()

    ensure_schema_compatible(runledger_unmigrated_database.connect())


def test_stronger_isolation_is_refused_and_the_transaction_goes_on(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("CREATE TABLE of_the_host (id int)")

    with pytest.raises(QueryError) as caught:
        migrate(connection)

    assert caught.value.code == "schema.migration_unsupported_isolation"
    assert connection.execute("SELECT count(*) FROM of_the_host").fetchone() == (0,)


def test_pipeline_mode_is_refused(runledger_unmigrated_database: TemporaryDatabase):
    connection = runledger_unmigrated_database.connect(autocommit=True)

    with connection.pipeline(), pytest.raises(QueryError) as caught:
        migrate(connection)

    assert caught.value.code == "db.pipeline_unsupported"


def test_refused_file_is_named_and_nothing_is_changed(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect()
    connection.execute("CREATE SCHEMA runledger")
    connection.execute("CREATE TABLE runledger.workflow_runs (id int)")

    with pytest.raises(QueryError) as caught:
        migrate(connection)

    assert caught.value.code == "schema.migration_failed"
    assert "202603280001_runledger_baseline" in caught.value.client_message
    assert caught.value.sqlstate == "42P07"
    assert "workflow_runs" in caught.value.internal_message
    assert "workflow_runs" not in str(caught.value)
    assert connection.execute("SELECT to_regclass('runledger.job_queue')").fetchone() == (None,)


def test_failing_progress_callback_undoes_everything(
    runledger_unmigrated_database: TemporaryDatabase,
):
    def fail_at_last(name: str) -> None:
        if name == NAMES[-1]:
            raise KeyboardInterrupt

    with connect_pool(runledger_unmigrated_database.dsn, max_size=1) as pool:
        with pytest.raises(KeyboardInterrupt):
            migrate(pool, on_progress=fail_at_last)

        assert history_of(runledger_unmigrated_database) is None
        assert migrate(pool) == NAMES


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            "INSERT INTO runledger.runledger_migration_history VALUES (209901010001, 'new', 'x')",
            "schema.migration_unknown",
        ),
        (
            "UPDATE runledger.runledger_migration_history SET sha256 = 'x' WHERE name ~ 'base'",
            "schema.migration_checksum_mismatch",
        ),
    ],
)
def test_database_of_other_code_is_refused_before_anything_is_applied(
    runledger_database: TemporaryDatabase, change: str, code: str
):
    connection = runledger_database.connect(autocommit=True)
    connection.execute(
        "DELETE FROM runledger.runledger_migration_history WHERE version = 202606030001"
    )
    connection.execute(change.encode())
    before = history_of(runledger_database)

    with pytest.raises(SchemaCompatibilityError) as caught:
        migrate(connection)

    assert caught.value.code == code
    assert history_of(runledger_database) == before


def test_owner_without_superuser_rights_migrates(runledger_unmigrated_database: TemporaryDatabase):
    with role(
        runledger_unmigrated_database, "GRANT CREATE ON DATABASE {database} TO {role}"
    ) as name:
        connection = connect_as(runledger_unmigrated_database, name)

        migrate(connection)

        ensure_schema_compatible(connection)


def test_schema_made_by_an_administrator_is_enough(
    runledger_unmigrated_database: TemporaryDatabase,
):
    with role(
        runledger_unmigrated_database, "CREATE SCHEMA runledger AUTHORIZATION {role}"
    ) as name:
        connection = connect_as(runledger_unmigrated_database, name)

        migrate(connection)

        ensure_schema_compatible(connection)


def test_role_without_rights_is_told_what_it_lacks(
    runledger_unmigrated_database: TemporaryDatabase,
):
    with role(runledger_unmigrated_database) as name:
        connection = connect_as(runledger_unmigrated_database, name)

        with pytest.raises(QueryError) as caught:
            migrate(connection)

        assert caught.value.code == "db.permission_denied"
        assert "grant CREATE on the database" in caught.value.client_message
        assert history_of(runledger_unmigrated_database) is None


def enqueue_one(connection: psycopg.Connection[Any]) -> None:
    upsert_job_definition(connection, JobDefinitionSpec("mail"))
    job = enqueue_job(connection, JobEnqueue("mail", {"to": 1}, idempotency_key="k"))
    stored = get_job(connection, job.id, scope=Scope.ADMIN)
    assert stored is not None
    assert stored.payload == {"to": 1}


def make_namesakes(connection: psycopg.Connection[Any]) -> None:
    """Put tables, types and functions of our names into a schema of the host."""
    connection.execute("CREATE SCHEMA of_the_host")
    for table in ("job_queue", "job_definitions", "workflow_runs", "job_metrics_rollup"):
        name = sql.Identifier("of_the_host", table)
        connection.execute(sql.SQL("CREATE TABLE {} (enqueue_request int)").format(name))
    connection.execute(
        "CREATE TABLE of_the_host.runledger_migration_history (version int8, sha256 text)"
    )
    connection.execute("INSERT INTO of_the_host.runledger_migration_history VALUES (1, 'x')")
    connection.execute("CREATE TYPE of_the_host.job_status AS ENUM ('PENDING')")
    connection.execute(
        "CREATE FUNCTION of_the_host.uuidv7() RETURNS int LANGUAGE sql AS 'SELECT 1'"
    )


def empty_path(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SET search_path = ''")


def host_path(connection: psycopg.Connection[Any]) -> None:
    make_namesakes(connection)
    connection.execute("SET search_path = of_the_host, public")


@pytest.mark.core
@pytest.mark.parametrize("set_path", [empty_path, host_path])
def test_search_path_of_the_host_does_not_matter(
    runledger_unmigrated_database: TemporaryDatabase,
    set_path: Callable[[psycopg.Connection[Any]], None],
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    set_path(connection)

    assert migrate(connection) == NAMES
    assert migrate(connection) == []
    ensure_schema_compatible(connection)
    enqueue_one(connection)

    assert connection.execute(
        "SELECT count(*) FROM pg_catalog.pg_class AS c"
        " WHERE c.relnamespace = 'public'::regnamespace"
    ).fetchone() == (0,)
