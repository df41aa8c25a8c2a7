from __future__ import annotations

from typing import NoReturn

import pytest

from runledger_core import ValidationError
from runledger_test_support.permuter import (
    Interleaving,
    InterleavingError,
    Session,
    Step,
    StepOutcome,
    StepState,
    interleavings,
    permute,
)


def test_every_order_of_two_sessions_is_found_once() -> None:
    assert list(interleavings([2, 2])) == [
        (0, 0, 1, 1),
        (0, 1, 0, 1),
        (0, 1, 1, 0),
        (1, 0, 0, 1),
        (1, 0, 1, 0),
        (1, 1, 0, 0),
    ]


def test_three_sessions_have_as_many_orders_as_arithmetic_says() -> None:
    orders = list(interleavings([3, 2, 2]))

    assert len(orders) == 210
    assert len(set(orders)) == 210


def test_one_session_has_one_order() -> None:
    assert list(interleavings([3])) == [(0, 0, 0)]


def _never_connects() -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize(
    "sessions",
    [
        [],
        [Session("a", _never_connects, steps=[])],
        [Session("a", _never_connects, steps=[Step("s", print)])] * 2,
        [Session("a", _never_connects, steps=[Step("s", print), Step("s", print)])],
    ],
    ids=["none", "no steps", "same session", "same step"],
)
def test_senseless_sessions_are_refused(sessions: list[Session]) -> None:
    with pytest.raises(ValidationError) as refused:
        permute(lambda: sessions, print)

    assert refused.value.code == "test_support.session_invalid"


def test_report_tells_what_each_step_did() -> None:
    failed = ValueError("no")
    run = Interleaving(
        ("a", "b", "a"),
        (
            StepOutcome("a", "read", value=3),
            StepOutcome("b", "write", state=StepState.FAILED, error=failed, blocked_by=("a",)),
            StepOutcome("a", "commit", state=StepState.SKIPPED),
        ),
        number=2,
    )

    assert str(InterleavingError(run, AssertionError("lost"))) == (
        "AssertionError: lost\n"
        "interleaving 2: a b a\n"
        "  a.read: DONE, returned 3\n"
        "  b.write: FAILED, waited for a, ValueError: no\n"
        "  a.commit: SKIPPED"
    )


def test_outcome_of_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValidationError):
        Interleaving((), (), number=1).outcome("a", "read")
