"""How the parent of worker processes tells of an end, and how long it pauses."""

import pytest

from runledger_runtime.cli._processes import _ending, _pause_seconds


def test_pause_doubles_to_half_a_minute_and_stays_there_for_weeks():
    pauses = [_pause_seconds(failures) for failures in (0, 1, 2, 3, 4, 5, 6, 100_000)]

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(
    ("status", "text"),
    [(3, "ended with code 3"), (-9, "was ended by SIGKILL"), (-40, "was ended by signal 40")],
)
def test_end_is_told_by_code_or_signal_also_by_one_without_a_name(status: int, text: str):
    assert _ending(status) == text
