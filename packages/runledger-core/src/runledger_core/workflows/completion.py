"""How a gate ends: what somebody outside of the workflow reports of it."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Self

from runledger_core import codes
from runledger_core._kinds import is_kind, type_name
from runledger_core.errors import ValidationError
from runledger_core.jsonvalue import UNSET, JsonInput, Unset, encode_json
from runledger_core.limits import current_limits
from runledger_core.text import check_choice, sanitize_text
from runledger_core.workflows.status import WorkflowStepStatus


@dataclass(frozen=True, slots=True)
class WorkflowExternalCompletion:
    """Report the end of a gate; `succeeded`, `failed` and `canceled` make one.

    The texts are never refused for their content: saving a failure must not fail because of it.
    They are cut as those of a `JobFailure` are, NUL and lone surrogates are replaced, and blank
    ones count as none.

    Attributes:
        status: SUCCEEDED, FAILED or CANCELED.
        output: Result to store, of a gate that succeeded; `UNSET` for none, as opposed to JSON
            null. It is encoded at once.
        reason: Why it ended so.
        code: Stable and dotted, such as `approval.denied`.
        message: For people; stored and shown to operators.
        output_json: The output as it will be stored, None if unset.
    """

    status: WorkflowStepStatus
    _: KW_ONLY
    output: JsonInput | Unset = field(default=UNSET, repr=False, hash=False)
    reason: str | None = field(default=None, repr=False)
    code: str | None = None
    message: str | None = field(default=None, repr=False)
    output_json: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field and encode the output.

        Raises:
            ValidationError: `workflow.external_step_invalid_terminal_status`, then
                `workflow.external_step_output_invalid_status`, or an `input.*` code that names the
                field or the JSON path.
        """
        store = object.__setattr__
        status = check_choice(self.status, field="status", choices=WorkflowStepStatus)
        store(self, "status", status)
        _check_end(status, has_output=self.output is not UNSET)
        limits = current_limits()
        encoded = None
        if self.output is not UNSET:
            encoded = encode_json(self.output, field="output", max_bytes=limits.output_bytes)
        store(self, "output_json", encoded)
        for name, max_bytes in (
            ("reason", limits.error_message_bytes),
            ("code", limits.identifier_characters),
            ("message", limits.error_message_bytes),
        ):
            store(self, name, _kept(getattr(self, name), field=name, max_bytes=max_bytes))

    @classmethod
    def succeeded(cls, output: JsonInput | Unset = UNSET, *, reason: str | None = None) -> Self:
        """Return the success of a gate, with what it gives."""
        return cls(WorkflowStepStatus.SUCCEEDED, output=output, reason=reason)

    @classmethod
    def failed(
        cls, reason: str | None = None, *, code: str | None = None, message: str | None = None
    ) -> Self:
        """Return the failure of a gate; steps that wait for its success are canceled."""
        return cls(WorkflowStepStatus.FAILED, reason=reason, code=code, message=message)

    @classmethod
    def canceled(
        cls, reason: str | None = None, *, code: str | None = None, message: str | None = None
    ) -> Self:
        """Return the cancellation of a gate; steps that wait for its success are canceled."""
        return cls(WorkflowStepStatus.CANCELED, reason=reason, code=code, message=message)


def _check_end(status: WorkflowStepStatus, *, has_output: bool) -> None:
    if not status.is_terminal:
        raise ValidationError(
            codes.WORKFLOW_EXTERNAL_STEP_INVALID_TERMINAL_STATUS,
            "a gate ends as SUCCEEDED, FAILED or CANCELED",
            field="status",
        )
    if has_output and status is not WorkflowStepStatus.SUCCEEDED:
        raise ValidationError(
            codes.WORKFLOW_EXTERNAL_STEP_OUTPUT_INVALID_STATUS,
            "only a gate that succeeded has an output",
            field="output",
        )


def _kept(value: object, *, field: str, max_bytes: int) -> str | None:
    if value is None:
        return None
    if not is_kind(value, str):
        message = f"{field} must be text, not {type_name(value)}"
        raise ValidationError(codes.INPUT_WRONG_TYPE, message, field=field)
    text = sanitize_text(value, max_bytes=max_bytes)
    return text if text.strip() else None
