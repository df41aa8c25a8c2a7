"""Arguments of a wrong type, refused by name before any SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeGuard, TypeVar, cast
from uuid import UUID

from runledger_core import ValidationError, check_int, check_uuid, codes, is_kind
from runledger_core.limits import INT32_MAX

Kind = TypeVar("Kind")


def is_checked(value: object, kind: type[Kind]) -> TypeGuard[Kind]:
    """Tell whether the value really is of this class, and was checked when it was made.

    A subclass may leave that out; then it lacks what the checks make of other fields.
    """
    return is_kind(value, kind) and all(hasattr(value, name) for name in _made_fields(kind))


def check_kind(value: object, kind: type[Kind], *, field: str) -> Kind:
    """Return the value if it is of this class.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if not is_checked(value, kind):
        raise _wrong_type(field, f"a {kind.__name__}")
    return value


def check_list(values: object, *, field: str) -> list[Any]:
    """Return the values as a list; a text is refused, though it is a sequence of its characters.

    What a generator raises is its maker's, and goes on as it is: a request that it refused, say.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    is_text = is_kind(values, str) or is_kind(values, bytes)
    if is_text or not issubclass(type(values), Iterable):
        raise _wrong_type(field, "a list")
    # Whatever they are: who asks for a list looks at each.
    return list(cast("Iterable[Any]", values))


def check_kinds(values: object, kind: type[Kind], *, field: str) -> list[Kind]:
    """Return the values as a list if all are of this class.

    Raises:
        ValidationError: `input.wrong_type`; the field has the index of the first that is not.
    """
    found: list[Kind] = []
    for index, value in enumerate(check_list(values, field=field)):
        if not is_checked(value, kind):
            raise _wrong_type(f"{field}[{index}]", f"a {kind.__name__}")
        found.append(value)
    return found


def check_uuids(values: object, *, field: str) -> list[UUID]:
    """Return the values as a list if all are UUIDs.

    Raises:
        ValidationError: `input.wrong_type`; the field has the index of the first that is not.
    """
    found = check_list(values, field=field)
    return [check_uuid(value, field=f"{field}[{index}]") for index, value in enumerate(found)]


def check_whole(value: object, *, field: str) -> int:
    """Return the value as a plain integer of whatever size; a bool is none.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if not is_kind(value, int) or is_kind(value, bool):
        raise _wrong_type(field, "an integer")
    # The number itself, whatever a subclass says of it.
    return int.__pos__(value)


def check_lock_timeout(lock_timeout_ms: object) -> int:
    """Return the longest wait for a row in milliseconds; None would mean for ever.

    Raises:
        ValidationError: `input.wrong_type` or `input.out_of_range`.
    """
    return check_int(lock_timeout_ms, field="lock_timeout_ms", minimum=1, maximum=INT32_MAX)


@cache
def _made_fields(kind: type[object]) -> tuple[str, ...]:
    if not is_dataclass(kind):
        return ()
    return tuple(field.name for field in fields(kind) if not field.init)


def _wrong_type(field: str, wanted: str) -> ValidationError:
    return ValidationError(codes.INPUT_WRONG_TYPE, f"{field} must be {wanted}", field=field)
