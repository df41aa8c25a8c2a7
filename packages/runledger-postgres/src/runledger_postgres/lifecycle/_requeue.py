"""Requeue: run an ended job once more, as its next run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import Scope, check_uuid

from .._arguments import check_lock_timeout, check_uuids
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run, run_all
from ..jobs import JobRecord
from ..jobs._read import GET_JOB
from ..wakeup import COUNT_WOKEN
from ._lease import CLOCK_AFTER_LOCKS
from ._operator import OperatorVerdict, judge_targets, operator_parameters, target_refusal


@dataclass(frozen=True, slots=True)
class RequeuedRow:
    """One requeued job."""

    job_id: UUID
    woken: int


# claim_number is kept: a fence must not come again. The event belongs to the run that ended.
REQUEUE_JOBS: Final = Statement(
    f"""
    WITH locked AS MATERIALIZED (
        SELECT q.id, q.claim_number, q.run_number, q.attempt
        FROM runledger.job_queue AS q
        WHERE q.id = ANY (%(job_ids)s::uuid[])
            AND q.status IN ('SUCCEEDED', 'DEAD_LETTERED', 'CANCELED')
            AND q.workflow_run_id IS NULL
            AND {IN_SCOPE}
        ORDER BY q.id
        FOR NO KEY UPDATE
    ), {CLOCK_AFTER_LOCKS}, requeued AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'PENDING',
            is_ready = true,
            run_number = q.run_number + 1,
            attempt = 0,
            next_run_at = c.at,
            started_at = NULL,
            finished_at = NULL,
            stage = 'queued',
            progress_done = NULL,
            progress_total = NULL,
            checkpoint = NULL,
            output = NULL,
            status_reason = coalesce(%(reason)s::text, 'REQUEUED'),
            last_error_code = NULL,
            last_error_message = NULL,
            updated_at = c.at
        FROM clock AS c
        WHERE q.id = ANY (ARRAY(SELECT l.id FROM locked AS l))
        RETURNING q.id, q.job_type, q.is_ready
    ), written AS MATERIALIZED (
        SELECT l.*, c.at
        FROM locked AS l
        CROSS JOIN clock AS c
        WHERE l.id = ANY (ARRAY(SELECT r.id FROM requeued AS r))
    ), events AS (
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, payload, occurred_at
        )
        SELECT l.id, l.claim_number, l.run_number, nullif(l.attempt, 0), 'REQUEUED',
            jsonb_build_object(
                'kind', 'REQUEUE', 'reason', coalesce(%(reason)s::text, 'REQUEUED')
            ),
            l.at
        FROM written AS l
    ), made_due AS (
        SELECT r.job_type, r.is_ready FROM requeued AS r
    )
    SELECT l.id AS job_id, ({COUNT_WOKEN}) AS woken FROM written AS l
    """,
    RequeuedRow,
)


def requeue_job(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    reason: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> JobRecord:
    """Run an ended job once more: same id, next run number, attempts from zero, due now.

    Its idempotency key, payload, priority and limits stay; progress, checkpoint, output and errors
    are cleared. The dead letter and the history of earlier runs stay.

    Args:
        scope: Whose job it may be.
        reason: Kept on the job and in its events; "REQUEUED" if None; cut to 8 KiB.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Raises:
        NotFoundError: `job.not_found` if no job of that id is in scope.
        ValidationError: `job.invalid_state_transition` if the job has not ended;
            `job.workflow_requeue_not_supported` if it belongs to a workflow run.
        InternalError: `job.undecodable_row` if Python cannot read its JSON; it is requeued then.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    job_id = check_uuid(job_id, field="job_id")
    bound = Bound(REQUEUE_JOBS, operator_parameters([job_id], scope, reason))
    # Read in the same transaction, before anybody else can change it.
    read = Bound(GET_JOB, {"job_id": job_id} | scope_parameters(scope))
    wait_ms = check_lock_timeout(lock_timeout_ms)
    requeued, found = run_all(db, [bound, read], lock_timeout_ms=wait_ms)
    if not found:
        raise target_refusal(OperatorVerdict.NOT_FOUND)
    if requeued:
        return found[0]
    is_managed = found[0].workflow_run_id is not None
    raise target_refusal(
        OperatorVerdict.WORKFLOW_MANAGED if is_managed else OperatorVerdict.INVALID_STATE
    )


def requeue_jobs(
    db: Database,
    job_ids: Sequence[UUID],
    *,
    scope: Scope,
    reason: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> list[OperatorVerdict]:
    """Run many ended jobs once more, in one statement.

    Returns:
        One verdict per id, in input order.

    Raises:
        UnavailableError: `db.lock_timeout` if one of the rows stays locked; nothing is changed.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    targets = check_uuids(job_ids, field="job_ids")
    if not targets:
        return []
    bound = Bound(REQUEUE_JOBS, operator_parameters(targets, scope, reason))
    rows = run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
    done = {row.job_id for row in rows}
    return judge_targets(
        db, targets, done, scope=scope, of_workflow=OperatorVerdict.WORKFLOW_MANAGED
    )
