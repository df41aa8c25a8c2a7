"""Migrate: apply what is missing, once, whoever else tries at the same time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.pq import PipelineStatus

from runledger_core import ErrorCategory

from .._database import Database, Opened, open_connection
from ..errors import (
    QueryError,
    QueryForbiddenError,
    QueryInternalError,
    classify_query_error,
    refusal,
)
from ._cutover import finish_cutover, is_cutover_finished
from ._files import Migration, bundled_migrations
from ._history import pending_migrations, read_applied, record_migrations
from ._turn import LOCK_TIMEOUT, migration_turn, unhurried_transaction

# Below the default deadlock_timeout of one second: where a worker and a migration wait for each
# other, the migration gives way before the server picks a victim.
TABLE_WAIT_MS: Final = 500
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 1.0

_DEADLOCK: Final = "40P01"
_PERMISSION_DENIED: Final = "42501"

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def migrate(
    db: Database,
    *,
    on_progress: Callable[[str], object] | None = None,
    lock_wait_seconds: float = 60.0,
) -> list[str]:
    """Bring the database to the schema of this version.

    Any number of processes may call this at the same time, and workers of the previous version may
    be running: tables are waited for only half a second at a time.

    Args:
        on_progress: Called with the name of each migration before it is applied, and again if a
            busy table makes all of them start over.
        lock_wait_seconds: How long to keep trying for busy tables, in seconds.

    Returns:
        The names of the migrations that this call applied, oldest first; empty if there was
        nothing to do, and then nothing was locked or written.

    Raises:
        SchemaCompatibilityError: `schema.server_too_old`, `schema.migration_unknown`,
            `schema.migration_checksum_mismatch`: nothing was changed. Or
            `schema.legacy_idempotency_snapshots_missing`: everything was applied, but keyed rows
            without a stored request remain; deal with them and call again.
        InternalError: `schema.migration_failed` if the database refuses a migration.
        ForbiddenError: `db.permission_denied` if the role may not change the schema.
        ValidationError: `schema.migration_unsupported_isolation` or
            `db.pipeline_unsupported` for a caller's transaction that cannot be used.
        UnavailableError: `db.lock_timeout` if tables stay busy; `db.unavailable` or
            `db.outcome_unknown` if the connection is lost: call again.

    Transaction: all missing migrations in one, under an advisory lock, then the validation of
        constraints in a second, which does not block reads and writes. A caller's transaction is
        joined instead, inside savepoints, and its settings are put back.
    """
    with open_connection(db) as opened:
        connection = opened.connection
        _refuse_pipeline(connection)
        if _is_current(connection):
            return []
        deadline = time.monotonic() + lock_wait_seconds
        wait_ms = TABLE_WAIT_MS if opened.owned else max(1, int(lock_wait_seconds * 1000))

        def apply() -> list[str]:
            return apply_pending(
                connection, bundled_migrations(), lock_timeout_ms=wait_ms, on_progress=on_progress
            )

        def validate() -> None:
            with migration_turn(connection, lock_timeout_ms=wait_ms) as work:
                finish_cutover(work)

        applied = _until_tables_are_free(apply, opened, deadline)
        # A transaction of its own: in the first one the scan would keep the tables locked.
        _until_tables_are_free(validate, opened, deadline)
        return applied


def apply_pending(
    connection: psycopg.Connection[Any],
    known: tuple[Migration, ...],
    *,
    lock_timeout_ms: int = TABLE_WAIT_MS,
    on_progress: Callable[[str], object] | None = None,
) -> list[str]:
    """Apply, all or none, the migrations that the database lacks; return their names."""
    with migration_turn(connection, lock_timeout_ms=lock_timeout_ms) as work:
        # Only now: another runner may have finished while we waited for our turn.
        pending = pending_migrations(known, read_applied(work, needs_read_committed=True))
        for migration in pending:
            if on_progress is not None:
                on_progress(migration.name)
            _run_file(connection, migration)
        if pending:
            record_migrations(work, pending)
    return [migration.name for migration in pending]


def _refuse_pipeline(connection: psycopg.Connection[Any]) -> None:
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise refusal(
            ErrorCategory.VALIDATION,
            "db.pipeline_unsupported",
            "migrations cannot run in pipeline mode; leave the pipeline first",
            field="db",
        )


def _is_current(connection: psycopg.Connection[Any]) -> bool:
    with unhurried_transaction(connection) as work:
        applied = read_applied(work, needs_read_committed=True)
        if pending_migrations(bundled_migrations(), applied):
            return False
        return is_cutover_finished(work)


def _run_file(connection: psycopg.Connection[Any], migration: Migration) -> None:
    try:
        # Bytes without parameters go as they are: a file holds many statements and % signs.
        psycopg.Cursor(connection).execute(migration.sql, prepare=False)
    except psycopg.Error as error:
        raise _file_failure(migration, classify_query_error(error)) from error


def _file_failure(migration: Migration, error: QueryError) -> QueryError:
    if error.is_transient:
        return error
    if error.sqlstate == _PERMISSION_DENIED:
        return QueryForbiddenError(
            "db.permission_denied",
            f"the role may not apply {migration.name}; migrate as the owner of the schema"
            " runledger, or grant CREATE on the database first",
            internal_message=error.internal_message,
            sqlstate=error.sqlstate,
        )
    return QueryInternalError(
        "schema.migration_failed",
        f"the database refused {migration.name} (SQLSTATE {error.sqlstate}); nothing was changed",
        internal_message=error.internal_message,
        sqlstate=error.sqlstate,
    )


def _until_tables_are_free(step: Callable[[], Result], opened: Opened, deadline: float) -> Result:
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return step()
        except QueryError as error:
            # In a caller's transaction, locks that he holds would outlive each try.
            if not opened.owned or error.sqlstate not in {LOCK_TIMEOUT, _DEADLOCK}:
                raise
            if time.monotonic() + pause > deadline:
                raise refusal(
                    ErrorCategory.UNAVAILABLE,
                    "db.lock_timeout",
                    "the tables stayed in use; end long transactions, or allow more"
                    " lock_wait_seconds, and run: runledger migrate",
                ) from error
            _logger.info("tables are in use, migrations start over", extra={"pause_seconds": pause})
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
