"""Rebuilding of exceptions without calling their `__init__`."""

from typing import TypeVar

ExceptionT = TypeVar("ExceptionT", bound=BaseException)


def rebuild_exception(kind: type[ExceptionT], args: tuple[object, ...]) -> ExceptionT:
    """Return a bare instance; pickle and copy then restore its attributes."""
    return kind.__new__(kind, *args)
