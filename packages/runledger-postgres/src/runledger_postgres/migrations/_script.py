"""The migrations as a script, for psql or any other tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .._database import Database
from .._session import transaction
from ._cutover import is_cutover_finished
from ._files import Migration, bundled_migrations
from ._history import OLDEST_SERVER, AppliedMigration, pending_migrations, read_applied
from ._turn import MIGRATION_LOCK_KEY

_NOTHING: Final = "-- The database has the schema of this version: nothing to do.\n"

_HEADER: Final = """\
-- Runledger: {what}.
-- Apply it whole: psql -v ON_ERROR_STOP=1 -f FILE
-- All or nothing; `runledger migrate --check` passes afterwards.
"""

_BEGIN: Final = f"""
BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET LOCAL search_path = pg_catalog;
SET LOCAL statement_timeout = 0;
-- One runner at a time.
SELECT pg_advisory_xact_lock({MIGRATION_LOCK_KEY});
-- A busy table ends the script, so that nobody queues behind it; run it again then.
SET LOCAL lock_timeout = '5s';
"""

_SERVER_GUARD: Final = f"""
DO $guard$
BEGIN
    IF current_setting('server_version_num')::int4 < {OLDEST_SERVER} THEN
        RAISE EXCEPTION 'Runledger needs PostgreSQL 15 or newer';
    END IF;
END
$guard$;
"""

_EMPTY_GUARD: Final = """
DO $guard$
BEGIN
    IF EXISTS (
        SELECT FROM pg_tables
        WHERE schemaname = 'runledger' AND tablename = 'runledger_migration_history'
    ) THEN
        RAISE EXCEPTION 'this script makes the whole schema, but the database has one'
            USING HINT = 'make a script of what this database lacks';
    END IF;
END
$guard$;
"""

_VERSIONS_GUARD: Final = """
DO $guard$
BEGIN
    IF ARRAY(SELECT h.version FROM runledger.runledger_migration_history AS h ORDER BY h.version)
        IS DISTINCT FROM '{{{versions}}}'::int8[]
    THEN
        RAISE EXCEPTION 'this script was made for a database with other migrations'
            USING HINT = 'make a new script of what this database lacks';
    END IF;
END
$guard$;
"""

_VALIDATION: Final = """
DO $guard$
DECLARE
    jobs int8;
    runs int8;
BEGIN
    SELECT count(*) INTO jobs FROM runledger.job_queue AS q
    WHERE q.idempotency_key IS NOT NULL AND q.enqueue_request IS NULL;
    SELECT count(*) INTO runs FROM runledger.workflow_runs AS r
    WHERE r.idempotency_key IS NOT NULL AND r.enqueue_request IS NULL;
    IF jobs > 0 OR runs > 0 THEN
        RAISE EXCEPTION '% jobs and % workflow runs have a key but no stored request', jobs, runs
            USING HINT = 'the migrations are applied; remove these rows or their idempotency_key, '
                'then run: runledger migrate';
    END IF;
END
$guard$;

ALTER TABLE runledger.job_queue
    VALIDATE CONSTRAINT ck_job_queue_idempotency_enqueue_request;
ALTER TABLE runledger.workflow_runs
    VALIDATE CONSTRAINT ck_workflow_runs_idempotency_enqueue_request;
"""

_COMMIT: Final = "\nCOMMIT;\n"


def migration_script(db: Database | None = None) -> str:
    """Return the migrations as one SQL script, history rows included.

    Args:
        db: The script is what this database lacks, and refuses any database with another history;
            without it, the whole schema, for a database that has none.

    Returns:
        A script that does what `migrate` does; only a comment if there is nothing to do.

    Raises:
        SchemaCompatibilityError: As `migrate`, for the given database.

    Transaction: reads `db` in the caller's, inside a savepoint, or in one of its own.
    """
    known = bundled_migrations()
    if db is None:
        return _script(known, None, is_finished=False)
    with transaction(db, savepoint=True) as work:
        applied = read_applied(work)
        pending = pending_migrations(known, applied)
        is_finished = not pending and is_cutover_finished(work)
    return _script(pending, applied, is_finished=is_finished)


def _script(
    pending: Sequence[Migration], applied: Sequence[AppliedMigration] | None, *, is_finished: bool
) -> str:
    if is_finished:
        return _NOTHING
    if not pending:
        return f"{_HEADER.format(what='validation of constraints')}{_BEGIN}{_VALIDATION}{_COMMIT}"
    what = f"migrations {pending[0].version} to {pending[-1].version}"
    files = "".join(f"\n-- {migration.name}\n\n{migration.sql.decode()}" for migration in pending)
    rows = ",\n".join(
        f"    ({migration.version}, '{migration.name}', '{migration.sha256}')"
        for migration in pending
    )
    history = (
        "\nINSERT INTO runledger.runledger_migration_history (version, name, sha256) VALUES\n"
        f"{rows};\n"
    )
    validation = f"{_BEGIN}{_VALIDATION}{_COMMIT}"
    return (
        f"{_HEADER.format(what=what)}{_BEGIN}{_SERVER_GUARD}{_guard(applied)}"
        f"{files}{history}{_COMMIT}{validation}"
    )


def _guard(applied: Sequence[AppliedMigration] | None) -> str:
    if applied is None:
        return _EMPTY_GUARD
    return _VERSIONS_GUARD.format(versions=",".join(str(row.version) for row in applied))
