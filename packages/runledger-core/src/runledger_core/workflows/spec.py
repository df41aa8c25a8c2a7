"""What a step of a workflow is, and what it waits for."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final
from uuid import UUID

from runledger_core._copies import with_fields
from runledger_core.identifiers import JobType, StepKey
from runledger_core.jobs.status import JobStage
from runledger_core.jsonvalue import JsonInput, encode_json
from runledger_core.limits import INT32_MAX, INT32_MIN, current_limits
from runledger_core.text import check_choice, check_int, check_uuid
from runledger_core.workflows._arguments import checked_members, checked_name, is_blank
from runledger_core.workflows.errors import (
    BlankDependencyStepKeyError,
    BlankStepJobTypeError,
    BlankStepKeyError,
    DependencyCountOverflowError,
    DuplicateDependencyError,
    ExternalStepJobTypeNotAllowedError,
    ExternalStepQueueSettingsNotAllowedError,
    NonPositiveStepMaxAttemptsError,
    NonPositiveStepTimeoutSecondsError,
    SelfDependencyError,
)
from runledger_core.workflows.status import (
    WorkflowDependencyReleaseMode,
    WorkflowStepExecutionKind,
)

# Its columns count prerequisites in four bytes.
_MAX_DEPENDENCIES: Final = INT32_MAX


@dataclass(frozen=True, slots=True)
class WorkflowStepDependencySpec:
    """Name a step that another waits for.

    Attributes:
        prerequisite_step_key: The step waited for; kept as a `StepKey`.
        release_mode: Which end of it is enough.
    """

    prerequisite_step_key: str
    release_mode: WorkflowDependencyReleaseMode = WorkflowDependencyReleaseMode.ON_TERMINAL

    def __post_init__(self) -> None:
        """Check both fields.

        Raises:
            BlankDependencyStepKeyError: `workflow.invalid_dag_dependency_step_key_blank`.
            ValidationError: An `input.*` code that names the field.
        """
        name = "prerequisite_step_key"
        key = checked_name(
            StepKey, self.prerequisite_step_key, field=name, blank=BlankDependencyStepKeyError
        )
        object.__setattr__(self, name, key)
        mode = check_choice(
            self.release_mode, field="release_mode", choices=WorkflowDependencyReleaseMode
        )
        object.__setattr__(self, "release_mode", mode)


@dataclass(frozen=True, slots=True)
class WorkflowStepEnqueue:
    """Describe one step; what is left out comes from its job's definition at enqueue.

    Attributes:
        step_key: Name of the step within its run; kept as a `StepKey`.
        job_type: Type of the step's job; kept as a `JobType`. None for a gate.
        payload: What the handler receives, or what goes with a gate. It is encoded at once:
            changing it later does not change the step.
        execution_kind: JOB, or EXTERNAL for a gate, which takes none of the settings of jobs.
        organization_id: Owner of the step; None for the run's.
        priority: Larger runs first; may be negative.
        max_attempts: Attempts before the job is dead-lettered, 1 or more.
        timeout_seconds: Time for one attempt, in seconds, 1 or more.
        stage: First stage shown; `queued` for a job if left out.
        dependencies: Steps waited for, each once; kept as a tuple.
        payload_json: The payload as it will be stored.
    """

    step_key: str
    job_type: str | None
    _: KW_ONLY
    payload: JsonInput = field(default_factory=dict[str, JsonInput], repr=False, hash=False)
    execution_kind: WorkflowStepExecutionKind = WorkflowStepExecutionKind.JOB
    organization_id: UUID | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout_seconds: int | None = None
    stage: JobStage | None = None
    dependencies: Sequence[WorkflowStepDependencySpec] = ()
    payload_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field and encode the payload: key, type, settings, then dependencies.

        Raises:
            WorkflowBuildError: One of its subclasses, each with its own code.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        store = object.__setattr__
        kind = check_choice(
            self.execution_kind, field="execution_kind", choices=WorkflowStepExecutionKind
        )
        store(self, "execution_kind", kind)
        key = checked_name(StepKey, self.step_key, field="step_key", blank=BlankStepKeyError)
        store(self, "step_key", key)
        if kind is WorkflowStepExecutionKind.JOB:
            self._check_job(key)
        else:
            self._check_gate(key)
        payload = encode_json(
            self.payload, field="payload", max_bytes=current_limits().payload_bytes
        )
        store(self, "payload_json", payload)
        if self.organization_id is not None:
            owner = check_uuid(self.organization_id, field="organization_id")
            store(self, "organization_id", owner)
        store(self, "dependencies", _checked_dependencies(key, self.dependencies))

    def _check_job(self, key: StepKey) -> None:
        store = object.__setattr__
        if self.job_type is None:
            raise BlankStepJobTypeError(key)
        job_type = checked_name(
            JobType, self.job_type, field="job_type", blank=lambda: BlankStepJobTypeError(key)
        )
        store(self, "job_type", job_type)
        if self.max_attempts is not None:
            attempts = checked_int32(self.max_attempts, field="max_attempts")
            if attempts < 1:
                raise NonPositiveStepMaxAttemptsError(key, attempts)
            store(self, "max_attempts", attempts)
        if self.timeout_seconds is not None:
            seconds = checked_int32(self.timeout_seconds, field="timeout_seconds")
            if seconds < 1:
                raise NonPositiveStepTimeoutSecondsError(key, seconds)
            store(self, "timeout_seconds", seconds)
        if self.priority is not None:
            store(self, "priority", checked_int32(self.priority, field="priority"))
        stage = JobStage.QUEUED if self.stage is None else self.stage
        store(self, "stage", check_choice(stage, field="stage", choices=JobStage))

    def _check_gate(self, key: StepKey) -> None:
        if self.job_type is not None:
            raise ExternalStepJobTypeNotAllowedError(key)
        for name in ("priority", "max_attempts", "timeout_seconds", "stage"):
            if getattr(self, name) is not None:
                raise ExternalStepQueueSettingsNotAllowedError(key, field=name)


def with_dependencies(
    step: WorkflowStepEnqueue, dependencies: Sequence[WorkflowStepDependencySpec]
) -> WorkflowStepEnqueue:
    """Return the step with other dependencies; the payload stays as it was encoded."""
    return with_fields(step, dependencies=_checked_dependencies(step.step_key, dependencies))


def dependency_of(
    step_key: str, prerequisite_step_key: str, release_mode: WorkflowDependencyReleaseMode
) -> WorkflowStepDependencySpec:
    """Return an edge of a step, whose error then names the step."""
    if is_blank(prerequisite_step_key):
        raise BlankDependencyStepKeyError(step_key)
    return WorkflowStepDependencySpec(StepKey(prerequisite_step_key), release_mode)


def checked_int32(value: object, *, field: str) -> int:
    """Return the value as an integer that its column holds."""
    return check_int(value, field=field, minimum=INT32_MIN, maximum=INT32_MAX)


def _checked_dependencies(
    key: str, values: Sequence[WorkflowStepDependencySpec]
) -> tuple[WorkflowStepDependencySpec, ...]:
    dependencies = checked_members(WorkflowStepDependencySpec, values, field="dependencies")
    if len(dependencies) > _MAX_DEPENDENCIES:
        raise DependencyCountOverflowError(key, maximum=_MAX_DEPENDENCIES)
    seen: set[str] = set()
    for dependency in dependencies:
        prerequisite = dependency.prerequisite_step_key
        if prerequisite == key:
            raise SelfDependencyError(key)
        if prerequisite in seen:
            raise DuplicateDependencyError(key, prerequisite)
        seen.add(prerequisite)
    return dependencies
