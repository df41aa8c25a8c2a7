"""The request for one workflow run."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from uuid import UUID

from runledger_core.identifiers import StepKey, WorkflowType
from runledger_core.jsonvalue import JsonInput, encode_json
from runledger_core.limits import current_limits
from runledger_core.text import check_uuid
from runledger_core.workflows._arguments import (
    checked_members,
    checked_name,
    is_blank,
    unchecked_key,
)
from runledger_core.workflows.errors import (
    BlankIdempotencyKeyError,
    BlankResultStepKeyError,
    BlankWorkflowTypeError,
    UnknownResultStepKeyError,
)
from runledger_core.workflows.spec import WorkflowStepEnqueue
from runledger_core.workflows.validation import validate_workflow_dag


@dataclass(frozen=True, slots=True)
class WorkflowRunEnqueue:
    """Ask for one run of a workflow: its whole graph.

    `WorkflowDagBuilder` and `WorkflowRunEnqueueBuilder` make one step by step.

    Attributes:
        workflow_type: Kind of workflow; kept as a `WorkflowType`.
        metadata: What the run is about, for people and reports. It is encoded at once.
        steps: All steps, in any order; kept as a tuple.
        organization_id: Owner of the run, and of its steps that name none; None for a global run.
        idempotency_key: At most one run exists per workflow type, organization and key.
        result_step_key: The step whose output is the run's result.
        metadata_json: The metadata as it will be stored.
    """

    workflow_type: str
    metadata: JsonInput = field(default_factory=dict[str, JsonInput], repr=False, hash=False)
    _: KW_ONLY
    steps: Sequence[WorkflowStepEnqueue] = field(repr=False)
    organization_id: UUID | None = None
    idempotency_key: str | None = field(default=None, repr=False)
    result_step_key: str | None = None
    metadata_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field, then the graph, then that the result step is part of it.

        Raises:
            WorkflowBuildError: One of its subclasses, each with its own code.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        store = object.__setattr__
        if self.idempotency_key is not None:
            key = unchecked_key(self.idempotency_key, field="idempotency_key")
            if is_blank(key):
                raise BlankIdempotencyKeyError
            store(self, "idempotency_key", key)
        if self.result_step_key is not None:
            result = checked_name(
                StepKey,
                self.result_step_key,
                field="result_step_key",
                blank=BlankResultStepKeyError,
            )
            store(self, "result_step_key", result)
        kind = checked_name(
            WorkflowType, self.workflow_type, field="workflow_type", blank=BlankWorkflowTypeError
        )
        store(self, "workflow_type", kind)
        metadata = encode_json(
            self.metadata, field="metadata", max_bytes=current_limits().metadata_bytes
        )
        store(self, "metadata_json", metadata)
        if self.organization_id is not None:
            owner = check_uuid(self.organization_id, field="organization_id")
            store(self, "organization_id", owner)
        steps = checked_members(WorkflowStepEnqueue, self.steps, field="steps")
        store(self, "steps", steps)
        validate_workflow_dag(steps)
        result_key = self.result_step_key
        if result_key is not None and all(step.step_key != result_key for step in steps):
            raise UnknownResultStepKeyError(result_key)
