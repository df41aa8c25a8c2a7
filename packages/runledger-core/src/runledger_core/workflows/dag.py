"""The short way to a graph: steps by name, and what each waits for."""

from collections.abc import Iterable
from typing import Self
from uuid import UUID

from runledger_core.identifiers import StepKey
from runledger_core.jsonvalue import UNSET, JsonInput, Unset
from runledger_core.workflows._arguments import (
    checked_members,
    checked_name,
    is_blank,
    unchecked_names,
)
from runledger_core.workflows.errors import (
    BlankStepKeyError,
    BlankWorkflowTypeError,
    DuplicateStepKeyError,
    UnknownStepKeyError,
)
from runledger_core.workflows.run import WorkflowRunEnqueue
from runledger_core.workflows.run_builder import WorkflowRunEnqueueBuilder
from runledger_core.workflows.spec import (
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    dependency_of,
    with_dependencies,
)
from runledger_core.workflows.status import (
    WorkflowDependencyReleaseMode,
    WorkflowStepExecutionKind,
)


class WorkflowDagBuilder:
    """Build a `WorkflowRunEnqueue` by naming steps and what they wait for.

    Methods return the builder, but for `build` and `try_build`; a refused call leaves it as it was.
    """

    def __init__(self, workflow_type: str, metadata: JsonInput | Unset = UNSET) -> None:
        """Begin a run; a blank type is refused by `build`.

        Args:
            workflow_type: Kind of workflow.
            metadata: What the run is about; an empty object if left out.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        self._run = WorkflowRunEnqueueBuilder(workflow_type, metadata)
        self._steps: dict[str, WorkflowStepEnqueue] = {}
        self._edges: dict[str, list[WorkflowStepDependencySpec]] = {}

    @classmethod
    def try_new(cls, workflow_type: str, metadata: JsonInput | Unset = UNSET) -> Self:
        """Begin a run whose type is refused at once if it is blank.

        Raises:
            BlankWorkflowTypeError: `workflow.invalid_dag_workflow_type_blank`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        builder = cls(workflow_type, metadata)
        if is_blank(workflow_type):
            raise BlankWorkflowTypeError
        return builder

    def organization_id(self, organization_id: UUID) -> Self:
        """Set the owner of the run and of its steps."""
        self._run.organization_id(organization_id)
        return self

    def clear_organization_id(self) -> Self:
        """Make the run global again."""
        self._run.clear_organization_id()
        return self

    def idempotency_key(self, idempotency_key: str) -> Self:
        """Set the key under which the run exists once; a blank one is refused by `build`."""
        self._run.idempotency_key(idempotency_key)
        return self

    def clear_idempotency_key(self) -> Self:
        """Forget the key: every enqueue makes a run."""
        self._run.clear_idempotency_key()
        return self

    def result_step(self, step_key: str) -> Self:
        """Declare the step whose output is the result; it may be added later.

        Raises:
            BlankResultStepKeyError: `workflow.invalid_dag_result_step_key_blank`.
        """
        self._run.try_result_step_key(step_key)
        return self

    def clear_result_step(self) -> Self:
        """Declare no result."""
        self._run.clear_result_step_key()
        return self

    def job(
        self,
        step_key: str,
        job_type: str,
        payload: JsonInput,
        *,
        after_success: Iterable[str] = (),
        after_terminal: Iterable[str] = (),
    ) -> Self:
        """Add a step that makes a job, with the settings of its definition.

        Args:
            step_key: Name of the step within its run.
            job_type: Type of its job.
            payload: What the handler receives.
            after_success: Steps that must succeed before; they may be added later.
            after_terminal: Steps that must end before, however they do.

        Raises:
            BlankStepKeyError: `workflow.invalid_dag_step_key_blank`.
            DuplicateStepKeyError: `workflow.invalid_dag_duplicate_step_key`.
            BlankStepJobTypeError: `workflow.invalid_dag_job_type_blank`.
            BlankDependencyStepKeyError: `workflow.invalid_dag_dependency_step_key_blank`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        step = WorkflowStepEnqueue(self._new_key(step_key), job_type, payload=payload)
        return self._add(step, after_success, after_terminal)

    def external(
        self,
        step_key: str,
        payload: JsonInput | Unset = UNSET,
        *,
        after_success: Iterable[str] = (),
        after_terminal: Iterable[str] = (),
    ) -> Self:
        """Add a gate, which something outside completes.

        Args:
            step_key: Name of the step within its run.
            payload: What goes with it; an empty object if left out.
            after_success: Steps that must succeed before it opens; they may be added later.
            after_terminal: Steps that must end before it opens, however they do.

        Raises:
            BlankStepKeyError: `workflow.invalid_dag_step_key_blank`.
            DuplicateStepKeyError: `workflow.invalid_dag_duplicate_step_key`.
            BlankDependencyStepKeyError: `workflow.invalid_dag_dependency_step_key_blank`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        step = WorkflowStepEnqueue(
            self._new_key(step_key),
            None,
            payload={} if payload is UNSET else payload,
            execution_kind=WorkflowStepExecutionKind.EXTERNAL,
        )
        return self._add(step, after_success, after_terminal)

    def step(self, step: WorkflowStepEnqueue) -> Self:
        """Add a step that is built already, with the prerequisites that it has.

        Raises:
            DuplicateStepKeyError: `workflow.invalid_dag_duplicate_step_key`.
        """
        (checked,) = checked_members(WorkflowStepEnqueue, [step], field="step")
        self._new_key(checked.step_key)
        return self._add(checked, (), ())

    def after_success(self, step_key: str, prerequisites: Iterable[str]) -> Self:
        """Let a step wait for the success of others, which may be added later.

        If one of them does not succeed, the step is cancelled when the last of all that it waits
        for has ended.

        Raises:
            BlankStepKeyError: `workflow.invalid_dag_step_key_blank`.
            BlankDependencyStepKeyError: `workflow.invalid_dag_dependency_step_key_blank`.
            UnknownStepKeyError: `workflow.invalid_dag_unknown_step_key` if it was not added yet.
        """
        return self._wait(step_key, prerequisites, WorkflowDependencyReleaseMode.ON_SUCCESS)

    def after_terminal(self, step_key: str, prerequisites: Iterable[str]) -> Self:
        """Let a step wait for the end of others, whatever it is; they may be added later.

        Raises:
            BlankStepKeyError: `workflow.invalid_dag_step_key_blank`.
            BlankDependencyStepKeyError: `workflow.invalid_dag_dependency_step_key_blank`.
            UnknownStepKeyError: `workflow.invalid_dag_unknown_step_key` if it was not added yet.
        """
        return self._wait(step_key, prerequisites, WorkflowDependencyReleaseMode.ON_TERMINAL)

    def build(self) -> WorkflowRunEnqueue:
        """Return the run.

        Raises:
            WorkflowBuildError: What is wrong first: with a step by itself, then in the order of
                `WorkflowRunEnqueue`.
        """
        steps = [
            with_dependencies(step, [*step.dependencies, *self._edges[key]])
            for key, step in self._steps.items()
        ]
        return self._run.set_steps(steps).build()

    def try_build(self) -> WorkflowRunEnqueue:
        """Return the run, as `build` does."""
        return self.build()

    def _new_key(self, step_key: str) -> StepKey:
        key = checked_name(StepKey, step_key, field="step_key", blank=BlankStepKeyError)
        if key in self._steps:
            raise DuplicateStepKeyError(key, entry_index=len(self._steps))
        return key

    def _add(
        self,
        step: WorkflowStepEnqueue,
        after_success: Iterable[str],
        after_terminal: Iterable[str],
    ) -> Self:
        edges = [
            *_edges(step.step_key, after_success, WorkflowDependencyReleaseMode.ON_SUCCESS),
            *_edges(step.step_key, after_terminal, WorkflowDependencyReleaseMode.ON_TERMINAL),
        ]
        self._steps[step.step_key] = step
        self._edges[step.step_key] = edges
        return self

    def _wait(
        self, step_key: str, prerequisites: Iterable[str], mode: WorkflowDependencyReleaseMode
    ) -> Self:
        key = checked_name(StepKey, step_key, field="step_key", blank=BlankStepKeyError)
        edges = _edges(key, prerequisites, mode)
        if key not in self._steps:
            raise UnknownStepKeyError(key)
        self._edges[key] += edges
        return self


def _edges(
    step_key: str, prerequisites: Iterable[str], mode: WorkflowDependencyReleaseMode
) -> list[WorkflowStepDependencySpec]:
    keys = unchecked_names(prerequisites, field="prerequisites")
    return [dependency_of(step_key, key, mode) for key in keys]
