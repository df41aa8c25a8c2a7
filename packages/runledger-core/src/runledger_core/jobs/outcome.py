"""What a handler hands back: a completion, a failure, or progress on the way."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Final, Self

from runledger_core import codes
from runledger_core._copies import with_fields
from runledger_core._pickling import rebuild_exception
from runledger_core.errors import ValidationError
from runledger_core.jobs.status import JobFailureKind, JobStage
from runledger_core.jsonvalue import UNSET, JsonInput, Unset, encode_json
from runledger_core.limits import INT64_MAX, current_limits
from runledger_core.text import check_choice, check_int, sanitize_text

_PROGRESS_FIELDS: Final = ("progress_done", "progress_total")


class _WithOutput:
    """Make `with_output` start a completion on the class and extend one on an instance.

    A class method would forget, when chained, what the instance holds.
    """

    def __get__(
        self, instance: "JobCompletion | None", owner: type["JobCompletion"]
    ) -> Callable[[JsonInput], "JobCompletion"]:
        """Return the function for this access."""

        def with_output(output: JsonInput) -> "JobCompletion":
            if instance is None:
                return owner(output)
            return with_fields(instance, output=output, output_json=_encoded_output(output))

        return with_output


@dataclass(frozen=True, slots=True)
class JobCompletion:
    """Report success, with what is worth keeping.

    `JobCompletion.success()` and `JobCompletion.with_output(json)` start one; `with_output`,
    `with_progress` and `with_checkpoint` return a copy with one thing added.

    Attributes:
        output: Result to store; `UNSET` for none, as opposed to JSON null.
        progress_done: Units done; None keeps what is stored.
        progress_total: Units in all; None keeps what is stored.
        checkpoint: State to store; `UNSET` keeps what is stored.
        output_json: The output as it will be stored, None if unset.
        checkpoint_json: The checkpoint as it will be stored, None if unset.
    """

    output: JsonInput | Unset = field(default=UNSET, repr=False, hash=False)
    _: KW_ONLY
    progress_done: int | None = None
    progress_total: int | None = None
    checkpoint: JsonInput | Unset = field(default=UNSET, repr=False, hash=False)
    output_json: str | None = field(init=False, repr=False, compare=False)
    checkpoint_json: str | None = field(init=False, repr=False, compare=False)

    with_output: ClassVar[_WithOutput] = _WithOutput()
    """Return a completion with this output, which replaces one set before."""

    def __post_init__(self) -> None:
        """Check progress and encode both JSON values.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        store = object.__setattr__
        store(self, "output_json", _encoded_output(self.output))
        store(self, "checkpoint_json", _encoded_checkpoint(self.checkpoint))
        done, total = _checked_progress(
            self.progress_done, self.progress_total, fields=_PROGRESS_FIELDS
        )
        store(self, "progress_done", done)
        store(self, "progress_total", total)

    @classmethod
    def success(cls) -> Self:
        """Return a completion that stores nothing but the success."""
        return cls()

    def with_progress(self, done: int, total: int | None = None) -> Self:
        """Return a copy with this progress.

        Raises:
            ValidationError: `input.wrong_type` or `input.out_of_range`.
        """
        checked = _checked_progress(done, total, fields=_PROGRESS_FIELDS)
        return with_fields(self, progress_done=checked[0], progress_total=checked[1])

    def with_checkpoint(self, checkpoint: JsonInput) -> Self:
        """Return a copy with this checkpoint.

        Raises:
            ValidationError: An `input.*` code that names the JSON path.
        """
        encoded = _encoded_checkpoint(checkpoint)
        return with_fields(self, checkpoint=checkpoint, checkpoint_json=encoded)


@dataclass(frozen=True, slots=True)
class JobProgressUpdate:
    """Report progress of a running job; what is left out keeps what is stored.

    Attributes:
        stage: Stage shown from now on.
        done: Units done, 0 or more.
        total: Units in all, not fewer than done.
        checkpoint: State that the next attempt receives; `UNSET` for none.
        checkpoint_json: The checkpoint as it will be stored, None if unset.
    """

    _: KW_ONLY
    stage: JobStage | None = None
    done: int | None = None
    total: int | None = None
    checkpoint: JsonInput | Unset = field(default=UNSET, repr=False, hash=False)
    checkpoint_json: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field and encode the checkpoint.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        store = object.__setattr__
        if self.stage is not None:
            store(self, "stage", check_choice(self.stage, field="stage", choices=JobStage))
        done, total = _checked_progress(self.done, self.total, fields=("done", "total"))
        store(self, "done", done)
        store(self, "total", total)
        store(self, "checkpoint_json", _encoded_checkpoint(self.checkpoint))


