"""The errors of all Runledger distributions: six categories, stable codes, client-safe text."""

from enum import StrEnum
from typing import ClassVar

from runledger_core._pickling import rebuild_exception


class ErrorCategory(StrEnum):
    """Tell what a caller can do about an error."""

    CONFLICT = "CONFLICT"
    VALIDATION = "VALIDATION"
    NOT_FOUND = "NOT_FOUND"
    FORBIDDEN = "FORBIDDEN"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"


class RunledgerError(Exception):
    """Carry a stable code and a message that may be shown to a client.

    Attributes:
        category: What a caller can do about it; each category has its own subclass.
        code: Stable and dotted, such as `input.blank`; compare this, not the message.
        client_message: Never contains a payload, a key, a connection string or driver text.
        field: The refused argument or JSON path, if the error is about one.
        entry_index: Position of the refused entry in a batch, from 0, if there was a batch.
    """

    category: ClassVar[ErrorCategory] = ErrorCategory.INTERNAL

    def __init__(
        self,
        code: str,
        client_message: str,
        *,
        field: str | None = None,
        entry_index: int | None = None,
    ) -> None:
        """Build the error from texts that are safe to show."""
        super().__init__(code, client_message)
        self.code = code
        self.client_message = client_message
        self.field = field
        self.entry_index = entry_index

    def __str__(self) -> str:
        """Return `code: message`."""
        return f"{self.code}: {self.client_message}"

    def __repr__(self) -> str:
        """Return the class and its client-safe parts, those that are set."""
        parts = [f"code={self.code!r}", f"client_message={self.client_message!r}"]
        if self.field is not None:
            parts.append(f"field={self.field!r}")
        if self.entry_index is not None:
            parts.append(f"entry_index={self.entry_index!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[object, ...]:
        """Let subclasses pickle and copy whatever arguments their `__init__` takes."""
        return rebuild_exception, (type(self), self.args), self.__dict__.copy()


class ConflictError(RunledgerError):
    """Report that the stored state contradicts the request."""

    category = ErrorCategory.CONFLICT


class ValidationError(RunledgerError):
    """Report that the request itself is refused and will be refused again unchanged."""

    category = ErrorCategory.VALIDATION


class NotFoundError(RunledgerError):
    """Report that the addressed row does not exist in the given scope."""

    category = ErrorCategory.NOT_FOUND


class ForbiddenError(RunledgerError):
    """Report that the caller may not do this, a lost lease included."""

    category = ErrorCategory.FORBIDDEN


class InternalError(RunledgerError):
    """Report a fault that is neither the caller's nor temporary."""

    category = ErrorCategory.INTERNAL


class UnavailableError(RunledgerError):
    """Report a temporary fault; the same request may succeed later."""

    category = ErrorCategory.UNAVAILABLE
