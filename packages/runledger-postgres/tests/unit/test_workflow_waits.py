from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from runledger_core import ValidationError
from runledger_postgres.workflows._listening import told_runs
from runledger_postgres.workflows._wait_options import WorkflowRunWaitOptions
from runledger_postgres.workflows._waiters import (
    COUNT_WAITERS_WOKEN,
    MOST_TOLD,
    RUN_ENDED_CHANNEL,
    WAITERS_MARK,
)

FIELDS = ["timeout", "poll_interval"]


def options(field: str, value: Any) -> WorkflowRunWaitOptions:
    return WorkflowRunWaitOptions(**{field: value})


def test_wait_is_five_minutes_with_a_look_each_second_unless_told_otherwise():
    assert WorkflowRunWaitOptions() == WorkflowRunWaitOptions(timeout=300.0, poll_interval=1.0)


def test_wait_may_be_without_an_end_or_without_a_wait():
    assert WorkflowRunWaitOptions(timeout=None).timeout is None
    assert WorkflowRunWaitOptions(timeout=0).timeout == 0.0


def test_polling_is_at_most_once_per_millisecond():
    assert WorkflowRunWaitOptions(poll_interval=0).poll_interval == 0.001
    assert WorkflowRunWaitOptions(poll_interval=0.000_1).poll_interval == 0.001


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [1e9 + 1, 1e300, math.inf, 10**400])
def test_enormous_values_count_as_thirty_years(field: str, value: float):
    assert getattr(options(field, value), field) == 1e9


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [math.nan, -math.nan, -1, -0.001, -math.inf, -(10**400)])
def test_negative_values_and_what_is_no_number_are_refused(field: str, value: float):
    with pytest.raises(ValidationError) as refused:
        options(field, value)

    assert (refused.value.code, refused.value.field) == ("input.out_of_range", field)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value", [True, False, "1", b"1", Decimal(1), Decimal("NaN"), timedelta(seconds=1), 1j, [1]]
)
def test_other_types_are_refused(field: str, value: object):
    with pytest.raises(ValidationError) as refused:
        options(field, value)

    assert (refused.value.code, refused.value.field) == ("input.wrong_type", field)


def test_interval_cannot_be_left_out():
    with pytest.raises(ValidationError) as refused:
        options("poll_interval", None)

    assert refused.value.code == "input.wrong_type"


def payload(count: int) -> str:
    return ",".join(f"00000000-0000-7000-8000-{number:012}" for number in range(count))


def test_notification_names_the_runs_that_have_ended():
    told = told_runs(payload(2))

    assert told is not None
    assert {str(run_id)[-1] for run_id in told} == {"0", "1"}


def test_notification_that_is_full_may_have_left_out_some():
    assert told_runs(payload(MOST_TOLD)) is None


@pytest.mark.parametrize("text", ["", "hello", payload(2) + ",", '{"workflow_run_id": 1}'])
def test_notification_of_somebody_else_tells_nothing(text: str):
    assert told_runs(text) == ()


def test_statement_that_notifies_and_those_who_listen_mean_the_same():
    assert COUNT_WAITERS_WOKEN.count(f"lock({WAITERS_MARK})") == 2
    assert f"pg_notify('{RUN_ENDED_CHANNEL}'" in COUNT_WAITERS_WOKEN
    assert f"LIMIT {MOST_TOLD})" in COUNT_WAITERS_WOKEN
