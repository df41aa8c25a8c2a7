"""What the snapshot shows, read in one read-only transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from runledger_core import JobStatus, Scope, ValidationError, WorkflowRunStatus
from runledger_postgres.admin import (
    BoundedCount,
    WaitingJob,
    count_jobs_by_status_bounded,
    count_workflow_runs_by_status_bounded,
    oldest_waiting_jobs,
)
from runledger_postgres.errors import classify_query_error
from runledger_postgres.migrations import ensure_schema_compatible
from runledger_postgres.workers import WorkerRecord, list_workers

COUNT_CAP: Final = 100_000
SILENT_AFTER_SECONDS: Final = 120

_CONNECT_SECONDS: Final = 10
_STATEMENT_TIMEOUT: Final = "10s"

PREPARE_READ: Final = """
    SELECT clock_timestamp(), set_config('statement_timeout', %(statement_timeout)s, true),
        set_config('TimeZone', 'UTC', true)
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The queue at one instant of the database's clock.

    Attributes:
        taken_at: The instant.
        scope: Whose jobs and runs are counted; workers belong to no organization.
        counts: Jobs of each status, none counted beyond `COUNT_CAP`.
        runs: Workflow runs of each status, none counted beyond `COUNT_CAP`.
        oldest_waiting: For each type the due job that has been waiting for longest.
        workers: Those that report, last seen first.
    """

    taken_at: datetime
    scope: Scope
    _: KW_ONLY
    counts: Mapping[JobStatus, BoundedCount]
    runs: Mapping[WorkflowRunStatus, BoundedCount]
    oldest_waiting: list[WaitingJob]
    workers: list[WorkerRecord]


def is_live(worker: WorkerRecord) -> bool:
    """Tell whether a worker has been seen lately: it reports each third of its lease TTL."""
    return worker.seconds_since_seen <= SILENT_AFTER_SECONDS


def fetch_snapshot(database_url: str, scope: Scope, *, check_schema: bool = True) -> Snapshot:
    """Read a snapshot over a connection of its own.

    Args:
        database_url: A PostgreSQL URL or keyword string.
        scope: Whose jobs and workflow runs to count.
        check_schema: Refuse a database whose schema is not that of this version.

    Raises:
        ValidationError: `config.database_url_invalid`; the URL is not shown.
        ConflictError: A `schema.*` code if the schema is not that of this version.
        UnavailableError: `db.unavailable`, `db.statement_timeout`.
        ForbiddenError: `db.permission_denied` if the role may not read a table.

    Transaction: one of its own, read-only; all reads see the same instant.
    """
    parameters = _parameters(database_url)
    try:
        with psycopg.connect(**parameters, row_factory=tuple_row) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with connection.transaction():
                return _read(connection, scope, check_schema=check_schema)
    except psycopg.Error as error:
        raise classify_query_error(error) from error


def _read(
    connection: psycopg.Connection[tuple[Any, ...]], scope: Scope, *, check_schema: bool
) -> Snapshot:
    settings = {"statement_timeout": _STATEMENT_TIMEOUT}
    [(taken_at, *_)] = connection.execute(PREPARE_READ, settings).fetchall()
    if check_schema:
        ensure_schema_compatible(connection)
    return Snapshot(
        taken_at,
        scope,
        counts=count_jobs_by_status_bounded(connection, scope=scope, cap=COUNT_CAP),
        runs=count_workflow_runs_by_status_bounded(connection, scope=scope, cap=COUNT_CAP),
        oldest_waiting=oldest_waiting_jobs(connection, scope=scope),
        workers=list_workers(connection),
    )


def _parameters(database_url: str) -> dict[str, Any]:
    defaults = {"application_name": "runledger-tui", "connect_timeout": _CONNECT_SECONDS}
    try:
        return defaults | conninfo_to_dict(database_url)
    except psycopg.ProgrammingError:
        # The driver's words repeat parts of the text, of which one may be a password.
        raise ValidationError(
            "config.database_url_invalid",
            "the database URL is neither a PostgreSQL URL nor a keyword string",
            field="DATABASE_URL",
        ) from None
