"""Expressions made from parts whose meaning is known, against a calendar that is walked."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runledger_core import ValidationError
from runledger_core.cron import CronExpression

YEARS_WALKED = 8
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]

instants = st.datetimes(datetime(1995, 1, 1), datetime(2110, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # they get the zone


@st.composite
def elements(draw, first, last, spell: Callable[[int], str] = str, *, may_start_a_step=True):
    """Return the text of an element and the numbers that it stands for."""
    low = draw(st.integers(first, last))
    high = draw(st.integers(low, last))
    kinds = ["*", "value", "range"]
    if last > first:
        kinds.append("*/n")
    if high > low:
        kinds.append("range/n")
    if may_start_a_step and low < last:
        kinds.append("a/n")
    match draw(st.sampled_from(kinds)):
        case "*":
            return "*", set(range(first, last + 1))
        case "value":
            return spell(low), {low}
        case "range":
            return f"{spell(low)}-{spell(high)}", set(range(low, high + 1))
        case "*/n":
            step = draw(st.integers(1, last - first))
            return f"*/{step}", {n for n in range(first, last + 1) if (n - first) % step == 0}
        case "range/n":
            step = draw(st.integers(1, high - low))
            matched = {n for n in range(low, high + 1) if (n - low) % step == 0}
            return f"{spell(low)}-{spell(high)}/{step}", matched
        case _:
            step = draw(st.integers(1, last - low))
            return f"{low}/{step}", {n for n in range(low, last + 1) if (n - low) % step == 0}


@st.composite
def fields(draw, first, last, spell: Callable[[int], str] = str, *, may_start_a_step=True):
    parts = draw(
        st.lists(
            elements(first, last, spell, may_start_a_step=may_start_a_step), min_size=1, max_size=3
        )
    )
    return ",".join(text for text, _ in parts), set().union(*(matched for _, matched in parts))


def weekday_name(number):
    return WEEKDAYS[number]


def month_name(number):
    return MONTHS[number - 1]


@st.composite
def expressions(draw, width):
    minute, hour = draw(fields(0, 59)), draw(fields(0, 23))
    day = draw(fields(1, 31) | st.just(("*", set(range(1, 32)))))
    spelled = draw(st.booleans())
    month = draw(
        fields(1, 12, month_name if spelled else str, may_start_a_step=False)
        | st.just(("*", set(range(1, 13))))
    )
    if width == 5:
        numbers = st.tuples(fields(0, 7, may_start_a_step=False)).map(
            # `*` goes from 0 to 6 only; what has 7 in it reads it as Sunday.
            lambda field: (field[0][0], {n % 7 for n in field[0][1]})
        )
        weekday = draw(numbers.filter(lambda field: "*/" not in field[0]))
        parts = [minute, hour, day, month, weekday]
        either = not day[0].startswith("*") and not weekday[0].startswith("*")
        return " ".join(text for text, _ in parts), [{0}, *(m for _, m in parts)], None, either
    weekday = draw(
        fields(0, 6, weekday_name, may_start_a_step=False) | st.just(("?", set(range(7))))
    )
    parts = [draw(fields(0, 59)), minute, hour, day, month, weekday]
    years = None
    if width == 7:
        text, years = draw(fields(1970, 2099))
        parts.append((text, years))
    return " ".join(text for text, _ in parts), [m for _, m in parts[:6]], years, False


def walk(matched, years, either, instant):
    """Look at every day, then at every second of the day, until there is a match."""
    seconds, minutes, hours, days, months, weekdays = matched
    day = instant.date()
    end = date(min(day.year + YEARS_WALKED, 9999), 12, 31)
    while day <= end:
        is_day = day.day in days
        is_weekday = (day.weekday() + 1) % 7 in weekdays
        is_match = is_day or is_weekday if either else is_day and is_weekday
        if is_match and day.month in months and (years is None or day.year in years):
            for second in range(86_400):
                if (
                    second // 3_600 in hours
                    and second // 60 % 60 in minutes
                    and second % 60 in seconds
                ):
                    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
                    found = midnight + timedelta(seconds=second)
                    if found > instant:
                        return found
        day += timedelta(days=1)
    return None


def read(text):
    """Return the expression, or None if its days never come: all else in here is in the dialect."""
    try:
        return CronExpression(text)
    except ValidationError as error:
        if "never come" not in error.client_message:
            raise
        return None


def check(expression, instant):
    text, matched, years, either = expression
    assume(len(text) <= 1_000)
    expected = walk(matched, years, either, instant)
    cron = read(text)

    found = None if cron is None else cron.next_after(instant)

    if expected is None:
        assert found is None or found.year > instant.year + YEARS_WALKED
    else:
        assert found == expected


@settings(deadline=None)
@given(expressions(5), instants)
def test_crontab_expressions_agree_with_a_walked_calendar(expression, instant):
    check(expression, instant)


@settings(deadline=None)
@given(expressions(6), instants)
def test_expressions_with_seconds_agree_with_a_walked_calendar(expression, instant):
    check(expression, instant)


@settings(deadline=None)
@given(expressions(7), instants)
def test_expressions_with_years_agree_with_a_walked_calendar(expression, instant):
    check(expression, instant)


@settings(deadline=None)
@given(expressions(5) | expressions(6), instants)
def test_fires_of_a_whole_day_are_all_of_it_in_order(expression, instant):
    text, (seconds, minutes, hours, *_), *_ = expression
    cron = read(text)
    first = None if cron is None else cron.next_after(instant)
    assume(first is not None)
    assert cron is not None
    assert first is not None
    midnight = first.replace(hour=0, minute=0, second=0)
    expected = [
        midnight + timedelta(hours=hour, minutes=minute, seconds=second)
        for hour in sorted(hours)
        for minute in sorted(minutes)
        for second in sorted(seconds)
    ]
    wanted = [moment for moment in expected if moment >= first][:500]

    found = [first]
    while len(found) < len(wanted):
        following = cron.next_after(found[-1])
        assert following is not None
        found.append(following)

    assert found == wanted


@settings(deadline=None)
@given(st.text(st.sampled_from("0123456789*/,-?LW#HR@ MONFRIJAdaily"), max_size=40))
def test_any_text_is_kept_or_refused(text):
    with suppress(ValidationError):
        assert CronExpression(text) == text
