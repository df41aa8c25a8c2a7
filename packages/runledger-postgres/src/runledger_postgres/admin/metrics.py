"""Figures per job type: the last 24 hours, and what has been waiting longest."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from runledger_core import JobType, Scope

from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """Figures of one job type; durations are None without an ended attempt."""

    job_type: str
    is_enabled: bool
    _: KW_ONLY
    pending_count: int
    leased_count: int
    stale_leases: int
    succeeded_24h: int
    retryable_24h: int
    terminal_24h: int
    panicked_24h: int
    timeout_24h: int
    lease_expired_24h: int
    dead_lettered_24h: int
    p50_duration_ms_24h: float | None
    p95_duration_ms_24h: float | None


_WANTED: Final = f"""
    {IN_SCOPE} AND (%(job_type)s::text IS NULL OR q.job_type = %(job_type)s::text)
"""

# As the view job_metrics_rollup, but grouped by type alone: percentiles of organizations cannot be
# put together afterwards.
GET_JOB_METRICS: Final = Statement(
    f"""
    WITH queued AS (
        SELECT
            q.job_type,
            count(*) FILTER (WHERE q.status = 'PENDING') AS pending_count,
            count(*) FILTER (WHERE q.status = 'LEASED') AS leased_count,
            count(*) FILTER (
                WHERE q.status = 'LEASED' AND q.lease_expires_at < statement_timestamp()
            ) AS stale_leases
        FROM runledger.job_queue AS q
        WHERE q.status IN ('PENDING', 'LEASED') AND {_WANTED}
        GROUP BY q.job_type
    ), attempted AS (
        SELECT
            q.job_type,
            count(*) FILTER (WHERE a.outcome = 'SUCCEEDED') AS succeeded_24h,
            count(*) FILTER (WHERE a.outcome = 'RETRYABLE') AS retryable_24h,
            count(*) FILTER (WHERE a.outcome = 'TERMINAL') AS terminal_24h,
            count(*) FILTER (WHERE a.outcome = 'PANICKED') AS panicked_24h,
            count(*) FILTER (WHERE a.outcome = 'TIMEOUT') AS timeout_24h,
            count(*) FILTER (WHERE a.outcome = 'LEASE_EXPIRED') AS lease_expired_24h,
            percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (
                ORDER BY extract(epoch FROM a.finished_at - a.leased_at) * 1000
            ) AS durations
        FROM runledger.job_attempts AS a
        JOIN runledger.job_queue AS q ON q.id = a.job_id
        WHERE a.finished_at > statement_timestamp() - interval '24 hours' AND {_WANTED}
        GROUP BY q.job_type
    ), dead AS (
        SELECT q.job_type, count(*) AS dead_lettered_24h
        FROM runledger.job_events AS e
        JOIN runledger.job_queue AS q ON q.id = e.job_id
        WHERE e.event_type = 'DEAD_LETTERED'
            AND e.occurred_at > statement_timestamp() - interval '24 hours'
            AND {_WANTED}
        GROUP BY q.job_type
    )
    SELECT
        d.job_type, d.is_enabled,
        coalesce(n.pending_count, 0) AS pending_count,
        coalesce(n.leased_count, 0) AS leased_count,
        coalesce(n.stale_leases, 0) AS stale_leases,
        coalesce(a.succeeded_24h, 0) AS succeeded_24h,
        coalesce(a.retryable_24h, 0) AS retryable_24h,
        coalesce(a.terminal_24h, 0) AS terminal_24h,
        coalesce(a.panicked_24h, 0) AS panicked_24h,
        coalesce(a.timeout_24h, 0) AS timeout_24h,
        coalesce(a.lease_expired_24h, 0) AS lease_expired_24h,
        coalesce(l.dead_lettered_24h, 0) AS dead_lettered_24h,
        a.durations[1] AS p50_duration_ms_24h,
        a.durations[2] AS p95_duration_ms_24h
    FROM runledger.job_definitions AS d
    LEFT JOIN queued AS n ON n.job_type = d.job_type
    LEFT JOIN attempted AS a ON a.job_type = d.job_type
    LEFT JOIN dead AS l ON l.job_type = d.job_type
    WHERE %(job_type)s::text IS NULL OR d.job_type = %(job_type)s::text
    ORDER BY d.job_type
    """,
    JobMetrics,
)


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """The job of a type that has been due for longest.

    Attributes:
        job_type: The type.
        job_id: The job.
        due_at: When it became due.
        waiting_seconds: Since then, or since it was made if that was later; 0 or more.
    """

    job_type: str
    job_id: UUID
    _: KW_ONLY
    due_at: datetime
    waiting_seconds: float


# Ready rows are read by jumps over the claim index: the first of each (type, priority), which is
# its oldest. Rows that came due but that no worker has readied yet lie in the index of the waiting
# ones, oldest first; if nobody has readied for long they are many, and the oldest tell enough.
OLDEST_WAITING_JOBS: Final = Statement(
    f"""
    WITH RECURSIVE heads AS (
        (
            SELECT q.job_type, ~q.priority AS rank, q.next_run_at, q.id, q.created_at
            FROM runledger.job_queue AS q
            WHERE q.status = 'PENDING' AND q.is_ready AND {IN_SCOPE}
            ORDER BY q.job_type, ~q.priority, q.next_run_at, q.id
            LIMIT 1
        )
        UNION ALL
        SELECT n.job_type, n.rank, n.next_run_at, n.id, n.created_at
        FROM heads AS h
        CROSS JOIN LATERAL (
            SELECT q.job_type, ~q.priority AS rank, q.next_run_at, q.id, q.created_at
            FROM runledger.job_queue AS q
            WHERE q.status = 'PENDING' AND q.is_ready
                AND (q.job_type, ~q.priority) > (h.job_type, h.rank)
                AND {IN_SCOPE}
            ORDER BY q.job_type, ~q.priority, q.next_run_at, q.id
            LIMIT 1
        ) AS n
    ), unreadied AS (
        SELECT q.job_type, q.next_run_at, q.id, q.created_at
        FROM runledger.job_queue AS q
        WHERE q.status = 'PENDING' AND NOT q.is_ready
            -- No clock_timestamp(): a volatile function bounds no index scan.
            AND q.next_run_at <= statement_timestamp()
            AND {IN_SCOPE}
        ORDER BY q.next_run_at
        LIMIT 10000
    ), due AS (
        SELECT h.job_type, h.next_run_at, h.id, h.created_at FROM heads AS h
        UNION ALL
        SELECT u.job_type, u.next_run_at, u.id, u.created_at FROM unreadied AS u
    )
    SELECT DISTINCT ON (d.job_type)
        d.job_type, d.id AS job_id, d.next_run_at AS due_at,
        greatest(
            extract(epoch FROM clock_timestamp() - greatest(d.next_run_at, d.created_at)), 0
        )::float8 AS waiting_seconds
    FROM due AS d
    ORDER BY d.job_type, d.next_run_at, d.id
    """,
    WaitingJob,
)


def get_job_metrics(db: Database, *, scope: Scope, job_type: str | None = None) -> list[JobMetrics]:
    """Return figures of the last 24 hours, one row per job definition, by type.

    Args:
        scope: Whose jobs are counted; percentiles are those of all their attempts together.
        job_type: Only this type; None for every definition.

    Returns:
        Definitions without jobs are included with zeros; empty if the type has no definition.

    Raises:
        ValidationError: An `input.*` code for the type.

    Transaction: joins the caller's or opens one.
    """
    parameters: dict[str, object] = {"job_type": None if job_type is None else JobType(job_type)}
    return run(db, Bound(GET_JOB_METRICS, parameters | scope_parameters(scope)))


def oldest_waiting_jobs(db: Database, *, scope: Scope) -> list[WaitingJob]:
    """Return for each job type the due job that has been waiting for longest, by type.

    Cheap however many jobs wait. If more than 10,000 jobs came due that no worker has looked at, a
    type whose jobs all came due later than those may be missing.

    Args:
        scope: Whose jobs.

    Transaction: joins the caller's or opens one.
    """
    return run(db, Bound(OLDEST_WAITING_JOBS, scope_parameters(scope)))
