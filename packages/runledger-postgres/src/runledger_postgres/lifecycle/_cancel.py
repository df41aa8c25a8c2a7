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
from ._lease import CLOCK_AFTER_LOCKS
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
        SELECT
            q.id, q.claim_number, q.run_number, q.attempt, q.status = 'LEASED' AS is_running,
            q.worker_id, q.leased_at
        FROM runledger.job_queue AS q
        WHERE q.id = ANY (%(job_ids)s::uuid[])
            AND q.status IN ('PENDING', 'LEASED')
            AND {IN_SCOPE}
        ORDER BY q.id
        FOR NO KEY UPDATE
    {CLOCK_AFTER_LOCKS}
    ), canceled AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'CANCELED',
            is_ready = false,
            finished_at = c.at,
            lease_expires_at = NULL,
            last_heartbeat_at = NULL,
            leased_at = NULL,
            worker_id = NULL,
            output = NULL,
            status_reason = coalesce(%(reason)s::text, 'CANCELED'),
            updated_at = c.at
        FROM clock AS c
        WHERE q.id = ANY (ARRAY(SELECT l.id FROM locked AS l))
        RETURNING q.id
    ), written AS MATERIALIZED (
        SELECT l.*, c.at
        FROM locked AS l
        CROSS JOIN clock AS c
        WHERE l.id = ANY (ARRAY(SELECT d.id FROM canceled AS d))
    ), attempts AS (
        INSERT INTO runledger.job_attempts (
            job_id, claim_number, run_number, attempt, worker_id, outcome, leased_at, finished_at
        )
        SELECT l.id, l.claim_number, l.run_number, l.attempt, l.worker_id, 'CANCELED',
            l.leased_at, l.at
        FROM written AS l
        WHERE l.is_running
    ), events AS (
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, payload, occurred_at
        )
        SELECT l.id, l.claim_number, l.run_number, nullif(l.attempt, 0), 'CANCELED',
            jsonb_build_object('reason', coalesce(%(reason)s::text, 'CANCELED')), l.at
        FROM written AS l
    ), running AS (
        SELECT string_agg(n.id::text, ',') AS ids
        FROM (
            SELECT l.id, (row_number() OVER (ORDER BY l.id) - 1) / 200 AS chunk
            FROM written AS l
            WHERE l.is_running
        ) AS n
        GROUP BY n.chunk
    )
    SELECT
        l.id AS job_id,
        (SELECT count(pg_notify('{CANCEL_CHANNEL}', r.ids)::text) FROM running AS r) AS notified
    FROM written AS l
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
