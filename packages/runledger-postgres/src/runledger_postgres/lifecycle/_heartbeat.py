"""Heartbeat: keep leases alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, LiteralString

from runledger_core import JobLease

from .._arguments import check_kind, check_lock_timeout
from .._database import Database
from .._rows import Statement, column
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run
from ._lease import (
    IS_LIVE_LEASE,
    LEASED_ENTRIES,
    LIVE_ENTRIES,
    ROW_AND_ATTEMPT,
    SKIP_LOCKED,
    WAIT_FOR_LOCK,
    checked_leases,
    lease_owner_mismatch,
    lease_parameters,
    require_lease_ttl,
)
from ._misses import with_misses


class HeartbeatVerdict(StrEnum):
    """What a heartbeat found."""

    RENEWED = "RENEWED"
    """The lease lasts another TTL from now."""
    BUSY = "BUSY"
    """Another transaction holds the row; the lease is still live, beat again before it ends."""
    CANCELED = "CANCELED"
    """The job was canceled while this claim ran it; the handler should stop."""
    LOST = "LOST"
    """The lease ended, or another claim has the job; the handler must stop."""


@dataclass(frozen=True, slots=True)
class BeatenRow:
    """One renewed lease."""

    entry: int


# Writes no indexed column, so the update stays on its page (HOT).
def _beat(locking: LiteralString) -> LiteralString:
    return f"""
    WITH locked AS MATERIALIZED (
        SELECT e.entry, q.id AS job_id, q.lease_expires_at
        {LEASED_ENTRIES}
        {locking}
    ), {LIVE_ENTRIES}, beaten AS (
        UPDATE runledger.job_queue AS q
        SET
            lease_expires_at = c.at + %(lease_ttl_seconds)s::int8 * interval '1 second',
            last_heartbeat_at = c.at,
            updated_at = c.at
        FROM clock AS c
        WHERE q.id = ANY (ARRAY(SELECT l.job_id FROM live AS l))
        RETURNING q.id
    )
    SELECT l.entry FROM live AS l WHERE l.job_id = ANY (ARRAY(SELECT b.id FROM beaten AS b))
"""


HEARTBEAT_JOBS: Final = Statement(_beat(SKIP_LOCKED), BeatenRow)
HEARTBEAT_JOB: Final = Statement(_beat(WAIT_FOR_LOCK), BeatenRow)


@dataclass(frozen=True, slots=True)
class _MissedBeatRow:
    entry: int
    verdict: HeartbeatVerdict = column(HeartbeatVerdict)


JUDGE_MISSED_BEATS: Final = Statement(
    f"""
    SELECT
        e.entry::int4 AS entry,
        CASE
            WHEN {IS_LIVE_LEASE} THEN 'BUSY'
            WHEN a.outcome = 'CANCELED' AND a.worker_id = e.worker_id THEN 'CANCELED'
            ELSE 'LOST'
        END AS verdict
    FROM unnest(%(job_ids)s::uuid[], %(claim_numbers)s::int8[], %(worker_ids)s::text[])
        WITH ORDINALITY AS e(job_id, claim_number, worker_id, entry)
    {ROW_AND_ATTEMPT}
    ORDER BY e.entry
    """,
    _MissedBeatRow,
)


def heartbeat_job(
    db: Database,
    lease: JobLease,
    *,
    lease_ttl_seconds: int,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> None:
    """Renew one lease from the database's clock; a shorter TTL shortens it.

    Args:
        lease_ttl_seconds: Lease length from now in seconds, 1 or more.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Raises:
        ForbiddenError: `job.lease_owner_mismatch` if the lease is not live; nothing is changed.
        ValidationError: `job.invalid_lease_duration`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    ttl = require_lease_ttl(lease_ttl_seconds)
    check_kind(lease, JobLease, field="lease")
    parameters = lease_parameters([lease]) | {"lease_ttl_seconds": ttl}
    if not run(
        db, Bound(HEARTBEAT_JOB, parameters), lock_timeout_ms=check_lock_timeout(lock_timeout_ms)
    ):
        raise lease_owner_mismatch()


def heartbeat_jobs(
    db: Database, leases: Sequence[JobLease], *, lease_ttl_seconds: int
) -> list[HeartbeatVerdict]:
    """Renew many leases in one statement.

    Returns:
        One verdict per lease, in input order; rows that others hold are BUSY and not waited for.

    Raises:
        ValidationError: `job.invalid_lease_duration`, or `input.duplicate_entry`.

    Transaction: joins the caller's or opens one.
    """
    ttl = require_lease_ttl(lease_ttl_seconds)
    leases = checked_leases(leases)
    if not leases:
        return []
    parameters = lease_parameters(leases) | {"lease_ttl_seconds": ttl}
    rows = run(db, Bound(HEARTBEAT_JOBS, parameters))

    def judge_missed(missed: list[int]) -> list[HeartbeatVerdict]:
        bound = Bound(JUDGE_MISSED_BEATS, lease_parameters([leases[index] for index in missed]))
        return [row.verdict for row in run(db, bound)]

    renewed = dict.fromkeys((row.entry - 1 for row in rows), HeartbeatVerdict.RENEWED)
    return with_misses(renewed, len(leases), judge_missed)
