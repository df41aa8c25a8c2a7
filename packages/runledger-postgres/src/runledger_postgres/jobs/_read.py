"""One job by its id."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from runledger_core import Scope, check_uuid

from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from .rows import JobRecord

JOB_COLUMNS: Final = """
    q.id, q.job_type, q.organization_id, q.workflow_run_id, q.status, q.priority, q.run_number,
    q.attempt, q.claim_number, q.max_attempts, q.timeout_seconds, q.stage, q.progress_done,
    q.progress_total, q.payload, q.checkpoint, q.output, q.idempotency_key, q.worker_id,
    q.status_reason, q.last_error_code, q.last_error_message, q.next_run_at, q.lease_expires_at,
    q.last_heartbeat_at, q.leased_at, q.created_at, q.started_at, q.finished_at, q.updated_at
"""

GET_JOB: Final = Statement(
    f"""
    SELECT {JOB_COLUMNS}
    FROM runledger.job_queue AS q
    WHERE q.id = %(job_id)s::uuid AND {IN_SCOPE}
    """,
    JobRecord,
)


def get_job(db: Database, job_id: UUID, *, scope: Scope) -> JobRecord | None:
    """Return a job with its bodies, or None if no job of that id is in scope.

    Raises:
        InternalError: `job.undecodable_row` if Python cannot read its JSON.

    Transaction: joins the caller's or opens one.
    """
    key = {"job_id": check_uuid(job_id, field="job_id")}
    rows = run(db, Bound(GET_JOB, key | scope_parameters(scope)))
    return rows[0] if rows else None
