"""Checks of single values, and text made safe to store.

What a caller passes is refused when it cannot be stored; what Runledger itself stores about a
failure is sanitised instead, since saving a failure must not fail because of its content.
"""

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeVar
from uuid import UUID

from runledger_core import codes
from runledger_core._kinds import is_kind, type_name
from runledger_core.errors import ValidationError

CUT_MARK: Final = "… [cut]"
REPLACEMENT: Final = "\ufffd"
# A `traceparent`, the 512 characters of `tracestate` that the W3C wants passed on, and some more.
TRACE_CONTEXT_CHARACTERS: Final = 1_024

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)

_CUT_MARK_BYTES: Final = len(CUT_MARK.encode())
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def check_text(
    value: object,
    *,
    field: str,
    max_characters: int | None = None,
    max_bytes: int | None = None,
    allow_blank: bool = False,
) -> str:
    """Return the value as a plain string that PostgreSQL can store.

    Args:
        value: A string; subclasses count by their value, whatever their `__str__` says.
        field: Name used in the error.
        max_characters: Most code points, if bounded.
        max_bytes: Most bytes in UTF-8, if bounded.
        allow_blank: Accept text that is empty or only white space.

    Raises:
        ValidationError: `input.wrong_type`, `input.too_long`, `input.invalid_characters` (NUL or a
            lone surrogate) or `input.blank`.
    """
    if not is_kind(value, str):
        raise _wrong_type(value, field=field, wanted="text")
    text = str.__str__(value)
    if max_characters is not None and len(text) > max_characters:
        raise _refusal(codes.INPUT_TOO_LONG, f"is longer than {max_characters} characters", field)
    # A character takes at least one byte, so that huge text is refused without encoding it.
    if max_bytes is not None and (len(text) > max_bytes or _utf8_size(text) > max_bytes):
        raise _refusal(codes.INPUT_TOO_LONG, f"is longer than {max_bytes} bytes in UTF-8", field)
    if not is_storable(text):
        raise _refusal(codes.INPUT_INVALID_CHARACTERS, "contains NUL or a lone surrogate", field)
    if not allow_blank and (not text or text.isspace()):
        raise _refusal(codes.INPUT_BLANK, "must not be blank", field)
    return text


def check_trace_context(value: object) -> str:
    """Return the value if it can be a `trace_context`.

    Raises:
        ValidationError: `input.wrong_type`, `input.blank`, `input.too_long`,
            `input.invalid_characters`.
    """
    text = check_text(value, field="trace_context", max_characters=TRACE_CONTEXT_CHARACTERS)
    if not text.isascii() or not text.isprintable():
        raise ValidationError(
            codes.INPUT_INVALID_CHARACTERS,
            "trace_context must be printable ASCII",
            field="trace_context",
        )
    return text


def sanitize_text(value: object, *, max_bytes: int) -> str:
    """Return storable text for any object whatsoever; never raise.

    NUL and lone surrogates become U+FFFD. Text over the limit is cut on a character boundary and
    ends with a mark if there is room for it.

    Args:
        value: Text, or anything whose `str()` is wanted; if that raises, its type is named.
        max_bytes: Most bytes of the result in UTF-8, the mark included.
    """
    text = _text_of(value)
    # Only the head is looked at: every character takes at least one byte.
    head = _UNSTORABLE.sub(REPLACEMENT, text[: max(max_bytes, 0)]).encode()
    if len(head) <= max_bytes and len(text) <= max_bytes:
        return head.decode()
    if max_bytes < _CUT_MARK_BYTES:
        return head[: max(max_bytes, 0)].decode(errors="ignore")
    return head[: max_bytes - _CUT_MARK_BYTES].decode(errors="ignore") + CUT_MARK


def is_storable(text: str) -> bool:
    """Tell whether a plain string holds neither NUL nor a lone surrogate."""
    return "\0" not in text and (text.isascii() or _UNSTORABLE.search(text) is None)


def check_int(value: object, *, field: str, minimum: int, maximum: int) -> int:
    """Return the value as a plain integer between both bounds, which are allowed themselves.

    Raises:
        ValidationError: `input.wrong_type` (a bool too) or `input.out_of_range`.
    """
    if not is_kind(value, int) or is_kind(value, bool):
        raise _wrong_type(value, field=field, wanted="an integer")
    number = int.__pos__(value)
    if not minimum <= number <= maximum:
        message = f"must be between {minimum} and {maximum}"
        raise _refusal(codes.INPUT_OUT_OF_RANGE, message, field)
    return number


def check_bool(value: object, *, field: str) -> bool:
    """Return the value if it is True or False.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if not is_kind(value, bool):
        raise _wrong_type(value, field=field, wanted="True or False")
    return value


def check_instant(value: object, *, field: str) -> datetime:
    """Return the same instant as a plain `datetime` in UTC, in whole microseconds.

    Raises:
        ValidationError: `input.wrong_type`, `input.naive_timestamp` or `input.out_of_range` (in
            UTC it lies outside the years 1 to 9999).
    """
    if not is_kind(value, datetime):
        raise _wrong_type(value, field=field, wanted="a datetime")
    # Unbound methods, so that a subclass (a pandas NaT, a nanosecond clock) counts by its fields.
    try:
        if datetime.utcoffset(value) is None:
            raise _refusal(codes.INPUT_NAIVE_TIMESTAMP, "needs a UTC offset", field)
        utc = datetime.astimezone(value, UTC)
    except (OverflowError, ValueError):
        message = "must lie in the years 1 to 9999 of UTC"
        raise _refusal(codes.INPUT_OUT_OF_RANGE, message, field) from None
    return datetime(
        utc.year,
        utc.month,
        utc.day,
        utc.hour,
        utc.minute,
        utc.second,
        utc.microsecond,
        tzinfo=UTC,
    )


def check_uuid(value: object, *, field: str) -> UUID:
    """Return the value as a plain `UUID`.

    Raises:
        ValidationError: `input.wrong_type`, for the text form too.
    """
    if not is_kind(value, UUID):
        raise _wrong_type(value, field=field, wanted="a UUID")
    return value if type(value) is UUID else UUID(int=value.int)


def check_choice(value: object, *, field: str, choices: type[ChoiceT]) -> ChoiceT:
    """Return the member that the value is, or whose text it is.

    Raises:
        ValidationError: `input.wrong_type` or `input.out_of_range`.
    """
    if type(value) is choices:
        return value
    if not is_kind(value, str):
        raise _wrong_type(value, field=field, wanted=f"a {choices.__name__}")
    text = str.__str__(value)
    for member in choices:
        if member.value == text:
            return member
    known = ", ".join(member.value for member in choices)
    raise _refusal(codes.INPUT_OUT_OF_RANGE, f"must be one of {known}", field)


def _text_of(value: object) -> str:
    try:
        return str.__str__(value if is_kind(value, str) else str(value))
    except BaseException:  # noqa: BLE001  # a value's own code must not stop a failure's record
        return f"<{type_name(value)} without text>"


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _refusal(code: str, predicate: str, field: str) -> ValidationError:
    return ValidationError(code, f"{field} {predicate}", field=field)


def _wrong_type(value: object, *, field: str, wanted: str) -> ValidationError:
    message = f"must be {wanted}, not {type_name(value)}"
    return _refusal(codes.INPUT_WRONG_TYPE, message, field)
