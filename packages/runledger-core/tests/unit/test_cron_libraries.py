"""Where croniter and APScheduler can speak, they name the same instants."""

from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.triggers.cron import CronTrigger
from croniter import CroniterBadDateError, croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from runledger_core.cron import CronExpression

START = datetime(2026, 2, 27, 10, 15, 30, tzinfo=UTC)
LATER = datetime(2097, 1, 1, tzinfo=UTC)

BOTH = [
    "* * * * *",
    "*/15 * * * *",
    "0 9-17/4 * * *",
    "15,45 0-3,22 * * *",
    "30 6 * * MON-FRI",
    "0 0 * * SUN",
    "0 0 29 2 *",
    "0 0 31 * *",
    "0 0 30 2,4 *",
    "0 0 1 */3 *",
    "0 12 1 jan,jul *",
    "59 23 31 12 *",
    "* * * * * *",
    "0 0 * * * *",
    "0 30 6 * * MON-FRI",
    "0 0 0 13 * FRI",
    "30 15 10 27 2 *",
    "0 0 0 29 2 MON",
    "0 0 0 * * WED *",
    "0 0 0 1 1 * 2099",
    "0 0 12 1 JUN * 2020-2026/2,2031",
    "59 59 23 31 12 * 2026",
]

# APScheduler has no step from a value, no Sunday first, and needs both days.
CRONITER_ONLY = [
    "5/20 * * * *",
    "0 0 * * 0",
    "0 0 * * 7",
    "0 0 * * 5-7",
    "0 0 * * 1-5/2",
    "0 0 * * SUN-TUE",
    "0 0 13 * FRI",
    "0 0 1,15 * MON",
    "0 0 */10 * MON",
    "0 0 13 * */2",
    "0 0 31 4 MON",
    "0 0 0 ? * SUN-TUE",
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@midnight",
    "@hourly",
]


def ours(text, instant):
    return CronExpression(text).next_after(instant)


def by_croniter(text, instant):
    iterator = croniter(
        text,
        # It looks at whole seconds only.
        instant.replace(microsecond=0),
        day_or=len(text.split()) == 5,
        implement_cron_bug=True,
        second_at_beginning=True,
        max_years_between_matches=200,
    )
    try:
        return iterator.get_next(datetime)
    except CroniterBadDateError:
        return None


def by_apscheduler(text, instant):
    names = ("second", "minute", "hour", "day", "month", "day_of_week", "year")
    parts = text.lower().split()
    if len(parts) == 5:
        parts.insert(0, "0")
    trigger = CronTrigger(**dict(zip(names, parts, strict=False)), timezone=UTC)
    return trigger.get_next_fire_time(None, instant + timedelta(microseconds=1))


def series(find, text, start, count=5):
    found, instant = [], start
    while len(found) < count and instant is not None:
        instant = find(text, instant)
        found.append(instant)
    return found


@pytest.mark.parametrize("start", [START, LATER], ids=["2026", "2097"])
@pytest.mark.parametrize("text", BOTH + CRONITER_ONLY)
def test_croniter_names_the_same_instants(text, start):
    assert series(ours, text, start) == series(by_croniter, text, start)


@pytest.mark.parametrize("start", [START, LATER], ids=["2026", "2097"])
@pytest.mark.parametrize("text", BOTH)
def test_apscheduler_names_the_same_instants(text, start):
    assert series(ours, text, start) == series(by_apscheduler, text, start)


@st.composite
def plain_fields(draw, first, last):
    """Return what both libraries read alike: `*`, steps of it, lists of values and ranges."""
    low = draw(st.integers(first, last - 1))
    high = draw(st.integers(low + 1, last))
    every = f"*/{draw(st.integers(1, last - first))}"
    stepped = f"{low}-{high}/{draw(st.integers(1, high - low))}"
    return draw(st.sampled_from(["*", every, str(low), f"{low},{high}", f"{low}-{high}", stepped]))


expressions = st.tuples(
    plain_fields(0, 59),
    plain_fields(0, 59),
    plain_fields(0, 23),
    # Up to the 28th, so that no month is without its days.
    plain_fields(1, 28),
    plain_fields(1, 12),
    st.sampled_from(["*", "MON", "SUN", "MON-FRI", "TUE,SUN", "WED-SAT"]),
).map(" ".join)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # they get the zone


@settings(deadline=None)
@given(expressions, instants)
def test_all_three_agree(text, instant):
    expected = ours(text, instant)

    assert by_croniter(text, instant) == expected
    assert by_apscheduler(text, instant) == expected
