from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runledger_core import ValidationError
from runledger_runtime.backoff import (
    DEFAULT_BACKOFF,
    BackoffPolicy,
    ExponentialBackoff,
    FixedBackoff,
    FullJitterBackoff,
    ListBackoff,
    retry_delay_ms,
)
from runledger_runtime.errors import RegistryError
from runledger_runtime.registry import JobRegistry

LONGEST_MS = 2**31 - 1

attempts = st.integers(min_value=-(2**40), max_value=2**40)
delays = st.integers(min_value=1, max_value=LONGEST_MS)
fractions = st.floats(min_value=0, max_value=1, exclude_max=True)


def anything(value: Any) -> Any:
    """Hide a type from the checker, which would not let it pass."""
    return value


def middle():
    return 0.5


def lowest():
    return 0.0


def highest():
    return 0.999_999_999


def test_default_is_what_a_type_without_a_policy_waits():
    default = ExponentialBackoff(random=middle)

    assert [default.delay_ms(attempt) for attempt in range(1, 9)] == [
        retry_delay_ms(attempt, random=middle) for attempt in range(1, 9)
    ]
    assert default == DEFAULT_BACKOFF


def test_exponential_delays_double_from_the_base_to_the_cap():
    policy = ExponentialBackoff(200, 1_000, random=middle)

    assert [policy.delay_ms(attempt) for attempt in range(1, 6)] == [200, 400, 800, 1_000, 1_000]


def test_exponential_delays_are_spread_by_a_tenth_each_way():
    assert ExponentialBackoff(1_000, 9_000, random=lowest).delay_ms(2) == 1_800
    assert ExponentialBackoff(1_000, 9_000, random=highest).delay_ms(2) == 2_200


def test_fixed_delay_is_exact():
    policy = FixedBackoff(1_234)

    assert [policy.delay_ms(attempt) for attempt in (1, 2, 1_000)] == [1_234] * 3


def test_listed_delays_are_exact_and_the_last_stays():
    policy = ListBackoff([5, 60_000])

    assert [policy.delay_ms(attempt) for attempt in (1, 2, 3, 1_000)] == [5, 60_000, 60_000, 60_000]


def test_listed_delays_are_a_copy():
    given_delays = [5, 6]
    policy = ListBackoff(given_delays)
    given_delays.clear()

    assert policy.delay_ms(2) == 6


def test_full_jitter_is_anything_up_to_the_doubled_bound():
    assert FullJitterBackoff(1_000, 3_000, random=lowest).delay_ms(2) == 1
    assert FullJitterBackoff(1_000, 3_000, random=middle).delay_ms(2) == 1_000
    assert FullJitterBackoff(1_000, 3_000, random=highest).delay_ms(2) == 2_000
    assert FullJitterBackoff(1_000, 3_000, random=highest).delay_ms(9) == 3_000


@given(base=delays, cap=delays, attempt=attempts, fraction=fractions)
def test_every_policy_answers_with_a_delay_that_can_be_stored(base, cap, attempt, fraction):
    base, cap = sorted([base, cap])
    policies = [
        ExponentialBackoff(base, cap, random=lambda: fraction),
        FullJitterBackoff(base, cap, random=lambda: fraction),
        FixedBackoff(base),
        ListBackoff([base, cap]),
    ]

    found = [policy.delay_ms(attempt) for policy in policies]

    assert all(isinstance(delay, int) and 1 <= delay <= LONGEST_MS for delay in found)


def test_policies_differ_by_chance_where_they_say_so():
    assert len({ExponentialBackoff().delay_ms(6) for _ in range(100)}) > 1
    assert len({FullJitterBackoff().delay_ms(6) for _ in range(100)}) > 1


@pytest.mark.parametrize(
    ("make", "code", "field"),
    [
        (lambda: FixedBackoff(0), "backoff.invalid_delay", "fixed_ms"),
        (lambda: FixedBackoff(LONGEST_MS + 1), "backoff.invalid_delay", "fixed_ms"),
        (lambda: FixedBackoff(True), "backoff.invalid_delay", "fixed_ms"),
        (lambda: FixedBackoff(anything(1.5)), "backoff.invalid_delay", "fixed_ms"),
        (lambda: ListBackoff([]), "backoff.invalid_delay", "delays_ms"),
        (lambda: ListBackoff(anything("12")), "backoff.invalid_delay", "delays_ms"),
        (lambda: ListBackoff(anything({1, 2})), "backoff.invalid_delay", "delays_ms"),
        (lambda: ListBackoff([5, -1]), "backoff.invalid_delay", "delays_ms[1]"),
        (lambda: ExponentialBackoff(0), "backoff.invalid_delay", "base_ms"),
        (lambda: ExponentialBackoff(5, anything(None)), "backoff.invalid_delay", "cap_ms"),
        (lambda: ExponentialBackoff(5, 4), "backoff.invalid_cap", "cap_ms"),
        (lambda: FullJitterBackoff(-1), "backoff.invalid_delay", "base_ms"),
        (lambda: FullJitterBackoff(5, 4), "backoff.invalid_cap", "cap_ms"),
    ],
)
def test_delays_that_cannot_be_are_refused(make, code, field):
    with pytest.raises(ValidationError) as refused:
        make()

    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_policy_applies_to_exactly_its_type():
    registry = JobRegistry()
    registry.register_backoff("jobs.one", FixedBackoff(7))

    assert registry.backoff("jobs.one") == FixedBackoff(7)
    assert registry.backoff("jobs.two") is DEFAULT_BACKOFF


def test_a_second_policy_replaces_the_first():
    registry = JobRegistry()
    registry.register_backoff("jobs.one", FixedBackoff(7))
    registry.register_backoff("jobs.one", FixedBackoff(8))

    assert registry.backoff("jobs.one") == FixedBackoff(8)


def test_an_own_rule_is_a_policy():
    class Linear(BackoffPolicy):
        def delay_ms(self, attempt):
            return 1_000 * attempt

    registry = JobRegistry()
    registry.register_backoff("jobs.one", Linear())

    assert registry.backoff("jobs.one").delay_ms(3) == 3_000


@pytest.mark.parametrize("policy", [None, 5_000, [1, 2], FixedBackoff])
def test_what_is_no_policy_is_refused(policy):
    with pytest.raises(RegistryError) as refused:
        JobRegistry().register_backoff("jobs.one", policy)

    assert (refused.value.code, refused.value.field) == ("registry.invalid_backoff", "backoff")


def test_a_policy_for_a_type_that_cannot_be_stored_is_refused():
    with pytest.raises(RegistryError) as refused:
        JobRegistry().register_backoff(" ", FixedBackoff(1))

    assert refused.value.code == "registry.invalid_job_type"


def test_a_frozen_registry_takes_no_policy():
    registry = JobRegistry()
    registry.freeze()

    with pytest.raises(RegistryError) as refused:
        registry.register_backoff("jobs.one", FixedBackoff(1))

    assert refused.value.code == "registry.frozen"
