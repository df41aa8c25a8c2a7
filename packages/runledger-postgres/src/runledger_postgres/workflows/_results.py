"""What the end of a run means to those who want its result."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from uuid import UUID

from runledger_core import ErrorCategory, JsonValue, RunledgerError, decode_json
from runledger_core.workflows import WorkflowRunStatus

from ..errors import QueryConflictError, refusal
from ._run_wait import RunEndRow


class WorkflowRunUnsuccessfulError(QueryConflictError):
    """The run has ended without a success, so there is no result.

    Attributes:
        status: COMPLETED_WITH_ERRORS or CANCELED.
    """

    def __init__(self, status: WorkflowRunStatus) -> None:
        """Make the error from what the run ended as."""
        super().__init__(
            "workflow.result_unsuccessful_terminal",
            f"the run has ended as {status}, so it has no result",
        )
        self.status = status


@dataclass(frozen=True, slots=True)
class WorkflowRunResult:
    """The result of a run that has succeeded.

    Attributes:
        result_step_key: The step whose output it is.
        result: That output; may be JSON null.
    """

    run_id: UUID
    workflow_type: str
    _: KW_ONLY
    organization_id: UUID | None
    result_step_key: str
    result: JsonValue = field(repr=False)
    finished_at: datetime


def result_of(row: RunEndRow) -> WorkflowRunResult | None:
    """Return the result of a run, or None while it goes on.

    Raises:
        ValidationError: `workflow.result_not_declared`, whether it has ended or not.
        ConflictError: `workflow.result_unsuccessful_terminal` or `workflow.result_missing`.
        InternalError: `job.undecodable_row`.
    """
    if row.result_step_key is None:
        raise refusal(
            ErrorCategory.VALIDATION,
            "workflow.result_not_declared",
            "the run declared no result step",
        )
    if not row.status.is_terminal or row.finished_at is None:
        return None
    if row.status is not WorkflowRunStatus.SUCCEEDED:
        raise WorkflowRunUnsuccessfulError(row.status)
    if row.result is None:
        raise refusal(
            ErrorCategory.CONFLICT,
            "workflow.result_missing",
            "the run has succeeded, but its result step gave no output",
        )
    return WorkflowRunResult(
        row.id,
        row.workflow_type,
        organization_id=row.organization_id,
        result_step_key=row.result_step_key,
        result=_decoded(row.result),
        finished_at=row.finished_at,
    )


def _decoded(text: str) -> JsonValue:
    # By each for itself: what two threads wait for must not be one list.
    try:
        return decode_json(text)
    except RunledgerError as error:
        raise refusal(
            ErrorCategory.INTERNAL,
            "job.undecodable_row",
            "the stored result cannot be read by Python",
            field="result",
        ) from error
