"""From the text of a cron expression to the numbers that each of its fields matches."""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from runledger_core import codes
from runledger_core.errors import ValidationError

_MOST_CHARACTERS: Final = 1_000
_SHOWN_CHARACTERS: Final = 40

_SPELLED_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * SUN",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)

_PRINTABLE: Final = re.compile(r"[ -~]*")
_ELEMENT: Final = re.compile(r"(\*|[0-9]+|[A-Za-z]+)(?:-([0-9]+|[A-Za-z]+))?(?:/([0-9]+))?")
# What other crons have: last, nearest working day, n-th weekday, hashed, random.
_EXTENSION: Final = re.compile(
    r".*#.*|[0-9]+[LW]|[A-Z]{3}L|LW?|L-[0-9]+|WL?|[HR](\(.*\))?(/.*)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class CronFields:
    """Hold the numbers that each field matches, ascending.

    Attributes:
        seconds: 0 to 59; 0 alone where the expression has no seconds.
        minutes: 0 to 59.
        hours: 0 to 23.
        days: Days of the month, 1 to 31.
        months: 1 to 12.
        weekdays: Days of the week, 0 to 6 from Sunday.
        years: 1970 to 2099; None where the expression names no years.
        is_either_day_enough: Whether one of the two days has to match; else both.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    _: KW_ONLY
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    years: tuple[int, ...] | None
    is_either_day_enough: bool


@dataclass(frozen=True, slots=True)
class _Field:
    """What may stand in one field."""

    name: str
    whole: range
    _: KW_ONLY
    numbers: range
    names: Mapping[str, int]
    may_be_open: bool = False


def _plain(name: str, first: int, last: int) -> _Field:
    whole = range(first, last + 1)
    return _Field(name, whole, numbers=whole, names={})


def _by_name(full_names: str, *, first: int) -> dict[str, int]:
    numbers = {name: number for number, name in enumerate(full_names.split(), start=first)}
    return {name[:3]: number for name, number in numbers.items()} | numbers


_SECOND: Final = _plain("second", 0, 59)
_MINUTE: Final = _plain("minute", 0, 59)
_HOUR: Final = _plain("hour", 0, 23)
_DAY: Final = _plain("day of month", 1, 31)
_MONTH: Final = replace(
    _plain("month", 1, 12),
    names=_by_name(
        "JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER",
        first=1,
    ),
)
_WEEKDAY: Final = _Field(
    "day of week",
    range(7),
    # In a crontab Sunday is both 0 and 7, so that a range may begin or end with it.
    numbers=range(8),
    names=_by_name("SUNDAY MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY", first=0)
    | {"TUES": 2, "THURS": 4},
)
_YEAR: Final = _plain("year", 1970, 2099)

_CRONTAB: Final = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
_SECONDS_FIRST: Final = (
    _SECOND,
    _MINUTE,
    _HOUR,
    replace(_DAY, may_be_open=True),
    _MONTH,
    replace(_WEEKDAY, may_be_open=True, numbers=range(0)),
)
_LAYOUTS: Final = {
    len(layout): layout for layout in (_CRONTAB, _SECONDS_FIRST, (*_SECONDS_FIRST, _YEAR))
}


@lru_cache(maxsize=256)
def read_fields(text: str) -> CronFields:
    """Return what an expression matches; whether its days ever come is not asked.

    Raises:
        ValidationError: `job_schedule.invalid_cron` if it is not in the dialect.
    """
    parts = _spelled_out(text).split()
    layout = _LAYOUTS.get(len(parts))
    if layout is None:
        raise refusal(
            "must have 5 fields (minute first), 6 (second first) or 7 (second first, year last),"
            f" not {len(parts)}"
        )
    values = {
        field.name: _read_field(part, field) for field, part in zip(layout, parts, strict=True)
    }
    return CronFields(
        values.get(_SECOND.name, (0,)),
        values[_MINUTE.name],
        hours=values[_HOUR.name],
        days=values[_DAY.name],
        months=values[_MONTH.name],
        weekdays=tuple(sorted({day % 7 for day in values[_WEEKDAY.name]})),
        years=values.get(_YEAR.name),
        # As cron itself: a day field that begins with * does not restrict, not even as */2.
        is_either_day_enough=layout is _CRONTAB
        and not parts[2].startswith("*")
        and not parts[4].startswith("*"),
    )


def refusal(predicate: str) -> ValidationError:
    """Return the error of an expression that is not accepted."""
    return ValidationError(
        codes.JOB_SCHEDULE_INVALID_CRON, f"cron_expr {predicate}", field="cron_expr"
    )


def _spelled_out(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        raise refusal(f"is longer than {_MOST_CHARACTERS:,} characters")
    if not text or text.isspace():
        raise refusal("must not be blank")
    if _PRINTABLE.fullmatch(text) is None:
        raise refusal("may hold printable ASCII characters only, with blanks between its fields")
    if text != text.strip():
        raise refusal("must not begin or end with a blank")
    if not text.startswith("@"):
        return text
    if text not in _SPELLED_OUT:
        raise refusal(f"is none of the known names: write {', '.join(_SPELLED_OUT)}, or fields")
    return _SPELLED_OUT[text]


def _read_field(text: str, field: _Field) -> tuple[int, ...]:
    if text == "?":
        if not field.may_be_open:
            raise refusal(
                f"has ? as its {field.name}: it may stand for a day only, and only where the"
                " second comes first; write *"
            )
        return tuple(field.whole)
    matched: set[int] = set()
    for element in text.split(","):
        matched.update(_read_element(element, field))
    return tuple(sorted(matched))


def _read_element(text: str, field: _Field) -> range:
    match = _ELEMENT.fullmatch(text)
    if match is None or (match[1] == "*" and match[2] is not None):
        raise _not_understood(text, field)
    start, end, step = match.groups()
    if start == "*":
        first, last = field.whole[0], field.whole[-1]
    else:
        first = last = _read_value(start, field, element=text)
        if end is not None:
            if start.isdigit() != end.isdigit():
                raise refusal(
                    f"has {_shown(text)} as its {field.name}: a range is from number to number"
                    " or from name to name"
                )
            last = _read_value(end, field, element=text)
        elif step is not None:
            # Where the week ends is another matter in each cron.
            if field.names:
                raise refusal(
                    f"has {_shown(text)} as its {field.name}: a step needs a range or *, such as"
                    f" {_example(field)}"
                )
            last = field.whole[-1]
    if last < first:
        raise refusal(
            f"has {_shown(text)} as its {field.name}: a range must not run backwards; write it as"
            " two"
        )
    if step is None:
        return range(first, last + 1)
    if not 1 <= int(step) <= last - first:
        raise refusal(
            f"has {_shown(text)} as its {field.name}: the step must be 1 or more, and no longer"
            " than the range"
        )
    return range(first, last + 1, int(step))


def _read_value(text: str, field: _Field, *, element: str) -> int:
    if not text.isdigit():
        number = field.names.get(text.upper())
        if number is None:
            raise _not_understood(element, field)
        return number
    if not field.numbers:
        raise refusal(
            f"has {_shown(element)} as its {field.name}: where the second comes first, write names"
            " such as MON-FRI; numbers count from different days in different crons"
        )
    if int(text) not in field.numbers:
        raise refusal(
            f"has {_shown(element)} as its {field.name}: numbers are {field.numbers[0]} to"
            f" {field.numbers[-1]}"
        )
    return int(text)


def _not_understood(element: str, field: _Field) -> ValidationError:
    if _EXTENSION.fullmatch(element) is not None:
        return refusal(
            f"has {_shown(element)} as its {field.name}: L, W, #, H and R are not supported"
        )
    what = "number, name, range or step" if field.names else "number, range or step"
    return refusal(f"has {_shown(element)} as its {field.name}, which is no {what}")


def _shown(element: str) -> str:
    return repr(
        element if len(element) <= _SHOWN_CHARACTERS else f"{element[:_SHOWN_CHARACTERS]}..."
    )


def _example(field: _Field) -> str:
    return "MON-FRI/2" if field.whole == _WEEKDAY.whole else "JAN-JUN/2"
