"""Cancel: end jobs that have not ended, on an operator's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import Scope, check_uuid

from .._arguments import check_lock_timeout, check_uuids
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run
from ..jobs import JobRecord
from ..wakeup import CANCEL_CHANNEL
from ._operator import (
    OperatorVerdict,
    change_one,
    judge_targets,
    operator_parameters,
    refuse_target,
)


@dataclass(frozen=True, slots=True)
class CanceledRow:
    """One canceled job."""

    job_id: UUID
    notified: int


# The cancel channel carries ids of running jobs, 200 to a notification (its limit is 8,000 bytes).
CANCEL_JOBS: Final = Statement(
    f"""
    WITH locked AS MATERIALIZED (
        SELECT q.id, q.status = 'LEASED' AS is_running, q.worker_id, q.leased_at
        FROM runledger.job_queue AS q
        WHERE q.id = ANY (%(job_ids)s::uuid[])
            AND q.status IN ('PENDING', 'LEASED')
            AND {IN_SCOPE}
        ORDER BY q.id
        FOR NO KEY UPDATE
    ), timed AS MATERIALIZED (
        -- The lock may have been waited for.
        SELECT l.*, clock_timestamp() AS at FROM locked AS l
    ), canceled AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'CANCELED',
            is_ready = false,
            finished_at = l.at,
            lease_expires_at = NULL,
            last_heartbeat_at = NULL,
            leased_at = NULL,
            worker_id = NULL,
            output = NULL,
            status_reason = coalesce(%(reason)s::text, 'CANCELED'),
            updated_at = l.at
        FROM timed AS l
        WHERE q.id = l.id
        RETURNING
            q.id, q.claim_number, q.run_number, q.attempt, q.status_reason,
            l.is_running, l.worker_id, l.leased_at, l.at
    ), attempts AS (
        INSERT INTO runledger.job_attempts (
            job_id, claim_number, run_number, attempt, worker_id, outcome, leased_at, finished_at
        )
        SELECT c.id, c.claim_number, c.run_number, c.attempt, c.worker_id, 'CANCELED',
            c.leased_at, c.at
        FROM canceled AS c
        WHERE c.is_running
    ), events AS (
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, payload, occurred_at
        )
        SELECT c.id, c.claim_number, c.run_number, nullif(c.attempt, 0), 'CANCELED',
            jsonb_build_object('reason', c.status_reason), c.at
        FROM canceled AS c
    ), running AS (
        SELECT string_agg(n.id::text, ',') AS ids
        FROM (
            SELECT c.id, (row_number() OVER (ORDER BY c.id) - 1) / 200 AS chunk
            FROM canceled AS c
            WHERE c.is_running
        ) AS n
        GROUP BY n.chunk
    )
    SELECT
        c.id AS job_id,
        (SELECT count(pg_notify('{CANCEL_CHANNEL}', r.ids)::text) FROM running AS r) AS notified
    FROM canceled AS c
    """,
    CanceledRow,
)


def cancel_job(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    reason: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> JobRecord:
    """Cancel a pending or running job.

    A running handler is told at once through its cancel token if the worker listens, else at its
    next heartbeat; whatever it writes afterwards is refused.

    Args:
        scope: Whose job it may be.
        reason: Kept on the job and in its events; "CANCELED" if None; cut to 8 KiB.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Returns:
        The canceled job.

    Raises:
        NotFoundError: `job.not_found` if no job of that id is in scope.
        ValidationError: `job.invalid_state_transition` if the job has ended.
        InternalError: `job.undecodable_row` if Python cannot read its JSON; it is canceled then.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    job_id = check_uuid(job_id, field="job_id")
    bound = Bound(CANCEL_JOBS, operator_parameters([job_id], scope, reason))
    is_done, job = change_one(db, bound, job_id, scope=scope, lock_timeout_ms=lock_timeout_ms)
    if job is None:
        raise refuse_target(OperatorVerdict.NOT_FOUND)
    if not is_done:
        raise refuse_target(OperatorVerdict.INVALID_STATE)
    return job


def cancel_jobs(
    db: Database,
    job_ids: Sequence[UUID],
    *,
    scope: Scope,
    reason: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> list[OperatorVerdict]:
    """Cancel many jobs in one statement.

    Returns:
        One verdict per id, in input order.

    Raises:
        UnavailableError: `db.lock_timeout` if one of the rows stays locked; nothing is changed.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    targets = check_uuids(job_ids, field="job_ids")
    if not targets:
        return []
    bound = Bound(CANCEL_JOBS, operator_parameters(targets, scope, reason))
    rows = run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
    return judge_targets(db, targets, {row.job_id for row in rows}, scope=scope)
