"""Why a workflow cannot be enqueued as it was described: one class and one code per cause."""

from collections.abc import Sequence
from typing import ClassVar, Final

from runledger_core import codes
from runledger_core.errors import ValidationError

_KEY_CHARACTERS: Final = 40
_CYCLE_KEYS: Final = 8


class WorkflowBuildError(ValidationError):
    """Report a workflow that is refused before anything is sent; see the subclasses.

    The message names steps by their keys, and never shows payloads or idempotency keys.

    Attributes:
        step_key: The step that it is about, if it is about one that has a key.
    """

    _code: ClassVar[str]
    _field: ClassVar[str]

    def __init__(
        self,
        client_message: str,
        *,
        field: str,
        step_key: str | None = None,
        entry_index: int | None = None,
    ) -> None:
        """Build the error under the code of its class."""
        super().__init__(self._code, client_message, field=field, entry_index=entry_index)
        self.step_key = step_key


class _BlankError(WorkflowBuildError):
    """Report text without a character that counts."""

    def __init__(self) -> None:
        """Build the error."""
        super().__init__(f"{self._field} must not be blank", field=self._field)


class BlankWorkflowTypeError(_BlankError):
    """Report a run without a type."""

    _code = codes.WORKFLOW_INVALID_DAG_WORKFLOW_TYPE_BLANK
    _field = "workflow_type"


class BlankIdempotencyKeyError(_BlankError):
    """Report a blank idempotency key."""

    _code = codes.WORKFLOW_INVALID_DAG_IDEMPOTENCY_KEY_BLANK
    _field = "idempotency_key"


class BlankResultStepKeyError(_BlankError):
    """Report a result step without a key."""

    _code = codes.WORKFLOW_INVALID_DAG_RESULT_STEP_KEY_BLANK
    _field = "result_step_key"


class BlankMutationKeyError(_BlankError):
    """Report a blank mutation key."""

    _code = codes.WORKFLOW_APPEND_MUTATION_KEY_BLANK
    _field = "mutation_key"


class BlankStepKeyError(WorkflowBuildError):
    """Report a step without a key."""

    _code = codes.WORKFLOW_INVALID_DAG_STEP_KEY_BLANK

    def __init__(self, field: str = "step_key") -> None:
        """Build the error."""
        super().__init__(f"{field} must not be blank", field=field)


class BlankDependencyStepKeyError(WorkflowBuildError):
    """Report a prerequisite without a key."""

    _code = codes.WORKFLOW_INVALID_DAG_DEPENDENCY_STEP_KEY_BLANK

    def __init__(self, step_key: str | None = None) -> None:
        """Build the error, for a step if it is known."""
        of_step = "" if step_key is None else f" of step {_shown(step_key)}"
        message = f"the key of a prerequisite{of_step} must not be blank"
        super().__init__(message, field="prerequisite_step_key", step_key=step_key)


class _StepError(WorkflowBuildError):
    """Report what a step alone, or its place in the graph, makes wrong."""

    _text: ClassVar[str]

    def __init__(self, step_key: str) -> None:
        """Build the error for a step."""
        message = self._text.format(step=_shown(step_key))
        super().__init__(message, field=self._field, step_key=step_key)


class BlankStepJobTypeError(_StepError):
    """Report a job step without a job type."""

    _code = codes.WORKFLOW_INVALID_DAG_JOB_TYPE_BLANK
    _field = "job_type"
    _text = "job_type of step {step} must not be blank"


class ExternalStepJobTypeNotAllowedError(_StepError):
    """Report a gate with a job type."""

    _code = codes.WORKFLOW_INVALID_DAG_EXTERNAL_STEP_JOB_TYPE_NOT_ALLOWED
    _field = "job_type"
    _text = "the external step {step} has no job, so it takes no job_type"


class SelfDependencyError(_StepError):
    """Report a step that waits for itself."""

    _code = codes.WORKFLOW_INVALID_DAG_SELF_DEPENDENCY
    _field = "dependencies"
    _text = "step {step} must not wait for itself"


class UnknownStepKeyError(_StepError):
    """Report prerequisites for a step that has not been added."""

    _code = codes.WORKFLOW_INVALID_DAG_UNKNOWN_STEP_KEY
    _field = "step_key"
    _text = "add the step {step} before its prerequisites"


class UnknownResultStepKeyError(_StepError):
    """Report a result step that is none of the run's steps."""

    _code = codes.WORKFLOW_INVALID_DAG_UNKNOWN_RESULT_STEP_KEY
    _field = "result_step_key"
    _text = "the result step {step} is none of the steps"


class _NonPositiveError(WorkflowBuildError):
    """Report a setting that must be 1 or more."""

    def __init__(self, step_key: str, value: int) -> None:
        """Build the error for a step and what it was given."""
        message = f"{self._field} of step {_shown(step_key)} must be 1 or more"
        super().__init__(message, field=self._field, step_key=step_key)
        self.value = value


class NonPositiveStepMaxAttemptsError(_NonPositiveError):
    """Report a step that may not be tried even once.

    Attributes:
        value: What was given.
    """

    _code = codes.WORKFLOW_INVALID_DAG_STEP_MAX_ATTEMPTS_NON_POSITIVE
    _field = "max_attempts"


