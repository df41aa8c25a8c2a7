"""Cron expressions: the dialect, and the instants that an expression names; always in UTC.

An expression has five fields, as in a crontab, six with the second first, or seven with the year
last, separated by blanks; or it is a name::

    expression = name
               |        minute hour day-of-month month day-of-week
               | second minute hour day-of-month month day-of-week
               | second minute hour day-of-month month day-of-week year
    name       = @yearly | @annually | @monthly | @weekly | @daily | @midnight | @hourly
    field      = "?" | element { "," element }
    element    = "*" [ "/" step ] | value | value "-" value [ "/" step ] | number "/" step
    value      = number | the name of a month or a weekday

Names are English, whole or as their first three letters, in any case; TUES and THURS too. `a/n`
runs from a to the field's last number. Ranges run forwards, and a week begins on Sunday. A step is
no longer than its range. Years are 1970 to 2099; without a year an expression goes on for ever.

In five fields weekdays are 0 to 7, where 0 and 7 are Sunday, or names; if neither day field begins
with `*`, one of the two has to match. In six and seven both have to match, a day field may be `?`,
which means `*`, and weekdays have names only, since crons number them differently.
"""

from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Self

from runledger_core._cron_fields import CronFields, read_fields, refusal
from runledger_core._kinds import is_kind, type_name
from runledger_core.text import check_instant

# Across 2100, which is no leap year, 29 February comes back on the same weekday after so long.
_LONGEST_GAP_YEARS: Final = 40
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
# Within its gap every day has come on every weekday; years that are named begin here too.
_FIRST_DAY: Final = date(1970, 1, 1)


class CronExpression(str):
    """A cron expression of the dialect that this module describes, whose days do exist."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check the text and return it as an expression.

        Raises:
            ValidationError: `job_schedule.invalid_cron` if it is not in the dialect, or names only
                days that never come, such as 30 February. Days that are over are accepted.
        """
        if type(value) is cls:
            return value
        if not is_kind(value, str):
            raise refusal(f"must be text, not {type_name(value)}")
        text = str.__str__(value)
        if _next_day(read_fields(text), _FIRST_DAY) is None:
            raise refusal("names only days that never come, such as 30 February")
        return super().__new__(cls, text)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant that the expression names strictly after another.

        Found without walking those in between, however long ago `instant` is.

        Returns:
            A whole second in UTC; None if there is none left.

        Raises:
            ValidationError: `input.wrong_type` or `input.naive_timestamp`.
        """
        fields = read_fields(str.__str__(self))
        try:
            start = check_instant(instant, field="instant").replace(microsecond=0) + _SECOND
            if _matches(fields, start.date()):
                moment = _next_moment(fields, start.time())
                if moment is not None:
                    return datetime.combine(start.date(), moment, tzinfo=UTC)
            day = _next_day(fields, start.date() + _DAY)
        except OverflowError:
            return None
        if day is None:
            return None
        first = time(fields.hours[0], fields.minutes[0], fields.seconds[0])
        return datetime.combine(day, first, tzinfo=UTC)


def _next_day(fields: CronFields, start: date) -> date | None:
    """Return the first matching day that is not before `start`."""
    last_year = min(start.year + _LONGEST_GAP_YEARS, date.max.year)
    years = range(start.year, last_year + 1) if fields.years is None else fields.years
    for year in years:
        for month in fields.months:
            if (year, month) < (start.year, start.month):
                continue
            day = start if (year, month) == (start.year, start.month) else date(year, month, 1)
            while day.month == month:
                if _matches(fields, day):
                    return day
                day += _DAY
    return None


def _matches(fields: CronFields, day: date) -> bool:
    if day.month not in fields.months:
        return False
    if fields.years is not None and day.year not in fields.years:
        return False
    is_day = day.day in fields.days
    is_weekday = day.isoweekday() % 7 in fields.weekdays
    return is_day or is_weekday if fields.is_either_day_enough else is_day and is_weekday


def _next_moment(fields: CronFields, start: time) -> time | None:
    """Return the first matching time of a day that is not before `start`."""
    if start.hour in fields.hours:
        if start.minute in fields.minutes:
            second = _at_least(fields.seconds, start.second)
            if second is not None:
                return time(start.hour, start.minute, second)
        minute = _at_least(fields.minutes, start.minute + 1)
        if minute is not None:
            return time(start.hour, minute, fields.seconds[0])
    hour = _at_least(fields.hours, start.hour + 1)
    return None if hour is None else time(hour, fields.minutes[0], fields.seconds[0])


def _at_least(numbers: tuple[int, ...], bound: int) -> int | None:
    index = bisect_left(numbers, bound)
    return numbers[index] if index < len(numbers) else None
