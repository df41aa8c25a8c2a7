import pytest
from hypothesis import given
from hypothesis import strategies as st

from runledger_runtime.backoff import BACKOFF_MS, Outage, retry_delay_ms, spread

fractions = st.floats(min_value=0, max_value=1, exclude_max=True)


def middle():
    return 0.5


def test_base_delays_double_up_to_five_minutes():
    assert BACKOFF_MS == (10_000, 20_000, 40_000, 80_000, 160_000, 300_000)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (-3, 10_000),
        (0, 10_000),
        (1, 10_000),
        (2, 20_000),
        (5, 160_000),
        (6, 300_000),
        (7, 300_000),
        (2**31 - 1, 300_000),
    ],
)
def test_retry_delay_without_spread(attempt, expected):
    assert retry_delay_ms(attempt, random=middle) == expected


def test_retry_delay_is_spread_by_a_tenth_each_way():
    assert retry_delay_ms(2, random=lambda: 0.0) == 18_000
    assert retry_delay_ms(2, random=lambda: 0.999_999) == 22_000


def test_retry_delay_is_random_by_default():
    assert len({retry_delay_ms(6) for _ in range(100)}) > 1


@given(attempt=st.integers(min_value=-(2**40), max_value=2**40), fraction=fractions)
def test_retry_delay_stays_within_a_tenth_of_its_base(attempt, fraction):
    delay = retry_delay_ms(attempt, random=lambda: fraction)

    base = BACKOFF_MS[min(max(attempt, 1), len(BACKOFF_MS)) - 1]
    assert isinstance(delay, int)
    assert 0.9 * base <= delay <= 1.1 * base
    assert delay >= 1_000


@given(first=st.integers(1, 12), second=st.integers(1, 12), fraction=fractions)
def test_a_later_attempt_never_waits_less(first, second, fraction):
    earlier, later = sorted([first, second])

    assert retry_delay_ms(earlier, random=lambda: fraction) <= retry_delay_ms(
        later, random=lambda: fraction
    )


@given(value=st.floats(min_value=0, max_value=1e9), fraction=fractions)
def test_spread_stays_within_a_tenth(value, fraction):
    assert 0.9 * value <= spread(value, random=lambda: fraction) <= 1.1 * value


@given(failures=st.integers(1, 60), fraction=fractions)
def test_outage_pauses_grow_from_a_tenth_of_a_second_to_their_cap(failures, fraction):
    outage = Outage(random=lambda: fraction, monotonic=lambda: 0.0)

    delays = [outage.failed().delay_seconds for _ in range(failures)]

    assert delays[0] == 0.1
    assert delays == sorted(delays)
    assert all(0.1 <= delay <= 2.5 for delay in delays)


def test_outage_pauses_reach_their_cap_and_differ():
    outage = Outage(random=lambda: 0.0, monotonic=lambda: 0.0)
    lowest = [outage.failed().delay_seconds for _ in range(20)][-1]
    outage = Outage(random=lambda: 1.0, monotonic=lambda: 0.0)
    highest = [outage.failed().delay_seconds for _ in range(20)][-1]

    assert (lowest, highest) == (1.25, 2.5)


def test_an_endless_outage_can_be_counted():
    outage = Outage(random=middle, monotonic=lambda: 0.0)

    steps = [outage.failed() for _ in range(5_000)]

    assert steps[-1].failures == 5_000


def test_only_the_first_failure_of_each_minute_is_worth_a_log_line():
    now = [0.0]
    outage = Outage(random=middle, monotonic=lambda: now[0])
    logged = []
    for moment in (0.0, 1.0, 59.0, 60.0, 61.0, 119.0, 121.0):
        now[0] = moment
        if outage.failed().is_worth_logging:
            logged.append(moment)

    assert logged == [0.0, 60.0, 121.0]


def test_success_starts_the_count_again():
    outage = Outage(random=middle, monotonic=lambda: 0.0)
    outage.failed()
    outage.failed()

    assert outage.ended() == 2
    assert outage.ended() == 0
    assert outage.failed().is_worth_logging
