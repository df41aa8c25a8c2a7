"""A careful copy of a JSON value, which decides whatever is not ordinary.

It reads every node by its storage, with the unbound methods of the base types, so that what is
checked is what gets encoded whatever a subclass overrides.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from runledger_core import codes
from runledger_core._kinds import is_kind, type_name
from runledger_core.errors import ValidationError
from runledger_core.limits import current_limits
from runledger_core.text import is_storable

INTEGER_DIGITS: Final = 4300
INTEGER_BOUND: Final = 10**INTEGER_DIGITS
"""Python refuses by default to read longer integers back from text."""

_DICT: Final[type[dict[object, object]]] = dict
_LIST: Final[type[list[object]]] = list
_TUPLE: Final[type[tuple[object, ...]]] = tuple

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY_CHARACTERS: Final = 40
_PATH_CHARACTERS: Final = 200

_Target: TypeAlias = list[object] | dict[str, object]


def copy_plain(value: object, *, field: str, max_bytes: int) -> object:
    """Return the value rebuilt of plain str, int, float, bool, None, list and dict.

    Args:
        value: Anything.
        field: Start of the path in errors.
        max_bytes: Bound of the text to come; a value that surely exceeds it is refused early.

    Raises:
        ValidationError: An `input.json_*` code with the path as its field.
    """
    return _Copier(field, max_bytes).copy(value)


def too_large(field: str, *, max_bytes: int) -> ValidationError:
    """Return the error for a value with too many bytes."""
    message = f"{field} is larger than {max_bytes} bytes of JSON"
    return ValidationError(codes.INPUT_JSON_TOO_LARGE, message, field=field)


@dataclass(slots=True)
class _Frame:
    """A container that is being copied; the frames in a row are the path to a node."""

    entries: Iterator[tuple[object, object]]
    target: _Target
    key: str | int = 0

    def put(self, plain: object) -> None:
        if isinstance(self.target, list):
            self.target.append(plain)
        else:
            self.target[str(self.key)] = plain


class _Copier:
    def __init__(self, field: str, max_bytes: int) -> None:
        self._field = field
        self._max_bytes = max_bytes
        self._room = max_bytes
        self._max_depth = current_limits().json_depth
        self._frames: list[_Frame] = []

    def copy(self, value: object) -> object:
        # Depth first, so that a value containing itself runs into the depth, not into memory.
        plain = self._plain(value)
        while self._frames:
            frame = self._frames[-1]
            for key, node in frame.entries:
                frame.key = self._checked_key(key, frame.target)
                frame.put(self._plain(node))
                if self._frames[-1] is not frame:
                    break
            else:
                self._frames.pop()
        return plain

    def _plain(self, node: object) -> object:
        """Return a scalar as it is, or an empty container whose entries come next."""
        self._spend(1)
        if node is None or type(node) is bool:
            return node
        if is_kind(node, str):
            return self._checked_text(str.__str__(node))
        if is_kind(node, int):
            return self._checked_integer(int.__pos__(node))
        if is_kind(node, float) and not is_kind(node, Enum):
            return self._checked_float(float.__pos__(node))
        return self._entered(node)

    def _checked_text(self, text: str) -> str:
        self._spend(len(text))
        if not is_storable(text):
            predicate = "contains NUL or a lone surrogate"
            raise self._refusal(codes.INPUT_JSON_INVALID_TEXT, predicate)
        return text

    def _checked_integer(self, number: int) -> int:
        # The interpreter's own bound may have been lowered; 0 there means none.
        digits = min(INTEGER_DIGITS, sys.get_int_max_str_digits() or INTEGER_DIGITS)
        bound = INTEGER_BOUND if digits == INTEGER_DIGITS else 10**digits
        if not -bound < number < bound:
            predicate = f"has more than {digits} digits"
            raise self._refusal(codes.INPUT_JSON_NUMBER_TOO_LONG, predicate)
        return number

    def _checked_float(self, number: float) -> float:
        if not math.isfinite(number):
            raise self._refusal(codes.INPUT_JSON_NOT_FINITE, "is not a finite number")
        return number

    def _entered(self, node: object) -> object:
        frame = None if is_kind(node, Enum) else _frame(node)
        if frame is None:
            predicate = (
                f"is of type {type_name(node)}, which JSON cannot hold; "
                "use str, int, float, bool, None, list, tuple or dict"
            )
            raise self._refusal(codes.INPUT_JSON_UNSUPPORTED_TYPE, predicate)
        if len(self._frames) >= self._max_depth:
            predicate = f"is nested deeper than {self._max_depth} levels"
            raise self._refusal(codes.INPUT_JSON_TOO_DEEP, predicate)
        self._frames.append(frame)
        return frame.target

    def _checked_key(self, key: object, target: _Target) -> str | int:
        if isinstance(target, list):
            return len(target)
        if not is_kind(key, str):
            predicate = f"has a key of type {type_name(key)}; keys of JSON objects are str"
            raise self._refusal(codes.INPUT_JSON_INVALID_KEY, predicate, in_key=True)
        text = str.__str__(key)
        self._spend(len(text))
        if not is_storable(text):
            predicate = "has a key that contains NUL or a lone surrogate"
            raise self._refusal(codes.INPUT_JSON_INVALID_TEXT, predicate, in_key=True)
        return text

    def _spend(self, size: int) -> None:
        # Each node and each character takes at least one byte: a value whose parts are shared a
        # billion times, or huge text, ends here and not in memory.
        self._room -= size
        if self._room < 0:
            raise too_large(self._field, max_bytes=self._max_bytes)

    def _refusal(self, code: str, predicate: str, *, in_key: bool = False) -> ValidationError:
        # A key that is refused is no part of its own path.
        frames = self._frames[:-1] if in_key else self._frames
        path = self._field + "".join(_path_part(frame.key) for frame in frames)
        if len(path) > _PATH_CHARACTERS:
            half = _PATH_CHARACTERS // 2
            path = f"{path[:half]}...{path[-half:]}"
        return ValidationError(code, f"{path} {predicate}", field=path)


def _frame(node: object) -> _Frame | None:
    if is_kind(node, _DICT):
        return _Frame(iter(_DICT.items(node)), {})
    if is_kind(node, _LIST):
        return _Frame(enumerate(_LIST.__iter__(node)), [])
    if is_kind(node, _TUPLE):
        return _Frame(enumerate(_TUPLE.__iter__(node)), [])
    return None


def _path_part(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if _PLAIN_NAME.fullmatch(key):
        return f".{key}"
    shown = key if len(key) <= _KEY_CHARACTERS else f"{key[:_KEY_CHARACTERS]}..."
    return f"[{json.dumps(shown)}]"
