"""Cancel of a run: all of its steps and jobs that have not ended, in one statement."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final
from uuid import UUID

from runledger_core import (
    ErrorCategory,
    Scope,
    check_text,
    check_uuid,
    current_limits,
    sanitize_text,
)
from runledger_core.workflows import WorkflowRunStatus

from .._arguments import check_lock_timeout
from .._database import Database
from .._rows import Statement
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, transaction
from .._whole import whole_or_error
from ..errors import QueryError, refusal
from ..workflows._held_run import hold_run, lock_run
from ..workflows._waiters import COUNT_WAITERS_WOKEN
from ._canceling import COUNT_NOTIFIED, cancel_open_jobs


@dataclass(frozen=True, slots=True)
class CanceledWorkflowRun:
    """A run that has ended, and what this cancel had to do with it.

    Attributes:
        id: The run.
        status: CANCELED, or how the run had ended before.
        is_canceled_now: Whether this call canceled it; if not, nothing was changed.
        canceled_steps: Steps that this call canceled.
        canceled_jobs: Jobs among them, pending and running.
    """

    id: UUID
    status: WorkflowRunStatus
    _: KW_ONLY
    is_canceled_now: bool
    canceled_steps: int = 0
    canceled_jobs: int = 0


@dataclass(frozen=True, slots=True)
class CanceledRunRow:
    """How much was canceled, and how many were told."""

    canceled_steps: int
    canceled_jobs: int
    notified: int
    waiters_woken: int
    is_whole: bool


# What a failed attempt left is kept, unless the cancel says more.
_ERRORS: Final = """
            (last_error_code, last_error_message) = (
                SELECT e.code, e.message
                FROM (VALUES
                    (1, %(error_code)s::text, %(error_message)s::text),
                    (2, q.last_error_code, q.last_error_message)
                ) AS e(place, code, message)
                WHERE e.code IS NOT NULL OR e.message IS NOT NULL
                ORDER BY e.place
                LIMIT 1
            ),
"""

_IS_WHOLE: Final = """
    n.steps = (
        SELECT count(*)
        FROM runledger.workflow_steps AS s
        WHERE s.workflow_run_id = %(run_id)s::uuid
            AND s.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')
    )
    AND (SELECT count(*) FROM written) = (SELECT count(*) FROM locked)
    AND EXISTS (SELECT FROM ended_runs)
"""

# The run is locked by an earlier statement, so nobody else ends or releases a step of it. Jobs are
# locked before steps are written, since the clock waits for them. A step with a job has its reason
# there. What waits for a canceled step is canceled itself: nothing is released.
CANCEL_WORKFLOW_RUN: Final = Statement(
    f"""
    {cancel_open_jobs("q.workflow_run_id = %(run_id)s::uuid", errors=_ERRORS)}, steps AS (
        UPDATE runledger.workflow_steps AS s
        SET
            status = 'CANCELED',
            finished_at = c.at,
            status_reason = CASE
                WHEN s.job_id IS NULL THEN coalesce(%(reason)s::text, 'CANCELED')
            END,
            last_error_code = CASE WHEN s.job_id IS NULL THEN %(error_code)s::text END,
            last_error_message = CASE WHEN s.job_id IS NULL THEN %(error_message)s::text END,
            updated_at = c.at
        FROM clock AS c
        WHERE s.workflow_run_id = %(run_id)s::uuid
            AND s.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')
        RETURNING s.id
    ), counted AS MATERIALIZED (
        SELECT count(*)::int4 AS steps FROM steps
    ), ended_runs AS (
        UPDATE runledger.workflow_runs AS w
        SET
            status = 'CANCELED',
            steps_open = 0,
            steps_waiting_external = 0,
            steps_canceled = w.steps_canceled + n.steps,
            finished_at = c.at,
            result = NULL,
            updated_at = c.at
        FROM clock AS c
        CROSS JOIN counted AS n
        WHERE w.id = %(run_id)s::uuid
        RETURNING w.id
    )
    SELECT
        n.steps AS canceled_steps,
        (SELECT count(*)::int4 FROM written) AS canceled_jobs,
        ({COUNT_NOTIFIED}) AS notified,
        ({COUNT_WAITERS_WOKEN}) AS waiters_woken,
        {whole_or_error(_IS_WHOLE)} AS is_whole
    FROM counted AS n
    """,
    CanceledRunRow,
)


def cancel_workflow_run(
    db: Database,
    run_id: UUID,
    *,
    scope: Scope,
    reason: str | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> CanceledWorkflowRun:
    """Cancel a run: every step and job of it that has not ended.

    Steps that have ended stay as they are, and nothing is released, steps that wait for any end of
    a canceled one neither. A running handler is told at once through its cancel token if the worker
    listens, else at its next heartbeat; whatever it writes afterwards is refused. A run that has
    ended is left as it is.

    Args:
        scope: Whose run it may be.
        reason: Kept on the steps and jobs, and in the jobs' events; "CANCELED" if None; cut to
            8 KiB.
        error_code: Kept on the steps and jobs, at most 200 characters.
        error_message: Kept on the steps and jobs; cut to 8 KiB.
        lock_timeout_ms: Longest wait for the row of the run, or of one of its jobs, in
            milliseconds.

    Returns:
        The run's status now, and whether this call canceled it.

    Raises:
        NotFoundError: `workflow.run_not_found` if no run of that id is in scope.
        ValidationError: `workflow.cancel_unsupported_isolation` outside READ COMMITTED, or an
            `input.*` code that names the argument.
        InternalError: `db.rows_kept_back` if a trigger of the host keeps rows back; nothing
            is changed.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`; the same call
            may be repeated.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the run, then its jobs.
    """
    run_id = check_uuid(run_id, field="run_id")
    wait_ms = check_lock_timeout(lock_timeout_ms)
    lock = lock_run(run_id, scope)
    cancel = Bound(
        CANCEL_WORKFLOW_RUN,
        {"run_id": run_id} | _texts(reason, error_code=error_code, error_message=error_message),
    )
    with transaction(db, savepoint=True, lock_timeout_ms=wait_ms) as work:
        run = hold_run(work, lock, unsupported_isolation=_unsupported_isolation).run
        if run.status.is_terminal:
            return CanceledWorkflowRun(run_id, run.status, is_canceled_now=False)
        row: CanceledRunRow = work.finish([cancel])[0][0]
    return _canceled(run_id, row)


def _canceled(run_id: UUID, row: CanceledRunRow) -> CanceledWorkflowRun:
    return CanceledWorkflowRun(
        run_id,
        WorkflowRunStatus.CANCELED,
        is_canceled_now=True,
        canceled_steps=row.canceled_steps,
        canceled_jobs=row.canceled_jobs,
    )


def _texts(
    reason: str | None, *, error_code: str | None, error_message: str | None
) -> dict[str, object]:
    limits = current_limits()
    if error_code is not None:
        check_text(error_code, field="error_code", max_characters=limits.identifier_characters)
    texts = {"reason": reason, "error_message": error_message}
    for name, text in texts.items():
        if text is not None:
            check_text(text, field=name)
            texts[name] = sanitize_text(text, max_bytes=limits.error_message_bytes)
    return {**texts, "error_code": error_code}


def _unsupported_isolation() -> QueryError:
    return refusal(
        ErrorCategory.VALIDATION,
        "workflow.cancel_unsupported_isolation",
        "the cancel of a run needs a READ COMMITTED transaction",
        field="db",
    )
