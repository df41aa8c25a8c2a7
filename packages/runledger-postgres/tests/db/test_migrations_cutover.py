from __future__ import annotations

from typing import Any

import psycopg
import pytest

from runledger_postgres.migrations import (
    LegacyIdempotencySnapshotsMissingError,
    ensure_schema_compatible,
    migrate,
)
from runledger_postgres.migrations._apply import apply_pending
from runledger_postgres.migrations._files import bundled_migrations
from runledger_test_support import TemporaryDatabase

VALIDATED = """
SELECT count(*) FROM pg_catalog.pg_constraint
WHERE conname LIKE 'ck\\_%enqueue\\_request' AND convalidated
"""


@pytest.fixture
def old_database(runledger_unmigrated_database: TemporaryDatabase) -> psycopg.Connection[Any]:
    """Give a database from before requests were stored: two keyed jobs, one keyed run."""
    connection = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(connection, bundled_migrations()[:2])
    connection.execute(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, idempotency_key)"
        " VALUES ('mail', 1, 'a'), ('mail', 1, 'b'), ('mail', 1, NULL)"
    )
    connection.execute(
        "INSERT INTO runledger.workflow_runs (workflow_type, idempotency_key)"
        " VALUES ('order', 'a'), ('order', NULL)"
    )
    return connection


def refused(db: psycopg.Connection[Any]) -> LegacyIdempotencySnapshotsMissingError:
    with pytest.raises(LegacyIdempotencySnapshotsMissingError) as caught:
        migrate(db)
    return caught.value


def clear_keys(connection: psycopg.Connection[Any]) -> None:
    connection.execute("UPDATE runledger.job_queue SET idempotency_key = NULL")
    connection.execute("UPDATE runledger.workflow_runs SET idempotency_key = NULL")


def test_keyed_rows_without_a_stored_request_are_counted(old_database: psycopg.Connection[Any]):
    error = refused(old_database)

    assert error.code == "schema.legacy_idempotency_snapshots_missing"
    assert (error.job_count, error.workflow_run_count) == (2, 1)
    assert "2 jobs and 1 workflow runs" in error.client_message


def test_migrations_stay_applied_so_that_the_rows_can_be_put_right(
    old_database: psycopg.Connection[Any],
):
    refused(old_database)

    assert old_database.execute(
        "SELECT count(*) FROM runledger.runledger_migration_history"
    ).fetchone() == (5,)
    assert old_database.execute(VALIDATED).fetchone() == (0,)
    with pytest.raises(psycopg.errors.CheckViolation):
        old_database.execute(
            "INSERT INTO runledger.job_queue (job_type, max_attempts, idempotency_key)"
            " VALUES ('mail', 1, 'new')"
        )


def test_one_table_with_such_rows_is_enough(old_database: psycopg.Connection[Any]):
    old_database.execute("UPDATE runledger.job_queue SET idempotency_key = NULL")

    error = refused(old_database)

    assert (error.job_count, error.workflow_run_count) == (0, 1)


def test_run_after_remediation_validates(old_database: psycopg.Connection[Any]):
    refused(old_database)
    refused(old_database)
    old_database.execute("UPDATE runledger.job_queue SET enqueue_request = '{}'")
    old_database.execute("UPDATE runledger.workflow_runs SET enqueue_request = '{}'")

    applied = migrate(old_database)

    assert applied == []
    assert old_database.execute(VALIDATED).fetchone() == (2,)
    ensure_schema_compatible(old_database)


def test_check_reports_such_rows_until_they_are_gone(old_database: psycopg.Connection[Any]):
    refused(old_database)

    with pytest.raises(LegacyIdempotencySnapshotsMissingError) as caught:
        ensure_schema_compatible(old_database)
    clear_keys(old_database)
    ensure_schema_compatible(old_database)

    assert (caught.value.job_count, caught.value.workflow_run_count) == (2, 1)
    assert old_database.execute(VALIDATED).fetchone() == (0,)


def test_joined_refusal_leaves_the_decision_to_the_caller(old_database: psycopg.Connection[Any]):
    with old_database.transaction():
        refused(old_database)
        clear_keys(old_database)
        assert migrate(old_database) == []

    ensure_schema_compatible(old_database)
    assert old_database.execute(VALIDATED).fetchone() == (2,)


def test_validation_does_not_block_reads_and_writes(
    old_database: psycopg.Connection[Any], runledger_unmigrated_database: TemporaryDatabase
):
    clear_keys(old_database)
    apply_pending(old_database, bundled_migrations())
    writer = runledger_unmigrated_database.connect()
    try:
        writer.execute("INSERT INTO runledger.job_queue (job_type, max_attempts) VALUES ('x', 1)")

        migrate(old_database, lock_wait_seconds=0)

        assert old_database.execute(VALIDATED).fetchone() == (2,)
    finally:
        writer.close()
