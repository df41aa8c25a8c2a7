"""Exceptions whose class cannot be named."""

from __future__ import annotations


class Nameless(type):
    """A class of classes that cannot be named."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]  # the fault
        raise LookupError


class NamelessError(Exception, metaclass=Nameless):
    """An exception whose class cannot be named."""
