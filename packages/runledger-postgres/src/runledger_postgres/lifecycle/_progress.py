"""Progress: what a running attempt reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runledger_core import ErrorCategory, JobLease, JobProgressUpdate

from .._arguments import check_kind, check_lock_timeout
from .._database import Database
from .._rows import Statement
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run
from ..errors import refusal
from ._lease import (
    LEASED_ENTRIES,
    LIVE_ENTRIES,
    WAIT_FOR_LOCK,
    lease_owner_mismatch,
    lease_parameters,
)


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """Progress as stored: what an update gave, merged with what was there."""

    progress_done: int | None
    progress_total: int | None


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """The merged progress, and whether it was valid and stored."""

    is_valid: bool
    progress_done: int | None
    progress_total: int | None


UPDATE_JOB_PROGRESS: Final = Statement(
    f"""
    WITH locked AS MATERIALIZED (
        SELECT
            q.id AS job_id, q.lease_expires_at, q.stage AS previous_stage,
            coalesce(%(done)s::int8, q.progress_done) AS progress_done,
            coalesce(%(total)s::int8, q.progress_total) AS progress_total,
            coalesce(
                coalesce(%(done)s::int8, q.progress_done)
                    <= coalesce(%(total)s::int8, q.progress_total),
                true
            ) AS is_valid
        {LEASED_ENTRIES}
        {WAIT_FOR_LOCK}
    ), {LIVE_ENTRIES}, updated AS (
        UPDATE runledger.job_queue AS q
        SET
            stage = coalesce(%(stage)s::text, q.stage),
            progress_done = l.progress_done,
            progress_total = l.progress_total,
            checkpoint = coalesce(%(checkpoint)s::jsonb, q.checkpoint),
            progressed_claim_number = q.claim_number,
            updated_at = l.at
        FROM live AS l
        -- There is one lease, so one row in `live`; it is found by an array: see LEASED_ENTRIES.
        WHERE q.id = ANY (ARRAY(SELECT o.job_id FROM live AS o)) AND l.is_valid
        RETURNING q.id, q.claim_number, q.run_number, q.attempt, l.at, l.previous_stage
    ), events AS (
        -- One insert for both, since the order of two is not defined; theirs is.
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, stage, progress_done,
            progress_total, occurred_at
        )
        SELECT
            u.id, u.claim_number, u.run_number, u.attempt, n.event_type, n.stage, n.done, n.total,
            u.at
        FROM updated AS u
        CROSS JOIN LATERAL (
            SELECT
                1 AS place, 'STAGE_CHANGED'::runledger.job_event_type AS event_type,
                %(stage)s::text AS stage, NULL::int8 AS done, NULL::int8 AS total
            -- Running is what every claim says of itself: to repeat it is no news.
            WHERE %(stage)s::text IS NOT NULL
                AND (%(stage)s::text, u.previous_stage) <> ('running', 'running')
            UNION ALL
            SELECT 2, 'PROGRESS', NULL, %(done)s::int8, %(total)s::int8
            WHERE %(done)s::int8 IS NOT NULL OR %(total)s::int8 IS NOT NULL
        ) AS n
        ORDER BY n.place
    )
    SELECT l.is_valid, l.progress_done, l.progress_total
    FROM live AS l
    LEFT JOIN updated AS u ON u.id = l.job_id
    WHERE u.id IS NOT NULL OR NOT l.is_valid
    """,
    ProgressRow,
)


def update_job_progress(
    db: Database,
    lease: JobLease,
    update: JobProgressUpdate,
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> StoredProgress:
    """Store stage, progress and checkpoint of a running attempt; the lease is not renewed.

    Args:
        update: What to change; what is not given stays.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Returns:
        The merged progress.

    Raises:
        ForbiddenError: `job.lease_owner_mismatch` if the lease is not live; nothing is changed.
        ValidationError: `job.invalid_progress` if progress, merged with what is stored, is beyond
            its total; nothing is changed.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    check_kind(lease, JobLease, field="lease")
    check_kind(update, JobProgressUpdate, field="update")
    parameters = lease_parameters([lease]) | {
        "stage": update.stage,
        "done": update.done,
        "total": update.total,
        "checkpoint": update.checkpoint_json,
    }
    rows = run(
        db,
        Bound(UPDATE_JOB_PROGRESS, parameters),
        lock_timeout_ms=check_lock_timeout(lock_timeout_ms),
    )
    if not rows:
        raise lease_owner_mismatch()
    row = rows[0]
    if not row.is_valid:
        raise refusal(
            ErrorCategory.VALIDATION,
            "job.invalid_progress",
            "progress must be at most its total",
            field="done",
        )
    return StoredProgress(row.progress_done, row.progress_total)
