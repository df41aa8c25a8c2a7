"""Arguments of a wrong type, refused by name before any SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast
from uuid import UUID

from runledger_core import ValidationError, check_int, check_uuid, codes
from runledger_core.limits import INT32_MAX

Kind = TypeVar("Kind")


def check_kind(value: object, kind: type[Kind], *, field: str) -> Kind:
    """Return the value if it is of this class.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if not isinstance(value, kind):
        raise _wrong_type(field, f"a {kind.__name__}")
    return value


def check_list(values: object, *, field: str) -> list[object]:
    """Return the values as a list; a text is refused, though it is a sequence of its characters.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise _wrong_type(field, "a list")
    # Whatever they are: who asks for a list looks at each.
    return list(cast("Iterable[object]", values))


def check_kinds(values: object, kind: type[Kind], *, field: str) -> list[Kind]:
    """Return the values as a list if all are of this class.

    Raises:
        ValidationError: `input.wrong_type`; the field has the index of the first that is not.
    """
    found: list[Kind] = []
    for index, value in enumerate(check_list(values, field=field)):
        if not isinstance(value, kind):
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
    """Return the value if it is an integer of whatever size, and no bool.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(field, "an integer")
    return value


def check_lock_timeout(lock_timeout_ms: object) -> int:
    """Return the longest wait for a row in milliseconds; None would mean for ever.

    Raises:
        ValidationError: `input.wrong_type` or `input.out_of_range`.
    """
    return check_int(lock_timeout_ms, field="lock_timeout_ms", minimum=1, maximum=INT32_MAX)


def _wrong_type(field: str, wanted: str) -> ValidationError:
    return ValidationError(codes.INPUT_WRONG_TYPE, f"{field} must be {wanted}", field=field)
