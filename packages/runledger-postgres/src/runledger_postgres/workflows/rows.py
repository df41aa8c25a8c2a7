"""Rows of workflow runs, their steps and edges, as reads return them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from uuid import UUID

from runledger_core import UNSET, JsonValue, Unset, check_uuid, decode_json
from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)

from .._rows import column


@dataclass(frozen=True, slots=True)
class WorkflowRunSummary:
    """A run without its bodies, as lists return it.

    Attributes:
        steps_open: Steps that have not ended, open gates included.
        steps_waiting_external: Open gates.
        result_step_key: The step whose output becomes the run's result; None if none was declared.
        started_at: When it was enqueued.
    """

    id: UUID
    workflow_type: str
    _: KW_ONLY
    organization_id: UUID | None
    status: WorkflowRunStatus = column(WorkflowRunStatus)
    steps_open: int
    steps_waiting_external: int
    steps_failed: int
    steps_canceled: int
    result_step_key: str | None
    created_at: datetime
    started_at: datetime
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class WorkflowRunRecord:
    """A run with its metadata; its result is read by those who wait for it.

    Attributes:
        steps_open: Steps that have not ended, open gates included.
        steps_waiting_external: Open gates.
        result_step_key: The step whose output becomes the run's result; None if none was declared.
        started_at: When it was enqueued.
    """

    id: UUID
    workflow_type: str
    _: KW_ONLY
    organization_id: UUID | None
    status: WorkflowRunStatus = column(WorkflowRunStatus)
    steps_open: int
    steps_waiting_external: int
    steps_failed: int
    steps_canceled: int
    idempotency_key: str | None
    metadata: JsonValue = column(decode_json)
    result_step_key: str | None
    created_at: datetime
    started_at: datetime
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class WorkflowStepSummary:
    """A step without its bodies, as lists return it; what its job knows is read from there.

    Attributes:
        organization_id: Owner of the step's job, which may be another than the run's.
        status: RUNNING while a worker has the job.
        job_type: None of a gate, as are priority, attempts, timeout and stage.
        job_id: None until the release of the step.
        attempt: Attempts of the job so far; None without a job.
        dependency_count_total: Prerequisites.
        dependency_count_pending: Those that have not ended.
        dependency_count_unsatisfied: Those that had to succeed and did not.
        status_reason: Why it has the status, as far as somebody said; of a job that waits for its
            retry, or runs again, the kind of the last failure.
        last_error_code: Code of the last failure, or why the step was never released.
        released_at: When its last prerequisite had ended, or it was added without any.
        started_at: When its first attempt began.
        updated_at: When the step or its job last changed.
    """

    id: UUID
    workflow_run_id: UUID
    step_key: str
    _: KW_ONLY
    execution_kind: WorkflowStepExecutionKind = column(WorkflowStepExecutionKind)
    organization_id: UUID | None
    status: WorkflowStepStatus = column(WorkflowStepStatus)
    job_type: str | None
    job_id: UUID | None
    priority: int | None
    attempt: int | None
    max_attempts: int | None
    timeout_seconds: int | None
    stage: str | None
    dependency_count_total: int
    dependency_count_pending: int
    dependency_count_unsatisfied: int
    status_reason: str | None
    last_error_code: str | None
    created_at: datetime
    released_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class WorkflowStepRecord:
    """A step with its bodies; what its job knows is read from there.

    Attributes:
        organization_id: Owner of the step's job, which may be another than the run's.
        status: RUNNING while a worker has the job.
        job_type: None of a gate, as are priority, attempts, timeout and stage.
        job_id: None until the release of the step.
        attempt: Attempts of the job so far; None without a job.
        dependency_count_total: Prerequisites.
        dependency_count_pending: Those that have not ended.
        dependency_count_unsatisfied: Those that had to succeed and did not.
        payload: What it was given; UNSET only if somebody deleted its job.
        output: What it gave; None is a JSON null, UNSET is no output.
        status_reason: Why it has the status, as far as somebody said; of a job that waits for its
            retry, or runs again, the kind of the last failure.
        last_error_code: Code of the last failure, or why the step was never released.
        last_error_message: Text of the last failure.
        released_at: When its last prerequisite had ended, or it was added without any.
        started_at: When its first attempt began.
        updated_at: When the step or its job last changed.
    """

    id: UUID
    workflow_run_id: UUID
    step_key: str
    _: KW_ONLY
    execution_kind: WorkflowStepExecutionKind = column(WorkflowStepExecutionKind)
    organization_id: UUID | None
    status: WorkflowStepStatus = column(WorkflowStepStatus)
    job_type: str | None
    job_id: UUID | None
    priority: int | None
    attempt: int | None
    max_attempts: int | None
    timeout_seconds: int | None
    stage: str | None
    dependency_count_total: int
    dependency_count_pending: int
    dependency_count_unsatisfied: int
    payload: JsonValue | Unset = column(decode_json, null=UNSET)
    output: JsonValue | Unset = column(decode_json, null=UNSET)
    status_reason: str | None
    last_error_code: str | None
    last_error_message: str | None
    created_at: datetime
    released_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class WorkflowStepDependencyCursor:
    """The place of an edge among those of its run, to page on from."""

    prerequisite_step_id: UUID
    dependent_step_id: UUID

    def __post_init__(self) -> None:
        """Refuse what is no id.

        Raises:
            ValidationError: `input.wrong_type`.
        """
        for name in ("prerequisite_step_id", "dependent_step_id"):
            object.__setattr__(self, name, check_uuid(getattr(self, name), field=name))


@dataclass(frozen=True, slots=True)
class WorkflowStepDependencyRecord:
    """An edge: which step waits for which, and for which end of it."""

    prerequisite_step_key: str
    dependent_step_key: str
    _: KW_ONLY
    workflow_run_id: UUID
    prerequisite_step_id: UUID
    dependent_step_id: UUID
    release_mode: WorkflowDependencyReleaseMode = column(WorkflowDependencyReleaseMode)
    created_at: datetime

    @property
    def cursor(self) -> WorkflowStepDependencyCursor:
        """The edge's place, to page on from."""
        return WorkflowStepDependencyCursor(self.prerequisite_step_id, self.dependent_step_id)