class NonPositiveStepTimeoutSecondsError(_NonPositiveError):
    """Report a step that gets no time.

    Attributes:
        value: What was given.
    """

    _code = codes.WORKFLOW_INVALID_DAG_STEP_TIMEOUT_SECONDS_NON_POSITIVE
    _field = "timeout_seconds"


class ExternalStepQueueSettingsNotAllowedError(WorkflowBuildError):
    """Report a gate with a setting of jobs, which `field` names."""

    _code = codes.WORKFLOW_INVALID_DAG_EXTERNAL_STEP_QUEUE_SETTINGS_NOT_ALLOWED

    def __init__(self, step_key: str, *, field: str) -> None:
        """Build the error for a step and the setting."""
        message = f"the external step {_shown(step_key)} has no job, so it takes no {field}"
        super().__init__(message, field=field, step_key=step_key)


class DependencyCountOverflowError(WorkflowBuildError):
    """Report a step with more prerequisites than can be counted."""

    _code = codes.WORKFLOW_INVALID_DAG_DEPENDENCY_COUNT_OVERFLOW

    def __init__(self, step_key: str, *, maximum: int) -> None:
        """Build the error for a step and the most that it may have."""
        message = f"step {_shown(step_key)} has more than {maximum} prerequisites"
        super().__init__(message, field="dependencies", step_key=step_key)


class DuplicateDependencyError(WorkflowBuildError):
    """Report a prerequisite that a step names twice, with two modes perhaps.

    Attributes:
        prerequisite_step_key: The prerequisite.
    """

    _code = codes.WORKFLOW_INVALID_DAG_DUPLICATE_DEPENDENCY

    def __init__(self, step_key: str, prerequisite_step_key: str) -> None:
        """Build the error for both ends of the edge."""
        message = f"step {_shown(step_key)} names {_shown(prerequisite_step_key)} twice"
        super().__init__(message, field="dependencies", step_key=step_key)
        self.prerequisite_step_key = prerequisite_step_key


class EmptyStepsError(WorkflowBuildError):
    """Report a run, or an append, without steps."""

    _code = codes.WORKFLOW_INVALID_DAG_EMPTY

    def __init__(self) -> None:
        """Build the error."""
        super().__init__("there must be at least one step", field="steps")


class GraphTooLargeError(WorkflowBuildError):
    """Report steps whose payloads are too large together."""

    _code = codes.WORKFLOW_INVALID_DAG_TOO_LARGE

    def __init__(self, *, max_characters: int) -> None:
        """Build the error for the most that is taken."""
        message = f"the payloads of the steps have more than {max_characters} characters together"
        super().__init__(message, field="steps")


class DuplicateStepKeyError(WorkflowBuildError):
    """Report a second step with the same key; `entry_index` is its position among the steps."""

    _code = codes.WORKFLOW_INVALID_DAG_DUPLICATE_STEP_KEY

    def __init__(self, step_key: str, *, entry_index: int) -> None:
        """Build the error for the second step."""
        message = f"there is already a step {_shown(step_key)}"
        super().__init__(message, field="step_key", step_key=step_key, entry_index=entry_index)


class MissingDependencyError(WorkflowBuildError):
    """Report a prerequisite that is no step; `entry_index` is the position of who waits for it.

    Attributes:
        prerequisite_step_key: The key that no step has.
        suggestion: The key of a step that looks much like it, if one of the first 100 does; None
            for keys of more than 64 characters.
    """

    _code = codes.WORKFLOW_INVALID_DAG_MISSING_DEPENDENCY

    def __init__(
        self,
        step_key: str,
        prerequisite_step_key: str,
        *,
        suggestion: str | None,
        entry_index: int,
    ) -> None:
        """Build the error for both ends of the edge."""
        hint = "" if suggestion is None else f"; did you mean {_shown(suggestion)}?"
        missing = _shown(prerequisite_step_key)
        message = f"step {_shown(step_key)} waits for {missing}, which is no step{hint}"
        super().__init__(message, field="dependencies", step_key=step_key, entry_index=entry_index)
        self.prerequisite_step_key = prerequisite_step_key
        self.suggestion = suggestion


class CycleDetectedError(WorkflowBuildError):
    """Report steps that wait for each other in a circle.

    Attributes:
        cycle: Their keys, each before the step that waits for it; the first waits for the last.
    """

    _code = codes.WORKFLOW_INVALID_DAG_CYCLE

    def __init__(self, cycle: Sequence[str]) -> None:
        """Build the error; the message shows both ends of a long cycle only."""
        shown = [_shown(key) for key in cycle[:_CYCLE_KEYS]]
        if len(cycle) > _CYCLE_KEYS:
            shown[-1:] = [f"({len(cycle) - _CYCLE_KEYS} more)", _shown(cycle[-1])]
        path = " -> ".join([*shown, shown[0]])
        super().__init__(
            f"steps wait for each other: {path}", field="dependencies", step_key=cycle[0]
        )
        self.cycle: tuple[str, ...] = tuple(cycle)


def _shown(key: str) -> str:
    # In the form of a Python literal nothing controls a terminal.
    return repr(key if len(key) <= _KEY_CHARACTERS else f"{key[:_KEY_CHARACTERS]}...")
