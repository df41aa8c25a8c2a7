"""A builder of one run, from steps that are built already.

What only Python can get wrong, such as a wrong type or text that is too long, is refused by the
call that is given it. What is wrong with the workflow, such as a blank name, is refused when the
run is built, or at once by the `try_` forms.
"""

from collections.abc import Iterable
from typing import Self
from uuid import UUID

from runledger_core.jsonvalue import UNSET, JsonInput, Unset
from runledger_core.limits import current_limits
from runledger_core.text import check_uuid
from runledger_core.workflows._arguments import (
    checked_members,
    is_blank,
    own_copy,
    unchecked_key,
    unchecked_name,
)
from runledger_core.workflows.errors import BlankResultStepKeyError, BlankWorkflowTypeError
from runledger_core.workflows.run import WorkflowRunEnqueue
from runledger_core.workflows.spec import WorkflowStepEnqueue


class WorkflowRunEnqueueBuilder:
    """Build a `WorkflowRunEnqueue` from steps that are built already.

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
        self._workflow_type = unchecked_name(workflow_type, field="workflow_type")
        self._metadata = own_copy(
            metadata, field="metadata", max_bytes=current_limits().metadata_bytes
        )
        self._organization_id: UUID | None = None
        self._idempotency_key: str | None = None
        self._result_step_key: str | None = None
        self._steps: list[WorkflowStepEnqueue] = []

    @classmethod
    def try_new(cls, workflow_type: str, metadata: JsonInput | Unset = UNSET) -> Self:
        """Begin a run whose type is refused at once if it is blank.

        Raises:
            BlankWorkflowTypeError: `workflow.invalid_dag_workflow_type_blank`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        if is_blank(unchecked_name(workflow_type, field="workflow_type")):
            raise BlankWorkflowTypeError
        return cls(workflow_type, metadata)

    def organization_id(self, organization_id: UUID) -> Self:
        """Set the owner of the run, and of its steps that name none."""
        self._organization_id = check_uuid(organization_id, field="organization_id")
        return self

    def clear_organization_id(self) -> Self:
        """Make the run global again."""
        self._organization_id = None
        return self

    def idempotency_key(self, idempotency_key: str) -> Self:
        """Set the key under which the run exists once; a blank one is refused by `build`."""
        self._idempotency_key = unchecked_key(idempotency_key, field="idempotency_key")
        return self

    def clear_idempotency_key(self) -> Self:
        """Forget the key: every enqueue makes a run."""
        self._idempotency_key = None
        return self

    def result_step_key(self, step_key: str) -> Self:
        """Declare the step whose output is the result; a blank one is refused by `build`."""
        self._result_step_key = unchecked_name(step_key, field="result_step_key")
        return self

    def try_result_step_key(self, step_key: str) -> Self:
        """Declare the step whose output is the result.

        Raises:
            BlankResultStepKeyError: `workflow.invalid_dag_result_step_key_blank`.
        """
        key = unchecked_name(step_key, field="result_step_key")
        if is_blank(key):
            raise BlankResultStepKeyError
        self._result_step_key = key
        return self

    def clear_result_step_key(self) -> Self:
        """Declare no result."""
        self._result_step_key = None
        return self

    def step(self, step: WorkflowStepEnqueue) -> Self:
        """Add a step."""
        return self.extend_steps([step])

    def extend_steps(self, steps: Iterable[WorkflowStepEnqueue]) -> Self:
        """Add steps."""
        self._steps += checked_members(WorkflowStepEnqueue, steps, field="steps")
        return self

    def set_steps(self, steps: Iterable[WorkflowStepEnqueue]) -> Self:
        """Replace all steps."""
        self._steps = list(checked_members(WorkflowStepEnqueue, steps, field="steps"))
        return self

    def build(self) -> WorkflowRunEnqueue:
        """Return the run.

        Raises:
            WorkflowBuildError: What is wrong first, in the order of `WorkflowRunEnqueue`.
        """
        return WorkflowRunEnqueue(
            self._workflow_type,
            self._metadata,
            steps=self._steps,
            organization_id=self._organization_id,
            idempotency_key=self._idempotency_key,
            result_step_key=self._result_step_key,
        )

    def try_build(self) -> WorkflowRunEnqueue:
        """Return the run, as `build` does."""
        return self.build()
