from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runledger_postgres.migrations import (
    ensure_schema_compatible,
    migrate,
    migration_script,
)
from runledger_postgres.migrations._apply import apply_pending
from runledger_postgres.migrations._files import bundled_migrations
from runledger_test_support import TemporaryDatabase

PSQL = shutil.which("psql")
needs_psql = pytest.mark.skipif(PSQL is None, reason="needs the psql program")

HISTORY = "SELECT version, name, sha256 FROM runledger.runledger_migration_history ORDER BY version"


def psql(
    database: TemporaryDatabase, script: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    path = folder / "runledger.sql"
    path.write_text(script, "utf-8")
    command = [str(PSQL), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(path), database.dsn]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def run_as_one_query(connection: psycopg.Connection[Any], script: str) -> None:
    connection.execute(script.encode())


@needs_psql
def test_script_applied_with_psql_makes_the_schema(
    runledger_unmigrated_database: TemporaryDatabase, tmp_path: Path
):
    done = psql(runledger_unmigrated_database, migration_script(), tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    connection = runledger_unmigrated_database.connect(autocommit=True)
    ensure_schema_compatible(connection)
    assert migrate(connection) == []


def test_script_writes_the_history_that_the_runner_writes(
    runledger_unmigrated_database: TemporaryDatabase, runledger_database: TemporaryDatabase
):
    connection = runledger_unmigrated_database.connect(autocommit=True)

    run_as_one_query(connection, migration_script())

    by_runner = runledger_database.connect().execute(HISTORY).fetchall()
    assert connection.execute(HISTORY).fetchall() == by_runner


@needs_psql
@pytest.mark.parametrize("stop", ["1", "0"])
def test_script_of_the_whole_schema_refuses_a_second_time(
    runledger_database: TemporaryDatabase, tmp_path: Path, stop: str
):
    script = migration_script()
    if stop == "0":
        script = f"\\set ON_ERROR_STOP 0\n{script}"

    done = psql(runledger_database, script, tmp_path)

    assert (done.returncode == 0) == (stop == "0")
    assert "this script makes the whole schema, but the database has one" in done.stderr
    ensure_schema_compatible(runledger_database.connect())


@needs_psql
def test_script_of_what_lacks_completes_the_database(
    runledger_unmigrated_database: TemporaryDatabase, tmp_path: Path
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(connection, bundled_migrations()[:2])
    script = migration_script(connection)
    assert "CREATE TABLE runledger.job_queue" not in script

    done = psql(runledger_unmigrated_database, script, tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    ensure_schema_compatible(connection)
    assert migrate(connection) == []


def test_script_of_what_lacks_refuses_a_database_that_moved_on(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(connection, bundled_migrations()[:2])
    script = migration_script(connection)
    apply_pending(connection, bundled_migrations()[:3])

    with pytest.raises(psycopg.errors.RaiseException, match="made for a database with other"):
        run_as_one_query(connection, script)

    connection.rollback()
    assert len(connection.execute(HISTORY).fetchall()) == 3


def test_script_for_an_empty_database_is_the_whole_one(
    runledger_unmigrated_database: TemporaryDatabase,
):
    assert migration_script(runledger_unmigrated_database.connect()) == migration_script()


def test_script_for_a_current_database_does_nothing(runledger_database: TemporaryDatabase):
    script = migration_script(runledger_database.connect())

    assert script == "-- The database has the schema of this version: nothing to do.\n"


def test_script_validates_constraints_that_are_not(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(connection, bundled_migrations())

    script = migration_script(connection)
    run_as_one_query(connection, script)

    assert "CREATE" not in script
    assert migration_script(connection).startswith("-- The database has the schema")


def test_script_reports_keyed_rows_without_a_stored_request(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(connection, bundled_migrations()[:2])
    connection.execute(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, idempotency_key)"
        " VALUES ('mail', 1, 'a')"
    )

    with pytest.raises(
        psycopg.errors.RaiseException, match="1 jobs and 0 workflow runs have a key"
    ):
        run_as_one_query(connection, migration_script(connection))

    connection.rollback()
    assert len(connection.execute(HISTORY).fetchall()) == 5
