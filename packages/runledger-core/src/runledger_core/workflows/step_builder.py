"""A builder of one step with all its settings: a job or a gate."""

from collections.abc import Iterable
from typing import Self
from uuid import UUID

from runledger_core.jobs.status import JobStage
from runledger_core.jsonvalue import UNSET, JsonInput, Unset
from runledger_core.limits import current_limits
from runledger_core.text import check_choice, check_uuid
from runledger_core.workflows._arguments import (
    checked_members,
    is_blank,
    own_copy,
    unchecked_name,
    unchecked_names,
)
from runledger_core.workflows.errors import (
    BlankStepJobTypeError,
    BlankStepKeyError,
)
from runledger_core.workflows.spec import (
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    checked_int32,
    dependency_of,
    with_dependencies,
)
from runledger_core.workflows.status import (
    WorkflowDependencyReleaseMode,
    WorkflowStepExecutionKind,
)


class WorkflowStepEnqueueBuilder:
    """Build a `WorkflowStepEnqueue`: a job with its own settings, or a gate.

    Methods return the builder, but for `build` and `try_build`; a refused call leaves it as it was.
    """

    def __init__(
        self, step_key: str, job_type: str | None, payload: JsonInput | Unset = UNSET
    ) -> None:
        """Begin a step; blank names are refused by `build`.

        Args:
            step_key: Name of the step within its run.
            job_type: Type of its job; None for a gate, which `new_external` reads better for.
            payload: What the handler receives; an empty object if left out.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        is_gate = job_type is None
        self._step_key = unchecked_name(step_key, field="step_key")
        self._job_type = None if is_gate else unchecked_name(job_type, field="job_type")
        kinds = WorkflowStepExecutionKind
        self._kind = kinds.EXTERNAL if is_gate else kinds.JOB
        self._payload = own_copy(payload, field="payload", max_bytes=current_limits().payload_bytes)
        self._organization_id: UUID | None = None
        self._priority: int | None = None
        self._max_attempts: int | None = None
        self._timeout_seconds: int | None = None
        self._stage: JobStage | None = None
        self._edges: list[tuple[str, WorkflowDependencyReleaseMode]] = []

    @classmethod
    def try_new(cls, step_key: str, job_type: str, payload: JsonInput | Unset = UNSET) -> Self:
        """Begin a step that makes a job; blank names are refused at once.

        Raises:
            BlankStepKeyError: `workflow.invalid_dag_step_key_blank`.
            BlankStepJobTypeError: `workflow.invalid_dag_job_type_blank`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        if is_blank(unchecked_name(step_key, field="step_key")):
            raise BlankStepKeyError
        if is_blank(unchecked_name(job_type, field="job_type")):
            raise BlankStepJobTypeError(step_key)
        return cls(step_key, job_type, payload)

    @classmethod
    def new_external(cls, step_key: str, payload: JsonInput | Unset = UNSET) -> Self:
        """Begin a gate, which something outside completes; a blank key is refused by `build`.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        return cls(step_key, None, payload)

    @classmethod
    def try_new_external(cls, step_key: str, payload: JsonInput | Unset = UNSET) -> Self:
        """Begin a gate; a blank key is refused at once.

        Raises:
            BlankStepKeyError: `workflow.invalid_dag_step_key_blank`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        if is_blank(unchecked_name(step_key, field="step_key")):
            raise BlankStepKeyError
        return cls(step_key, None, payload)

    def organization_id(self, organization_id: UUID) -> Self:
        """Set the owner of the step, in place of the run's."""
        self._organization_id = check_uuid(organization_id, field="organization_id")
        return self

    def clear_organization_id(self) -> Self:
        """Leave the step to the owner of the run."""
        self._organization_id = None
        return self

    def priority(self, priority: int) -> Self:
        """Set the priority: larger runs first, negative ones too."""
        self._priority = checked_int32(priority, field="priority")
        return self

    def clear_priority(self) -> Self:
        """Leave the priority to the definition."""
        self._priority = None
        return self

    def max_attempts(self, max_attempts: int) -> Self:
        """Set the attempts before a dead letter; `build` refuses fewer than 1."""
        self._max_attempts = checked_int32(max_attempts, field="max_attempts")
        return self

    def clear_max_attempts(self) -> Self:
        """Leave the attempts to the definition."""
        self._max_attempts = None
        return self

    def timeout_seconds(self, timeout_seconds: int) -> Self:
        """Set the seconds for one attempt; `build` refuses fewer than 1."""
        self._timeout_seconds = checked_int32(timeout_seconds, field="timeout_seconds")
        return self

    def clear_timeout_seconds(self) -> Self:
        """Leave the time to the definition."""
        self._timeout_seconds = None
        return self

    def stage(self, stage: JobStage) -> Self:
        """Set the first stage shown."""
        self._stage = check_choice(stage, field="stage", choices=JobStage)
        return self

    def clear_stage(self) -> Self:
        """Show `queued` first."""
        self._stage = None
        return self

    def dependency(self, dependency: WorkflowStepDependencySpec) -> Self:
        """Add a prerequisite."""
        self._edges += _edges([dependency])
        return self

    def set_dependencies(self, dependencies: Iterable[WorkflowStepDependencySpec]) -> Self:
        """Replace all prerequisites."""
        self._edges = _edges(dependencies)
        return self

    def depends_on_success(self, step_keys: Iterable[str]) -> Self:
        """Add prerequisites that must succeed; `build` refuses a blank key."""
        keys = unchecked_names(step_keys, field="step_keys")
        self._edges += [(key, WorkflowDependencyReleaseMode.ON_SUCCESS) for key in keys]
        return self

    def depends_on_terminal(self, step_keys: Iterable[str]) -> Self:
        """Add prerequisites that must end, however they do; `build` refuses a blank key."""
        keys = unchecked_names(step_keys, field="step_keys")
        self._edges += [(key, WorkflowDependencyReleaseMode.ON_TERMINAL) for key in keys]
        return self

    def build(self) -> WorkflowStepEnqueue:
        """Return the step.

        Raises:
            WorkflowBuildError: What is wrong first, in the order of `WorkflowStepEnqueue`.
        """
        step = WorkflowStepEnqueue(
            self._step_key,
            self._job_type,
            payload=self._payload,
            execution_kind=self._kind,
            organization_id=self._organization_id,
            priority=self._priority,
            max_attempts=self._max_attempts,
            timeout_seconds=self._timeout_seconds,
            stage=self._stage,
        )
        edges = [dependency_of(step.step_key, key, mode) for key, mode in self._edges]
        return with_dependencies(step, edges)

    def try_build(self) -> WorkflowStepEnqueue:
        """Return the step, as `build` does."""
        return self.build()


def _edges(
    dependencies: Iterable[WorkflowStepDependencySpec],
) -> list[tuple[str, WorkflowDependencyReleaseMode]]:
    members = checked_members(WorkflowStepDependencySpec, dependencies, field="dependencies")
    return [(edge.prerequisite_step_key, edge.release_mode) for edge in members]
