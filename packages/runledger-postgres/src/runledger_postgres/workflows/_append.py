"""Append: more steps for a run, while one of its gates is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from runledger_core import ErrorCategory, Scope, check_trace_context
from runledger_core.workflows import (
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
    WorkflowStepStatus,
    outside_prerequisites,
    validate_workflow_step_append,
    workflow_append_snapshot,
)

from .._arguments import check_kind
from .._database import Database
from .._rows import Statement, column
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..errors import QueryError, refusal
from ._append_store import READ_NAMED_STEPS, NamedStepRow, insert_steps
from ._held_run import HeldRun, holding_run


class WorkflowAppendDisposition(StrEnum):
    """Tell whether this append added the steps."""

    APPENDED = "APPENDED"
    """It did."""
    ALREADY_APPLIED = "ALREADY_APPLIED"
    """An equal one under the same key did so before."""


@dataclass(frozen=True, slots=True)
class AppendedWorkflowStep:
    """A step that was appended, as it stands.

    Attributes:
        job_id: Its job, once it is released.
    """

    id: UUID
    step_key: str
    _: KW_ONLY
    status: WorkflowStepStatus = column(WorkflowStepStatus)
    job_id: UUID | None


@dataclass(frozen=True, slots=True)
class AppendedWorkflowSteps:
    """What an append made of its run.

    Attributes:
        steps: The steps of the request, in its order.
    """

    run_id: UUID
    disposition: WorkflowAppendDisposition
    steps: tuple[AppendedWorkflowStep, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _MutationRow:
    id: UUID


@dataclass(frozen=True, slots=True)
class _EqualRow:
    is_equal: bool


FIND_MUTATION: Final = Statement(
    """
    SELECT m.id
    FROM runledger.workflow_run_mutations AS m
    WHERE m.workflow_run_id = %(run_id)s::uuid AND m.mutation_key = %(mutation_key)s::text
    """,
    _MutationRow,
)

COMPARE_MUTATION: Final = Statement(
    """
    SELECT m.request = %(snapshot)s::jsonb AS is_equal
    FROM runledger.workflow_run_mutations AS m
    WHERE m.id = %(mutation_id)s::uuid
    """,
    _EqualRow,
)

# Each job by its own lookup, however many there are.
READ_APPENDED_STEPS: Final = Statement(
    """
    SELECT
        s.id, s.step_key, s.job_id,
        CASE WHEN q.status = 'LEASED' AND s.status = 'ENQUEUED' THEN 'RUNNING' ELSE s.status::text
        END AS status
    FROM runledger.workflow_steps AS s
    LEFT JOIN LATERAL (
        SELECT j.status FROM runledger.job_queue AS j WHERE j.id = s.job_id OFFSET 0
    ) AS q ON true
    WHERE s.workflow_run_id = %(run_id)s::uuid AND s.step_key = ANY (%(step_keys)s::text[])
    """,
    AppendedWorkflowStep,
)


def append_workflow_steps(
    db: Database,
    append: WorkflowStepsAppend,
    *,
    scope: Scope,
    trace_context: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> AppendedWorkflowSteps:
    """Add steps to a run while one of its gates is open.

    Those that wait for nothing that is still to end have a job, or are open gates, at once; one
    that waits for the success of a step that ended otherwise is canceled at once.

    Args:
        scope: Whose run it may be.
        trace_context: W3C trace context that the jobs of these steps get.
        lock_timeout_ms: Longest wait for the row of the run, in milliseconds.

    Returns:
        The steps as they stand, in the order of the request; ALREADY_APPLIED if an equal request
        was applied under the same mutation key, whatever has become of the run since.

    Raises:
        NotFoundError: `workflow.run_not_found` if no run of that id is in scope.
        ConflictError: `workflow.append_conflicting_retry` if the mutation key belongs to another
            request; `workflow.release_conflict` if another transaction holds the run: nothing is
            changed, and a joined transaction goes on.
        ValidationError: `workflow.append_window_missing`, `workflow.append_window_not_external` or
            `workflow.append_window_not_open` if the step that is named as the gate is no open
            gate; `workflow.append_terminal_run`; `workflow.definition_not_found_or_disabled`, with
            `entry_index`; `workflow.append_unsupported_isolation` outside READ COMMITTED.
        WorkflowBuildError: A key exists already, or a prerequisite does not.
        InternalError: `db.rows_kept_back` if a trigger of the host keeps rows back; nothing
            is changed.
        UnavailableError: `db.unavailable`, `db.outcome_unknown`; the same append may be repeated.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the run.
    """
    check_kind(append, WorkflowStepsAppend, field="append")
    if trace_context is not None:
        trace_context = check_trace_context(trace_context)
    run_id = append.workflow_run_id
    new_keys = [step.step_key for step in append.steps]
    named_keys = {*new_keys, *outside_prerequisites(append.steps), append.append_window_step_key}
    read_steps = Bound(READ_APPENDED_STEPS, {"run_id": run_id, "step_keys": new_keys})
    with holding_run(
        db,
        run_id,
        scope=scope,
        lock_timeout_ms=lock_timeout_ms,
        reads=[
            Bound(FIND_MUTATION, {"run_id": run_id, "mutation_key": append.mutation_key}),
            Bound(READ_NAMED_STEPS, {"run_id": run_id, "step_keys": sorted(named_keys)}),
        ],
        unsupported_isolation=_unsupported_isolation,
    ) as held:
        disposition, writes = _apply(held, append, trace_context)
        *_, rows = held.work.finish([*writes, read_steps])
    found = {row.step_key: row for row in rows}
    return AppendedWorkflowSteps(run_id, disposition, tuple(found[key] for key in new_keys))


def _apply(
    held: HeldRun, append: WorkflowStepsAppend, trace_context: str | None
) -> tuple[WorkflowAppendDisposition, list[Bound[Any]]]:
    """Add the steps unless they were added; return what is still to be written."""
    mutations, named = held.reads
    snapshot = workflow_append_snapshot(append, organization_id=held.run.organization_id)
    if mutations:
        _refuse_other_request(held, mutations[0], snapshot)
        return WorkflowAppendDisposition.ALREADY_APPLIED, []
    stored = {row.step_key: row for row in named}
    _check(held, append, stored)
    writes = insert_steps(held, append, stored, snapshot, trace_context)
    return WorkflowAppendDisposition.APPENDED, writes


def _refuse_other_request(held: HeldRun, mutation: _MutationRow, snapshot: str) -> None:
    compare = Bound(COMPARE_MUTATION, {"mutation_id": mutation.id, "snapshot": snapshot})
    if not held.work.fetch(compare)[0].is_equal:
        raise refusal(
            ErrorCategory.CONFLICT,
            "workflow.append_conflicting_retry",
            "the mutation key belongs to another append",
            field="mutation_key",
        )


def _check(held: HeldRun, append: WorkflowStepsAppend, stored: Mapping[str, NamedStepRow]) -> None:
    window = stored.get(append.append_window_step_key)
    if window is None:
        raise _window_refused("workflow.append_window_missing", "the run has no such gate")
    if window.execution_kind is not WorkflowStepExecutionKind.EXTERNAL:
        raise _window_refused("workflow.append_window_not_external", "the step is not a gate")
    if window.status is not WorkflowStepStatus.WAITING_FOR_EXTERNAL:
        raise _window_refused("workflow.append_window_not_open", "the gate is not open")
    if held.run.status.is_terminal:
        raise refusal(
            ErrorCategory.VALIDATION,
            "workflow.append_terminal_run",
            "the run has ended, so no step can be added",
            field="workflow_run_id",
        )
    validate_workflow_step_append(stored, append.steps)


def _window_refused(code: str, client_message: str) -> QueryError:
    return refusal(ErrorCategory.VALIDATION, code, client_message, field="append_window_step_key")


def _unsupported_isolation() -> QueryError:
    return refusal(
        ErrorCategory.VALIDATION,
        "workflow.append_unsupported_isolation",
        "an append needs a READ COMMITTED transaction",
        field="db",
    )
