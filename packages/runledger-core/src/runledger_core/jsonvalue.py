"""JSON values: their types, and their one way into and out of text.

A value comes back equal, except that a tuple comes back as a list and a subclass as its plain
type. Storage as `jsonb` changes the form but not the equality of `-0.0` (0.0), `1e22` (an integer)
and the order of keys.
"""

import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NoReturn, TypeAlias

from runledger_core import codes
from runledger_core._json_copy import INTEGER_BOUND, copy_plain, too_large
from runledger_core._kinds import is_kind, type_name
from runledger_core.errors import ValidationError
from runledger_core.limits import current_limits

JsonValue: TypeAlias = str | int | float | bool | list["JsonValue"] | dict[str, "JsonValue"] | None
"""What `decode_json` returns and handlers receive."""

JsonInput: TypeAlias = (
    str | int | float | bool | Sequence["JsonInput"] | Mapping[str, "JsonInput"] | None
)
"""What callers pass: so wide that a `dict[str, str]` fits. Only dict, list and tuple are taken."""


class Unset(Enum):
    """Mark a JSON value that is absent, as opposed to JSON null."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        """Return `UNSET`."""
        return self.name


UNSET: Final = Unset.UNSET
"""The only `Unset`: compare with `is`."""

# Cycles are impossible by then: the depth of the value has been checked.
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)


def encode_json(value: object, *, field: str, max_bytes: int) -> str:
    """Return the value as compact JSON text that `jsonb` accepts.

    Args:
        value: A `JsonInput`. Subclasses count by their value: a StrEnum member is its text, an
            OrderedDict its items, a named tuple a list.
        field: Start of the path named in errors, as in `payload.items[3].when`.
        max_bytes: Most bytes of the text in UTF-8.

    Raises:
        ValidationError: `input.json_unsupported_type`, `input.json_not_finite`,
            `input.json_invalid_key`, `input.json_invalid_text`, `input.json_number_too_long`,
            `input.json_too_deep` (cycles too) or `input.json_too_large`. The message names the
            path and never the value.
    """
    text = _encode_ordinary(value, max_bytes=max_bytes)
    return _encode_any(value, field=field, max_bytes=max_bytes) if text is None else text


def decode_json(text: str, *, field: str = "json") -> JsonValue:
    """Return the value of JSON text.

    Args:
        text: JSON as PostgreSQL or a user writes it.
        field: Name used in the error.

    Raises:
        ValidationError: `input.wrong_type`, `input.json_malformed`, `input.json_not_finite`,
            `input.json_number_too_long` or `input.json_too_deep`.
    """
    if not is_kind(text, str):
        message = f"{field} must be text, not {type_name(text)}"
        raise ValidationError(codes.INPUT_WRONG_TYPE, message, field=field)
    # Causes are dropped: a JSONDecodeError carries the whole document.
    try:
        value: JsonValue = _DECODER.decode(str.__str__(text))
    except _NotFiniteError:
        code, problem = codes.INPUT_JSON_NOT_FINITE, "holds a number that is not finite"
    except json.JSONDecodeError as error:
        code = codes.INPUT_JSON_MALFORMED
        problem = f"is not JSON (line {error.lineno}, column {error.colno})"
    except RecursionError:
        code, problem = codes.INPUT_JSON_TOO_DEEP, "is nested too deeply"
    except ValueError:
        # The only other one: an integer beyond sys.get_int_max_str_digits().
        code, problem = codes.INPUT_JSON_NUMBER_TOO_LONG, "holds an integer with too many digits"
    else:
        return value
    raise ValidationError(code, f"{field} {problem}", field=field)


def _encode_ordinary(value: object, *, max_bytes: int) -> str | None:
    """Encode a value of plain types, or return None if a closer look is needed.

    Every enqueue and completion passes here, so only what cannot be seen in the result is looked
    at beforehand, and no paths are kept.
    """
    if not _is_ordinary(value, max_bytes=max_bytes):
        return None
    try:
        text = _ENCODER.encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (ValueError, TypeError, RecursionError):
        # NaN, a lone surrogate, or another thread changed the value meanwhile.
        return None
    # The escape of NUL; `\\u0000`, a backslash and four digits, is told apart by the closer look.
    return None if size > max_bytes or "\\u0000" in text else text


def _is_ordinary(value: object, *, max_bytes: int) -> bool:
    """Tell whether all nodes have plain types and are fewer, and less deep, than allowed.

    False means "not obviously": a value of the greatest depth is left to the closer look as well.
    """
    level: list[Any] = [value]
    room = max_bytes
    for _ in range(current_limits().json_depth):
        below: list[Any] = []
        room -= len(level)
        for node in level:
            kind = type(node)  # pyright: ignore[reportUnknownVariableType]  # the type of an Any
            if kind is str:
                room -= len(node)
            elif kind is int:
                if not -INTEGER_BOUND < node < INTEGER_BOUND:
                    return False
            elif kind is dict:
                for key in node:
                    if type(key) is not str:
                        return False
                below += node.values()
            elif kind is list or kind is tuple:
                below += node
            elif not (kind is bool or kind is float or node is None):
                return False
            # Containers may share their parts: three levels can stand for a billion nodes.
            if len(below) > room:
                return False
        if not below:
            return room >= 0
        level = below
    return False


def _encode_any(value: object, *, field: str, max_bytes: int) -> str:
    plain = copy_plain(value, field=field, max_bytes=max_bytes)
    try:
        text = _ENCODER.encode(plain)
    except RecursionError:
        message = f"{field} is nested too deeply for a call this deep in the stack"
        raise ValidationError(codes.INPUT_JSON_TOO_DEEP, message, field=field) from None
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise too_large(field, max_bytes=max_bytes)
    return text


class _NotFiniteError(ValueError):
    pass


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _NotFiniteError
    return number


def _refuse_constant(_name: str) -> NoReturn:
    raise _NotFiniteError


_DECODER: Final = json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant)
