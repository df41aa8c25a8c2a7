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
from .._scope import IN_SCOPE, scope_parameters
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..jobs import JobRecord
from ..jobs._read import GET_JOB
from ..workflows import IS_RUN_LOCKED, end_jobs, end_jobs_and_read
from ._canceling import COUNT_NOTIFIED, cancel_open_jobs
from ._operator import (
    OperatorVerdict,
    judge_targets,
    operator_parameters,
    target_refusal,
)


@dataclass(frozen=True, slots=True)
class CanceledRow:
    """One canceled job."""

    job_id: UUID
    notified: int


CANCEL_JOBS: Final = Statement(
    f"""
    {cancel_open_jobs(f"q.id = ANY (%(job_ids)s::uuid[]) AND {IN_SCOPE} AND {IS_RUN_LOCKED}")}
    SELECT l.id AS job_id, ({COUNT_NOTIFIED}) AS notified FROM written AS l
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
        lock_timeout_ms: Longest wait for the row of the job, or of its run, in milliseconds.

    Returns:
        The canceled job.

    Raises:
        NotFoundError: `job.not_found` if no job of that id is in scope.
        ValidationError: `job.invalid_state_transition` if the job has ended;
            `workflow.terminal_completion_unsupported_isolation` if it is a workflow's and the
            transaction is stronger than READ COMMITTED.
        InternalError: `job.undecodable_row` if Python cannot read its JSON; it is canceled then.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    job_id = check_uuid(job_id, field="job_id")
    canceled, found = end_jobs_and_read(
        db,
        Bound(CANCEL_JOBS, operator_parameters([job_id], scope, reason)),
        [job_id],
        scope=scope,
        lock_timeout_ms=check_lock_timeout(lock_timeout_ms),
        reads=[Bound(GET_JOB, {"job_id": job_id} | scope_parameters(scope))],
    )
    if not found[0]:
        raise target_refusal(OperatorVerdict.NOT_FOUND)
    if not canceled:
        raise target_refusal(OperatorVerdict.INVALID_STATE)
    return found[0][0]


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
        ValidationError: `workflow.terminal_completion_unsupported_isolation`, as `cancel_job`.
        UnavailableError: `db.lock_timeout` if one of the rows stays locked; nothing is changed.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    targets = check_uuids(job_ids, field="job_ids")
    if not targets:
        return []
    bound = Bound(CANCEL_JOBS, operator_parameters(targets, scope, reason))
    wait_ms = check_lock_timeout(lock_timeout_ms)
    rows = end_jobs(db, bound, targets, scope=scope, lock_timeout_ms=wait_ms)
    return judge_targets(db, targets, {row.job_id for row in rows}, scope=scope)
