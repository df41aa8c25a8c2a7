"""The end of a gate: a step that somebody outside of the workflow completes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from runledger_core import (
    UNSET,
    ErrorCategory,
    JsonValue,
    Scope,
    StepKey,
    Unset,
    check_uuid,
    decode_json,
)
from runledger_core.workflows import (
    WorkflowExternalCompletion,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)

from .._arguments import check_kind
from .._database import Database
from .._rows import NoRow, Statement, column
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..errors import QueryError, refusal
from ._held_run import holding_run
from ._reached import reach_from_steps
from ._settle import settle


@dataclass(frozen=True, slots=True)
class CompletedExternalStep:
    """A gate that has ended, as it is stored."""

    id: UUID
    step_key: str
    _: KW_ONLY
    status: WorkflowStepStatus = column(WorkflowStepStatus)
    output: JsonValue | Unset = column(decode_json, null=UNSET)
    status_reason: str | None
    last_error_code: str | None
    last_error_message: str | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredGateRow:
    """The step of that key, and how its end compares with the one that is reported."""

    id: UUID
    _: KW_ONLY
    execution_kind: WorkflowStepExecutionKind = column(WorkflowStepExecutionKind)
    status: WorkflowStepStatus = column(WorkflowStepStatus)
    is_same_output: bool
    is_same_report: bool


READ_GATE: Final = Statement(
    """
    SELECT
        s.id, s.execution_kind::text AS execution_kind, s.status::text AS status,
        s.output IS NOT DISTINCT FROM %(output)s::jsonb AS is_same_output,
        (
            s.status_reason IS NOT DISTINCT FROM %(reason)s::text
            AND s.last_error_code IS NOT DISTINCT FROM %(code)s::text
            AND s.last_error_message IS NOT DISTINCT FROM %(message)s::text
        ) AS is_same_report
    FROM runledger.workflow_steps AS s
    WHERE s.workflow_run_id = %(run_id)s::uuid AND s.step_key = %(step_key)s::text
    """,
    StoredGateRow,
)

# Status, end and counters are written with all that follows from them.
WRITE_GATE: Final = Statement(
    """
    UPDATE runledger.workflow_steps AS s
    SET
        output = %(output)s::jsonb,
        status_reason = %(reason)s::text,
        last_error_code = %(code)s::text,
        last_error_message = %(message)s::text
    WHERE s.id = %(step_id)s::uuid
    """,
    NoRow,
)

READ_ENDED_GATE: Final = Statement(
    """
    SELECT
        s.id, s.step_key, s.status::text AS status, s.output, s.status_reason, s.last_error_code,
        s.last_error_message, s.finished_at
    FROM runledger.workflow_steps AS s
    WHERE s.id = %(step_id)s::uuid
    """,
    CompletedExternalStep,
)


def complete_external_workflow_step(
    db: Database,
    run_id: UUID,
    step_key: str,
    completion: WorkflowExternalCompletion,
    *,
    scope: Scope,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> CompletedExternalStep:
    """End an open gate, and with it what it holds back: steps are released, or canceled.

    Args:
        scope: Whose run it may be.
        lock_timeout_ms: Longest wait for the row of the run, in milliseconds.

    Returns:
        The gate as it is stored; if it was completed in the same way before, that is all.

    Raises:
        NotFoundError: `workflow.run_not_found` if no run of that id is in scope,
            `workflow.external_step_not_found` if it has no step of that key.
        ValidationError: `workflow.external_step_not_external` if that step makes a job;
            `workflow.external_step_not_waiting` before the gate is open;
            `workflow.external_completion_unsupported_isolation` outside READ COMMITTED.
        ConflictError: `workflow.external_step_conflicting_output_retry` and
            `workflow.external_step_conflicting_completion_retry` if the gate has ended in another
            way; `workflow.release_conflict` if another transaction holds the run: nothing is
            changed, and a joined transaction goes on.
        InternalError: `db.rows_kept_back` if a trigger of the host keeps rows back.
        UnavailableError: `db.unavailable`, `db.outcome_unknown`; the same call may be repeated.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the run.
    """
    run_id = check_uuid(run_id, field="run_id")
    check_kind(completion, WorkflowExternalCompletion, field="completion")
    parameters: dict[str, object] = {
        "run_id": run_id,
        "step_key": StepKey(step_key),
        "output": completion.output_json,
        "reason": completion.reason,
        "code": completion.code,
        "message": completion.message,
    }
    with holding_run(
        db,
        run_id,
        scope=scope,
        lock_timeout_ms=lock_timeout_ms,
        reads=[Bound(READ_GATE, parameters)],
        unsupported_isolation=_unsupported_isolation,
    ) as held:
        gate = _checked(held.reads[0], completion)
        writes: list[Bound[Any]] = []
        if not gate.status.is_terminal:
            ended = {gate.id: completion.status}
            write = Bound(WRITE_GATE, parameters | {"step_id": gate.id})
            _, reached = held.work.fetch_all([write, reach_from_steps(ended)])
            writes = settle(held.work, reached)
        *_, found = held.work.finish([*writes, Bound(READ_ENDED_GATE, {"step_id": gate.id})])
    return found[0]


def _checked(found: list[StoredGateRow], completion: WorkflowExternalCompletion) -> StoredGateRow:
    """Return the gate, which is open or has ended in the same way."""
    if not found:
        raise refusal(
            ErrorCategory.NOT_FOUND,
            "workflow.external_step_not_found",
            "the run has no such step",
            field="step_key",
        )
    gate = found[0]
    if gate.execution_kind is not WorkflowStepExecutionKind.EXTERNAL:
        raise refusal(
            ErrorCategory.VALIDATION,
            "workflow.external_step_not_external",
            "the step makes a job, whose end is its own",
            field="step_key",
        )
    if gate.status.is_terminal:
        _refuse_other_end(gate, completion)
    elif gate.status is not WorkflowStepStatus.WAITING_FOR_EXTERNAL:
        raise refusal(
            ErrorCategory.VALIDATION,
            "workflow.external_step_not_waiting",
            "the gate is not open yet",
            field="step_key",
        )
    return gate


def _refuse_other_end(gate: StoredGateRow, completion: WorkflowExternalCompletion) -> None:
    is_same_status = gate.status is completion.status
    if is_same_status and not gate.is_same_output:
        raise refusal(
            ErrorCategory.CONFLICT,
            "workflow.external_step_conflicting_output_retry",
            "the gate was completed before, with another output",
            field="completion",
        )
    if not is_same_status or not gate.is_same_report:
        raise refusal(
            ErrorCategory.CONFLICT,
            "workflow.external_step_conflicting_completion_retry",
            "the gate was completed before, in another way",
            field="completion",
        )


def _unsupported_isolation() -> QueryError:
    return refusal(
        ErrorCategory.VALIDATION,
        "workflow.external_completion_unsupported_isolation",
        "the completion of a gate needs a READ COMMITTED transaction",
        field="db",
    )