class JobFailure(Exception):  # noqa: N818  # an outcome that can be raised, named like its row
    """Report that an attempt failed; a handler raises or returns it.

    Its texts are never refused: saving a failure must not fail because of its content. They are
    cut to `Limits.identifier_characters` and `Limits.error_message_bytes`, both in bytes of UTF-8,
    and NUL and lone surrogates are replaced. Failures with equal fields are equal.

    Attributes:
        kind: Decides whether the job is tried again.
        code: Stable and dotted, such as `email.no_recipient`; `job.failed` if left blank.
        message: For people; stored and shown to operators.
    """

    __match_args__ = ("kind", "code", "message")

    kind: JobFailureKind
    code: str
    message: str

    def __init__(self, kind: JobFailureKind, code: str, message: str) -> None:
        """Build a failure; the class methods read better.

        Raises:
            ValidationError: `input.wrong_type` or `input.out_of_range` for the kind.
        """
        limits = current_limits()
        self.kind = check_choice(kind, field="kind", choices=JobFailureKind)
        self.code = sanitize_text(code, max_bytes=limits.identifier_characters)
        if not self.code.strip():
            self.code = codes.JOB_FAILED
        self.message = sanitize_text(message, max_bytes=limits.error_message_bytes)
        super().__init__(self.kind, self.code, self.message)

    @classmethod
    def retryable(cls, code: str, message: str) -> Self:
        """Return a failure after which the job is tried again while attempts are left."""
        return cls(JobFailureKind.RETRYABLE, code, message)

    @classmethod
    def terminal(cls, code: str, message: str) -> Self:
        """Return a failure that dead-letters the job at once."""
        return cls(JobFailureKind.TERMINAL, code, message)

    @classmethod
    def timeout(cls, code: str, message: str) -> Self:
        """Return a failure of an attempt that took too long; it is tried again."""
        return cls(JobFailureKind.TIMEOUT, code, message)

    @classmethod
    def lease_expired(cls, code: str, message: str) -> Self:
        """Return a failure of an attempt whose worker was lost; it is tried again."""
        return cls(JobFailureKind.LEASE_EXPIRED, code, message)

    @classmethod
    def panicked(cls, code: str, message: str) -> Self:
        """Return a failure that left its worker in doubt; it dead-letters the job at once."""
        return cls(JobFailureKind.PANICKED, code, message)

    def __str__(self) -> str:
        """Return `code: message`."""
        return f"{self.code}: {self.message}"

    def __repr__(self) -> str:
        """Return the kind and the code; the message may hold anything."""
        return f"{type(self).__name__}(kind={self.kind.value!r}, code={self.code!r})"

    def __eq__(self, other: object) -> bool:
        """Compare kind, code and message."""
        if not isinstance(other, JobFailure):
            return NotImplemented
        return self.args == other.args

    def __hash__(self) -> int:
        """Hash kind, code and message."""
        return hash(self.args)

    def __reduce__(self) -> tuple[object, ...]:
        """Let subclasses pickle and copy whatever arguments their `__init__` takes."""
        return rebuild_exception, (type(self), self.args), self.__dict__.copy()


def _encoded_output(output: JsonInput | Unset) -> str | None:
    if output is UNSET:
        return None
    return encode_json(output, field="output", max_bytes=current_limits().output_bytes)


def _encoded_checkpoint(checkpoint: JsonInput | Unset) -> str | None:
    if checkpoint is UNSET:
        return None
    return encode_json(checkpoint, field="checkpoint", max_bytes=current_limits().checkpoint_bytes)


def _checked_progress(
    done: int | None, total: int | None, *, fields: tuple[str, str]
) -> tuple[int | None, int | None]:
    if done is not None:
        done = check_int(done, field=fields[0], minimum=0, maximum=INT64_MAX)
    if total is not None:
        total = check_int(total, field=fields[1], minimum=0, maximum=INT64_MAX)
    if done is not None and total is not None and done > total:
        message = f"{fields[0]} must not exceed {fields[1]}"
        raise ValidationError(codes.INPUT_OUT_OF_RANGE, message, field=fields[0])
    return done, total
