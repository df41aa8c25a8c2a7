from __future__ import annotations

import os
import re
import threading

import pytest

from runledger_core import UnavailableError, ValidationError
from runledger_test_support.databases import ConnectionBudget, database_name
from runledger_test_support.environ import ScopedEnv


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("claims_jobs", "claims_jobs"),
        ("Claims--Jobs[30 s]", "claims_jobs_30_s"),
        ("__a___b__", "a_b"),
        ("18_servers", "t_18_servers"),
        ("", "test"),
        ("ünïcødé", "n_c_d"),
        ("a_very_long_name_of_a_test_that_goes_on", "a_very_long_name_of_a_te"),
    ],
)
def test_names_are_plain(prefix: str, expected: str) -> None:
    name = database_name(prefix)

    assert re.fullmatch(rf"{expected}_{os.getpid()}_[0-9a-f]{{4}}_\d+", name)
    assert len(name) < 64


def test_names_differ() -> None:
    assert database_name("same") != database_name("same")


def test_budget_that_can_never_do_is_refused_at_once() -> None:
    budget = ConnectionBudget(4)

    with pytest.raises(ValidationError) as refused, budget.acquire(5):
        pass

    assert refused.value.code == "test_support.connection_budget_too_small"


def test_exhausted_budget_is_refused_after_the_timeout() -> None:
    budget = ConnectionBudget(4)

    with (
        budget.acquire(3),
        pytest.raises(UnavailableError) as refused,
        budget.acquire(2, timeout_seconds=0.01),
    ):
        pass

    assert refused.value.code == "test_support.connection_budget_exhausted"


def test_budget_waits_for_what_others_give_back() -> None:
    budget = ConnectionBudget(4)
    has_it = threading.Event()

    def other() -> None:
        with budget.acquire(4):
            has_it.set()

    with budget.acquire(1):
        thread = threading.Thread(target=other)
        thread.start()
        assert not has_it.wait(0.05)
    thread.join()

    assert has_it.is_set()


def test_budget_comes_back_after_an_exception() -> None:
    budget = ConnectionBudget(4)
    with pytest.raises(RuntimeError), budget.acquire(4):
        raise RuntimeError

    with budget.acquire(4, timeout_seconds=0):
        pass


def test_budget_is_read_from_the_environment() -> None:
    with ScopedEnv({"RUNLEDGER_TEST_DB_CONNECTION_BUDGET": "2"}):
        budget = ConnectionBudget()

    with pytest.raises(ValidationError), budget.acquire(3):
        pass


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_senseless_budget_is_refused(text: str) -> None:
    with (
        ScopedEnv({"RUNLEDGER_TEST_DB_CONNECTION_BUDGET": text}),
        pytest.raises(ValidationError) as refused,
    ):
        ConnectionBudget()

    assert refused.value.code == "test_support.environment_invalid"
