"""Copies of requests and results with other fields, whose JSON is not encoded anew."""

import copy
from typing import TypeVar

InstanceT = TypeVar("InstanceT")


def with_fields(original: InstanceT, **fields: object) -> InstanceT:
    """Return a copy of a frozen dataclass with these fields, which the caller has checked.

    Unlike `dataclasses.replace` this keeps JSON as it was encoded: the value that it was made of
    may have changed since.
    """
    copied = copy.copy(original)
    for name, value in fields.items():
        object.__setattr__(copied, name, value)
    return copied
