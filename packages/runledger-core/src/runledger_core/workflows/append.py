"""The request to add steps to a run while one of its gates is open."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from uuid import UUID

from runledger_core.identifiers import StepKey
from runledger_core.jsonvalue import JsonInput, encode_json
from runledger_core.limits import current_limits
from runledger_core.text import check_uuid
from runledger_core.workflows._arguments import (
    checked_members,
    checked_name,
    is_blank,
    unchecked_key,
)
from runledger_core.workflows.errors import BlankMutationKeyError, BlankStepKeyError
from runledger_core.workflows.spec import WorkflowStepEnqueue
from runledger_core.workflows.validation import validate_appended_steps


@dataclass(frozen=True, slots=True)
class WorkflowStepsAppend:
    """Ask for more steps of a run.

    They may wait for each other and for steps that the run has. Steps that the run has wait for
    nothing new, and the result step stays what it was.

    Attributes:
        workflow_run_id: The run.
        mutation_key: Names this request within the run: the same request under the same key is
            applied once.
        append_window_step_key: The gate that must be open; kept as a `StepKey`.
        steps: The new steps, in any order; kept as a tuple.
        mutation_metadata: Stored beside the request, and not compared when it is repeated. It is
            encoded at once.
        mutation_metadata_json: The metadata as it will be stored.
    """

    workflow_run_id: UUID
    mutation_key: str = field(repr=False)
    _: KW_ONLY
    append_window_step_key: str
    steps: Sequence[WorkflowStepEnqueue] = field(repr=False)
    mutation_metadata: JsonInput = field(
        default_factory=dict[str, JsonInput], repr=False, hash=False
    )
    mutation_metadata_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field, and of the graph what can be told without the run.

        Raises:
            WorkflowBuildError: One of its subclasses, each with its own code.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        store = object.__setattr__
        key = unchecked_key(self.mutation_key, field="mutation_key")
        if is_blank(key):
            raise BlankMutationKeyError
        store(self, "mutation_key", key)
        run_id = check_uuid(self.workflow_run_id, field="workflow_run_id")
        store(self, "workflow_run_id", run_id)
        name = "append_window_step_key"
        window = checked_name(
            StepKey,
            self.append_window_step_key,
            field=name,
            blank=lambda: BlankStepKeyError(name),
        )
        store(self, name, window)
        metadata = encode_json(
            self.mutation_metadata,
            field="mutation_metadata",
            max_bytes=current_limits().metadata_bytes,
        )
        store(self, "mutation_metadata_json", metadata)
        steps = checked_members(WorkflowStepEnqueue, self.steps, field="steps")
        store(self, "steps", steps)
        validate_appended_steps(steps)
