"""Values as people read them, and database text that cannot act on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_REPLACEMENT: Final = "\ufffd"
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def _marks() -> dict[int, str]:
    # C0 and DEL have pictures of their own; the others become one mark.
    marks = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
    unseen = [
        *range(0x80, 0xA0),  # C1: some terminals take them for ESC and a letter
        0x061C,  # these and the next two ranges turn the direction of what follows
        *range(0x200E, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        0x2028,  # line and paragraph separators
        0x2029,
        0xFEFF,
        *range(0xFFF9, 0xFFFC),
        *range(0xD800, 0xE000),
        *range(0xE0000, 0xE0080),  # tags: invisible copies of ASCII
    ]
    return marks | dict.fromkeys(unseen, _REPLACEMENT)


_MARKS: Final = _marks()


def clean(text: str) -> str:
    """Return the text with every control character as a visible mark, on one line."""
    return text.translate(_MARKS)


def format_seconds(seconds: float) -> str:
    """Return a length of time in one or two units, such as `3 h 20 min`; never negative."""
    whole = max(int(seconds), 0)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def format_instant(instant: datetime) -> str:
    """Return an instant in UTC to the second."""
    utc = instant.astimezone(UTC)
    # strftime does not pad the years before 1000.
    return f"{utc.replace(tzinfo=None, microsecond=0).isoformat(sep=' ')} UTC"


def format_count(total: int, *, is_exact: bool) -> str:
    """Return a number with separators, and a plus if there are more."""
    return f"{total:,}" if is_exact else f"{total:,}+"
