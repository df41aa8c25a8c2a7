"""The payload of a step whose job waits: the one edit that is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import (
    JsonInput,
    Scope,
    StepKey,
    check_uuid,
    current_limits,
    encode_json,
)

from .._arguments import check_lock_timeout
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ._held_run import run_not_found

# An edit by hand should not stand in line behind a claim for long.
_EDIT_LOCK_TIMEOUT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StepPayloadRow:
    """Whether the run is in scope, and whether its step's payload was edited."""

    is_found: bool
    is_edited: bool


# The job alone has the payload once there is one, so its row is the only one written, and the run
# stays free for its workers. Who waited for the row, as behind a claim, looks again whether it is
# still PENDING.
UPDATE_STEP_AND_JOB_PAYLOAD: Final = Statement(
    f"""
    WITH found AS MATERIALIZED (
        SELECT q.id
        FROM runledger.workflow_runs AS q
        WHERE q.id = %(run_id)s::uuid AND {IN_SCOPE}
    ), edited AS (
        UPDATE runledger.job_queue AS j
        SET payload = %(payload)s::jsonb, updated_at = clock_timestamp()
        WHERE j.id = ANY (ARRAY(
                SELECT s.job_id
                FROM found AS f
                JOIN runledger.workflow_steps AS s
                    ON s.workflow_run_id = f.id AND s.step_key = %(step_key)s::text
                WHERE s.job_id IS NOT NULL
                    AND (%(job_id)s::uuid IS NULL OR s.job_id = %(job_id)s::uuid)
            ))
            AND j.status = 'PENDING'
        RETURNING j.id
    )
    SELECT EXISTS (SELECT FROM found) AS is_found, EXISTS (SELECT FROM edited) AS is_edited
    """,
    StepPayloadRow,
)


def update_workflow_step_and_pending_job_payload(
    db: Database,
    run_id: UUID,
    step_key: str,
    payload: JsonInput,
    *,
    scope: Scope,
    job_id: UUID | None = None,
    lock_timeout_ms: int = _EDIT_LOCK_TIMEOUT_MS,
) -> bool:
    """Replace the payload of a step while its job waits for a worker, the first time or again.

    A step that is BLOCKED has no job yet and keeps its payload, and so does a gate. A job that
    waits for its retry runs with the new payload; the checkpoint of its last attempt stays. The
    request of the run stays as it was: an equal enqueue with the same key still finds the run.

    Args:
        payload: What the handler receives, as in `JobEnqueue`.
        scope: Whose run it may be.
        job_id: The job that the step must have; None for whichever it has.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Returns:
        Whether the payload was replaced: False if the run has no such step, or the step no such
        job, or the job is running or has ended.

    Raises:
        NotFoundError: `workflow.run_not_found` if no run of that id is in scope.
        ValidationError: An `input.*` code that names the argument or the JSON path.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the job.
    """
    parameters: dict[str, object] = {
        "run_id": check_uuid(run_id, field="run_id"),
        "step_key": StepKey(step_key),
        "payload": encode_json(payload, field="payload", max_bytes=current_limits().payload_bytes),
        "job_id": None if job_id is None else check_uuid(job_id, field="job_id"),
    }
    bound = Bound(UPDATE_STEP_AND_JOB_PAYLOAD, parameters | scope_parameters(scope))
    row = run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))[0]
    if not row.is_found:
        raise run_not_found()
    return row.is_edited
