from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from runledger_tui.format import clean, format_count, format_instant, format_seconds

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("日本 é 🎉 a\u0301 👩\u200d🚀", "日本 é 🎉 a\u0301 👩\u200d🚀"),
        ("\x1b]52;c;eA==\x07", "␛]52;c;eA==␇"),
        ("\x1b[2J", "␛[2J"),
        ("a\r\nb\tc", "a␍␊b␉c"),
        ("\x00\x7f", "␀␡"),
        ("\x9b2J\x85", "\ufffd2J\ufffd"),
        (BIDI, "\ufffd" * 12),
        ("\u2028\u2029\ufeff", "\ufffd" * 3),
        ("\udcff", "\ufffd"),
        ("a\U000e0041", "a\ufffd"),
    ],
)
def test_control_characters_become_marks(text, shown):
    assert clean(text) == shown


def test_no_control_character_at_all_survives():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))

    shown = set(clean(everything))

    assert shown.isdisjoint(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    assert shown.isdisjoint(BIDI)
    assert "a" in shown


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
