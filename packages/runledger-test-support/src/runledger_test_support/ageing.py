"""Move rows in time instead of sleeping.

Every function is one statement. On a connection it joins the caller's transaction, who commits; on
a pool it is a transaction of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, LiteralString, TypeAlias
from uuid import UUID

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import NotFoundError

from .errors import ROW_NOT_FOUND

# Any: whatever the row type of the caller's connections.
Connectable: TypeAlias = "psycopg.Connection[Any] | ConnectionPool[Any]"

AGE_LEASE: Final = """
UPDATE runledger.job_queue
SET lease_expires_at = lease_expires_at - make_interval(secs => %(seconds)s::float8),
    last_heartbeat_at = last_heartbeat_at - make_interval(secs => %(seconds)s::float8)
WHERE id = %(job_id)s AND status = 'LEASED'
"""

EXPIRE_LEASE: Final = """
UPDATE runledger.job_queue
SET lease_expires_at = clock_timestamp() - interval '1 second'
WHERE id = %(job_id)s AND status = 'LEASED'
"""

MAKE_DUE: Final = """
UPDATE runledger.job_queue
SET next_run_at = least(next_run_at, clock_timestamp() - interval '1 second'), is_ready = true
WHERE id = %(job_id)s AND status = 'PENDING'
"""

POSTPONE: Final = """
UPDATE runledger.job_queue
SET next_run_at = clock_timestamp() + make_interval(secs => %(seconds)s::float8), is_ready = false
WHERE id = %(job_id)s AND status = 'PENDING'
"""

AGE_JOB: Final = """
WITH aged_attempts AS (
    UPDATE runledger.job_attempts
    SET leased_at = leased_at - make_interval(secs => %(seconds)s::float8),
        finished_at = finished_at - make_interval(secs => %(seconds)s::float8)
    WHERE job_id = %(job_id)s
), aged_events AS (
    UPDATE runledger.job_events
    SET occurred_at = occurred_at - make_interval(secs => %(seconds)s::float8)
    WHERE job_id = %(job_id)s
), aged_logs AS (
    UPDATE runledger.job_logs
    SET occurred_at = occurred_at - make_interval(secs => %(seconds)s::float8)
    WHERE job_id = %(job_id)s
), aged_dead_letters AS (
    UPDATE runledger.job_dead_letters
    SET failed_at = failed_at - make_interval(secs => %(seconds)s::float8),
        created_at = created_at - make_interval(secs => %(seconds)s::float8)
    WHERE job_id = %(job_id)s
)
UPDATE runledger.job_queue
SET created_at = created_at - make_interval(secs => %(seconds)s::float8),
    updated_at = updated_at - make_interval(secs => %(seconds)s::float8),
    leased_at = leased_at - make_interval(secs => %(seconds)s::float8),
    started_at = started_at - make_interval(secs => %(seconds)s::float8),
    finished_at = finished_at - make_interval(secs => %(seconds)s::float8)
WHERE id = %(job_id)s
"""

MAKE_SCHEDULE_DUE: Final = """
UPDATE runledger.job_schedules
SET next_fire_at = clock_timestamp() - make_interval(secs => %(seconds)s::float8), retry_at = NULL
WHERE name = %(name)s
"""

AGE_WORKER: Final = """
UPDATE runledger.job_workers
SET last_seen_at = last_seen_at - make_interval(secs => %(seconds)s::float8)
WHERE worker_id = %(worker_id)s
"""


def age_lease(db: Connectable, job_id: UUID, seconds: float) -> None:
    """Move a lease back: it expires so much earlier, and its last heartbeat is so much older.

    Raises:
        NotFoundError: `test_support.row_not_found` if no such job is leased.
    """
    _move(db, AGE_LEASE, {"job_id": job_id, "seconds": seconds})


def expire_lease(db: Connectable, job_id: UUID) -> None:
    """Let a lease have expired a second ago.

    Raises:
        NotFoundError: `test_support.row_not_found` if no such job is leased.
    """
    _move(db, EXPIRE_LEASE, {"job_id": job_id})


def make_due(db: Connectable, job_id: UUID) -> None:
    """Let a pending job be due since a second, or since longer if it was.

    Raises:
        NotFoundError: `test_support.row_not_found` if no such job is pending.
    """
    _move(db, MAKE_DUE, {"job_id": job_id})


def postpone(db: Connectable, job_id: UUID, seconds: float) -> None:
    """Let a pending job be due only so many seconds from now.

    Raises:
        NotFoundError: `test_support.row_not_found` if no such job is pending.
    """
    _move(db, POSTPONE, {"job_id": job_id, "seconds": seconds})


def age_job(db: Connectable, job_id: UUID, seconds: float) -> None:
    """Make a job and its history older, as for retention; its due time and lease stay.

    Raises:
        NotFoundError: `test_support.row_not_found` if there is no such job.
    """
    _move(db, AGE_JOB, {"job_id": job_id, "seconds": seconds})


def make_schedule_due(db: Connectable, name: str, seconds_ago: float = 1.0) -> None:
    """Let a schedule be due since so many seconds; forgets a pending retry.

    Raises:
        NotFoundError: `test_support.row_not_found` if there is no such schedule.
    """
    _move(db, MAKE_SCHEDULE_DUE, {"name": name, "seconds": seconds_ago})


def age_worker(db: Connectable, worker_id: str, seconds: float) -> None:
    """Let a worker's last sign of life be so much older.

    Raises:
        NotFoundError: `test_support.row_not_found` if there is no such worker.
    """
    _move(db, AGE_WORKER, {"worker_id": worker_id, "seconds": seconds})


def connection_of(db: Connectable) -> AbstractContextManager[psycopg.Connection[Any]]:
    """Return the connection itself, or one of the pool for a block."""
    return nullcontext(db) if isinstance(db, psycopg.Connection) else db.connection()


def _move(db: Connectable, statement: LiteralString, parameters: dict[str, object]) -> None:
    with connection_of(db) as connection:
        moved = connection.execute(statement, parameters).rowcount
    if moved != 1:
        raise NotFoundError(ROW_NOT_FOUND, "no such row in the state that this helper moves")
