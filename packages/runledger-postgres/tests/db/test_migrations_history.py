from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from runledger_core import ErrorCategory
from runledger_postgres import connect_pool
from runledger_postgres.errors import QueryError
from runledger_postgres.migrations import SchemaCompatibilityError, ensure_schema_compatible
from runledger_test_support import TemporaryDatabase


def refused(db: psycopg.Connection[Any]) -> SchemaCompatibilityError:
    with pytest.raises(SchemaCompatibilityError) as caught:
        ensure_schema_compatible(db)
    assert caught.value.category is ErrorCategory.CONFLICT
    return caught.value


@pytest.mark.core
def test_migrated_database_passes(runledger_database: TemporaryDatabase):
    with connect_pool(runledger_database.dsn, max_size=1) as pool:
        ensure_schema_compatible(pool)


def test_empty_database_has_no_history(runledger_unmigrated_database: TemporaryDatabase):
    error = refused(runledger_unmigrated_database.connect())

    assert error.code == "schema.missing_migration_history"
    assert error.versions == (202603280001,)
    assert "run: runledger migrate" in error.client_message


def test_database_behind_the_code_lacks_a_migration(runledger_database: TemporaryDatabase):
    connection = runledger_database.connect()
    connection.execute(
        "DELETE FROM runledger.runledger_migration_history WHERE version = 202606030001"
    )

    error = refused(connection)

    assert error.code == "schema.migration_missing"
    assert error.versions == (202606030001,)
    assert "202606030001" in error.client_message
    assert "run: runledger migrate" in error.client_message


def test_database_ahead_of_the_code_has_an_unknown_migration(
    runledger_database: TemporaryDatabase,
):
    connection = runledger_database.connect()
    connection.execute(
        "INSERT INTO runledger.runledger_migration_history (version, name, sha256)"
        " VALUES (209901010001, '209901010001_of_the_future', 'x')"
    )

    error = refused(connection)

    assert error.code == "schema.migration_unknown"
    assert error.versions == (209901010001,)
    assert "upgrade runledger-postgres" in error.client_message


def test_migration_applied_with_another_text_is_named(runledger_database: TemporaryDatabase):
    connection = runledger_database.connect()
    connection.execute(
        "UPDATE runledger.runledger_migration_history SET sha256 = repeat('0', 64)"
        " WHERE version = 202605180001"
    )

    error = refused(connection)

    assert error.code == "schema.migration_checksum_mismatch"
    assert error.versions == (202605180001,)
    assert "202605180001" in error.client_message


def test_check_writes_nothing(runledger_database: TemporaryDatabase):
    connection = runledger_database.connect()
    connection.execute("SET TRANSACTION READ ONLY")

    ensure_schema_compatible(connection)


def test_refusal_leaves_the_callers_transaction_usable(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect()
    connection.execute("CREATE TABLE of_the_host (id int)")

    refused(connection)

    assert connection.execute("SELECT count(*) FROM of_the_host").fetchone() == (0,)


def test_role_that_may_not_read_is_told_so(runledger_database: TemporaryDatabase):
    # The role goes with the transaction.
    connection = runledger_database.connect()
    connection.execute(
        sql.SQL("CREATE ROLE {name}; SET LOCAL ROLE {name}").format(
            name=sql.Identifier(f"{runledger_database.name}_reader")
        )
    )

    with pytest.raises(QueryError) as caught:
        ensure_schema_compatible(connection)

    assert caught.value.code == "db.permission_denied"
    assert connection.execute("SELECT 1").fetchone() == (1,)
