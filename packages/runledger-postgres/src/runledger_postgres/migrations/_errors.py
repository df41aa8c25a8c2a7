"""Errors of a database whose schema and this code do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import QueryConflictError

NEXT_STEP: Final = "run: runledger migrate"


class SchemaCompatibilityError(QueryConflictError):
    """The schema in the database is not the one that this code needs; the code tells which case.

    Attributes:
        versions: The migrations that the error is about, if any.
    """

    def __init__(self, code: str, client_message: str, *, versions: Sequence[int] = ()) -> None:
        """Make the error of one case."""
        super().__init__(code, client_message)
        self.versions: tuple[int, ...] = tuple(versions)


class LegacyIdempotencySnapshotsMissingError(SchemaCompatibilityError):
    """Keyed rows have no stored request to compare a repeated enqueue with.

    Attributes:
        job_count: Such jobs.
        workflow_run_count: Such workflow runs.
    """

    def __init__(self, job_count: int, workflow_run_count: int) -> None:
        """Make the error from what was counted."""
        super().__init__(
            "schema.legacy_idempotency_snapshots_missing",
            f"{job_count} jobs and {workflow_run_count} workflow runs have an idempotency key but"
            " no stored request; let them end and delete them, clear their idempotency_key, or"
            f" store the original request, then {NEXT_STEP}",
        )
        self.job_count = job_count
        self.workflow_run_count = workflow_run_count


def server_too_old(server_version: int) -> SchemaCompatibilityError:
    """Return the error for a server below the oldest supported one."""
    major, minor = divmod(server_version, 10_000)
    return SchemaCompatibilityError(
        "schema.server_too_old",
        f"PostgreSQL {major}.{minor} is too old; Runledger needs 15 or newer: upgrade the server",
    )


def missing_history(first_version: int) -> SchemaCompatibilityError:
    """Return the error for a database without the history table."""
    return SchemaCompatibilityError(
        "schema.missing_migration_history",
        f"the database has no Runledger schema; {NEXT_STEP}",
        versions=[first_version],
    )


def migration_missing(versions: Sequence[int]) -> SchemaCompatibilityError:
    """Return the error for a database that is behind this code."""
    return SchemaCompatibilityError(
        "schema.migration_missing",
        f"the database lacks migrations {_listed(versions)}; {NEXT_STEP}",
        versions=versions,
    )


def migration_unknown(versions: Sequence[int]) -> SchemaCompatibilityError:
    """Return the error for a database that is ahead of this code."""
    return SchemaCompatibilityError(
        "schema.migration_unknown",
        f"the database has migrations {_listed(versions)}, which this version does not know;"
        " upgrade runledger-postgres to the version that applied them",
        versions=versions,
    )


def checksum_mismatch(versions: Sequence[int]) -> SchemaCompatibilityError:
    """Return the error for migrations that were applied with another text."""
    return SchemaCompatibilityError(
        "schema.migration_checksum_mismatch",
        f"migrations {_listed(versions)} were applied with a text that differs from this"
        " version's; use the version that applied them, or make the database anew",
        versions=versions,
    )


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(str(version) for version in versions)
