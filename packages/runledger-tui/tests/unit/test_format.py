from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from runledger_tui.format import format_count, format_instant, format_seconds


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0 s"),
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h 0 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 d 0 h"),
        (10**9, "11574 d 1 h"),
    ],
)
def test_lengths_of_time_are_shown_in_two_units(seconds, shown):
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("instant", "shown"),
    [
        (datetime(2026, 3, 1, 12, 0, 0, 999999, tzinfo=UTC), "2026-03-01 12:00:00 UTC"),
        (
            datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=2))),
            "2026-02-28 23:00:00 UTC",
        ),
        (datetime.min.replace(tzinfo=UTC), "0001-01-01 00:00:00 UTC"),
        (datetime.max.replace(tzinfo=UTC), "9999-12-31 23:59:59 UTC"),
    ],
)
def test_instants_are_shown_in_utc(instant, shown):
    assert format_instant(instant) == shown


def test_counts_that_went_on_have_a_plus():
    assert format_count(1_234, is_exact=True) == "1,234"
    assert format_count(100_000, is_exact=False) == "100,000+"
