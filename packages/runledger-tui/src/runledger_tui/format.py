"""Values as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


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
