"""What a handler's exception comes to; of a group the gravest that it holds."""

from __future__ import annotations

from collections import deque
from typing import Final, cast

from runledger_core import JobCancelled, JobFailure, JobFailureKind, ValidationError, type_name

from ._traceback import safe_text

_MOST_LEAVES: Final = 10_000
_MOST_CAUSES: Final = 1_000


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return what a group holds, in groups of its own too; any other exception by itself.

    Of a group without end the first ten thousand are looked at.
    """
    leaves: list[BaseException] = []
    pending = deque([error])
    for _ in range(_MOST_LEAVES):
        if not pending:
            break
        current = pending.popleft()
        if isinstance(current, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", current)
            pending.extend(group.exceptions[: max(0, _MOST_LEAVES - len(pending))])
        else:
            leaves.append(current)
    return leaves or [error]


def comes_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Tell whether an exception is of these kinds, or led to by one that is.

    Nothing leads to a panic or to a `JobFailure`, which stand for themselves. A group that led to
    it is looked through; of an exception without end the first thousand are looked at.
    """
    seen: set[int] = set()
    pending: deque[BaseException | None] = deque([error])
    try:
        while pending and len(seen) < _MOST_CAUSES:
            current = pending.popleft()
            if isinstance(current, kinds):
                return True
            if current is None or id(current) in seen or _stands_for_itself(current):
                continue
            seen.add(id(current))
            pending += (current.__cause__, current.__context__)
            pending += leaves_of(current)[:_MOST_CAUSES]
    except Exception:  # noqa: BLE001  # its attributes may be properties of the user's
        return False
    return False


def gravity_of(error: BaseException) -> tuple[bool, bool, bool]:
    """Return what sorts exceptions, gravest first.

    A panic goes before what is not tried again, and that before the rest. A `JobFailure` goes
    before what says as much: its code was chosen by the handler.
    """
    kind, _ = _kind_and_code_of(error)
    return (
        kind is not JobFailureKind.PANICKED,
        kind.is_retryable,
        not isinstance(error, JobFailure),
    )


def failure_of(error: BaseException) -> JobFailure:
    """Return the failure that an exception stands for."""
    kind, code = _kind_and_code_of(error)
    if isinstance(error, JobFailure):
        return JobFailure(kind, code, error.message)
    if code == "job.invalid_output":
        return JobFailure(kind, code, str(error))
    return JobFailure(kind, code, f"{type_name(error)}: {safe_text(error)}")


def _kind_and_code_of(error: BaseException) -> tuple[JobFailureKind, str]:
    if isinstance(error, JobFailure):
        return error.kind, error.code
    # Both are Exceptions, but say that the process is in doubt.
    if isinstance(error, (MemoryError, RecursionError)):
        return JobFailureKind.PANICKED, "job.handler_panic"
    if isinstance(error, JobCancelled):
        return JobFailureKind.RETRYABLE, "job.handler_exception"
    if isinstance(error, ValidationError) and _is_of_output(error):
        return JobFailureKind.TERMINAL, "job.invalid_output"
    if isinstance(error, Exception):
        return JobFailureKind.RETRYABLE, "job.handler_exception"
    return JobFailureKind.PANICKED, "job.handler_panic"


def _stands_for_itself(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return False
    kind, _ = _kind_and_code_of(error)
    return isinstance(error, JobFailure) or kind is JobFailureKind.PANICKED


def _is_of_output(error: ValidationError) -> bool:
    return error.code.startswith("input.json_") and (error.field or "").startswith("output")
