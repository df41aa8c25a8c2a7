"""What a database has of the schema, compared with what this code brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runledger_core import ErrorCategory

from .._database import Database
from .._rows import NoRow, Statement
from .._session import IS_READ_COMMITTED, Bound, Transaction, transaction
from ..errors import refusal
from ._cutover import check_cutover
from ._errors import (
    checksum_mismatch,
    migration_missing,
    migration_unknown,
    missing_history,
    server_too_old,
)
from ._files import Migration, bundled_migrations

OLDEST_SERVER: Final = 150_000


@dataclass(frozen=True, slots=True)
class ServerRow:
    """The server, the transaction's isolation, and whether there is a history to read."""

    server_version: int
    is_read_committed: bool
    has_history: bool


# Looked up as a row: a name that to_regclass once did not find stays unknown to the session until
# it accepts invalidations, and waiting for an advisory lock does not make it accept any.
READ_SERVER: Final = Statement(
    f"""
    SELECT
        current_setting('server_version_num')::int4 AS server_version,
        {IS_READ_COMMITTED} AS is_read_committed,
        EXISTS (
            SELECT
            FROM pg_catalog.pg_class AS c
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = 'runledger' AND c.relname = 'runledger_migration_history'
        ) AS has_history
    """,
    ServerRow,
)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One row of the history."""

    version: int
    sha256: str


READ_MIGRATION_HISTORY: Final = Statement(
    """
    SELECT h.version, h.sha256
    FROM runledger.runledger_migration_history AS h
    ORDER BY h.version
    """,
    AppliedMigration,
)

RECORD_MIGRATIONS: Final = Statement(
    """
    INSERT INTO runledger.runledger_migration_history (version, name, sha256)
    SELECT m.version, m.name, m.sha256
    FROM unnest(%(versions)s::int8[], %(names)s::text[], %(hashes)s::text[])
        AS m(version, name, sha256)
    """,
    NoRow,
)


def ensure_schema_compatible(db: Database) -> None:
    """Check that the database has exactly the schema of this version, without changing anything.

    Raises:
        SchemaCompatibilityError: `schema.missing_migration_history`, `schema.migration_missing`,
            `schema.migration_unknown`, `schema.migration_checksum_mismatch`,
            `schema.legacy_idempotency_snapshots_missing` or `schema.server_too_old`; the message
            says what to do.
        ForbiddenError: `db.permission_denied` if the role may not read the schema.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    known = bundled_migrations()
    with transaction(db, savepoint=True) as work:
        applied = read_applied(work)
        if applied is None:
            raise missing_history(known[0].version)
        pending = pending_migrations(known, applied)
        if pending:
            raise migration_missing([migration.version for migration in pending])
        check_cutover(work)


def read_applied(
    work: Transaction, *, needs_read_committed: bool = False
) -> list[AppliedMigration] | None:
    """Return the history, oldest first, or None if there is none.

    Args:
        needs_read_committed: Refuse a transaction whose snapshot may be older than a lock it holds.

    Raises:
        SchemaCompatibilityError: `schema.server_too_old`.
        ValidationError: `schema.migration_unsupported_isolation`.
    """
    (server,) = work.fetch(Bound(READ_SERVER))
    require_supported_server(server.server_version)
    if needs_read_committed and not server.is_read_committed:
        raise refusal(
            ErrorCategory.VALIDATION,
            "schema.migration_unsupported_isolation",
            "migrations need READ COMMITTED",
            field="db",
        )
    return work.fetch(Bound(READ_MIGRATION_HISTORY)) if server.has_history else None


def require_supported_server(server_version: int) -> None:
    """Refuse a server older than PostgreSQL 15.

    Args:
        server_version: As in `server_version_num`, such as 150018.

    Raises:
        SchemaCompatibilityError: `schema.server_too_old`.
    """
    if server_version < OLDEST_SERVER:
        raise server_too_old(server_version)


def pending_migrations(
    known: Sequence[Migration], applied: Sequence[AppliedMigration] | None
) -> list[Migration]:
    """Return the known migrations that the database lacks, oldest first.

    Raises:
        SchemaCompatibilityError: `schema.migration_checksum_mismatch` or
            `schema.migration_unknown`.
    """
    hashes = {row.version: row.sha256 for row in applied or ()}
    changed = [m.version for m in known if hashes.get(m.version, m.sha256) != m.sha256]
    if changed:
        raise checksum_mismatch(changed)
    unknown = sorted(hashes.keys() - {m.version for m in known})
    if unknown:
        raise migration_unknown(unknown)
    return [m for m in known if m.version not in hashes]


def record_migrations(work: Transaction, migrations: Sequence[Migration]) -> None:
    """Write the history rows of migrations applied in the same transaction."""
    params = {
        "versions": [migration.version for migration in migrations],
        "names": [migration.name for migration in migrations],
        "hashes": [migration.sha256 for migration in migrations],
    }
    work.fetch(Bound(RECORD_MIGRATIONS, params))
