from __future__ import annotations

from collections.abc import Callable

import pytest

from runledger_core import JobCompletion
from runledger_postgres.errors import QueryUnavailableError
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._waiting_outcomes import WaitingOutcomes

pytestmark = pytest.mark.usefixtures("still_clock")

REFUSED = QueryUnavailableError("db.insufficient_privilege", "permission denied")

Ended = Callable[[int], Outcome]


@pytest.fixture
def waiting() -> WaitingOutcomes:
    return WaitingOutcomes()


@pytest.fixture
def ended(start_execution: Callable[..., Execution]) -> Ended:
    return lambda number: Outcome(start_execution(number), JobCompletion.success())


def test_nothing_waits_for_nothing(waiting: WaitingOutcomes) -> None:
    assert (len(waiting), waiting.seconds_until_next()) == (0, None)
    assert waiting.take_round() == waiting.take_alone() == waiting.take_refused() == []


def test_fresh_outcomes_go_with_the_next_round_and_keep_no_slot(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    outcomes = [ended(1), ended(2)]
    waiting.add(outcomes)

    assert (waiting.fresh, waiting.kept_slots, waiting.seconds_until_next()) == (2, 0, 0)
    assert waiting.take_round() == outcomes
    assert len(waiting) == 0


def test_busy_outcomes_keep_their_slots_and_rest_while_fresh_ones_go(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    busy, fresh = ended(1), ended(2)
    waiting.put_busy([busy])
    waiting.rest()
    waiting.add([fresh])

    assert waiting.take_round() == [fresh]
    assert waiting.kept_slots == 1
    assert 0 < (waiting.seconds_until_next() or 0) < 0.01


def test_busy_outcomes_that_have_rested_go_behind_fresh_ones(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    busy, fresh = ended(1), ended(2)
    waiting.put_busy([busy])
    waiting.add([fresh])

    assert waiting.take_round() == [fresh, busy]


def test_busy_outcomes_rest_longer_each_time_until_something_is_stored(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    waiting.put_busy([ended(1)])

    for _ in range(10):
        waiting.rest()

    assert 0.2 < (waiting.seconds_until_next() or 0) < 0.3
    waiting.rested()
    waiting.rest()
    assert (waiting.seconds_until_next() or 0) < 0.01


def test_busy_outcome_of_a_round_that_was_cut_off_is_sent_alone(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    slow, small = ended(1), ended(2)
    slow.execution.is_stored_alone = True
    waiting.put_busy([small, slow])

    assert waiting.choose_busy() == [slow]
    assert waiting.take_round() == [small]
    assert waiting.take_alone() == [slow]


def test_busy_outcomes_wait_until_they_have_an_answer(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    outcomes = [ended(1), ended(2)]
    waiting.put_busy(outcomes)

    assert waiting.choose_busy() == outcomes
    assert waiting.find_missing(outcomes) == []
    waiting.remove_busy(outcomes[:1])
    assert waiting.find_missing(outcomes) == outcomes[:1]


def test_outcome_that_was_tried_alone_in_vain_rests_and_the_others_do_not(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    slow, small = ended(1), ended(2)
    slow.execution.is_stored_alone = small.execution.is_stored_alone = True
    slow.execution.cut_offs = 1
    waiting.add([slow])

    waiting.rest_alone(10.0)

    assert waiting.take_alone() == []
    assert 30 < (waiting.seconds_until_next() or 0) <= 40
    waiting.add([small])
    assert waiting.seconds_until_next() == 0
    assert waiting.take_alone() == [small]


def test_refused_outcome_keeps_its_slot_and_is_tried_again_soon(
    waiting: WaitingOutcomes, ended: Ended, caplog: pytest.LogCaptureFixture
) -> None:
    waiting.put_refused(ended(1), REFUSED)

    assert (waiting.has_refused, waiting.kept_slots) == (True, 1)
    assert waiting.take_refused() == []
    assert waiting.seconds_until_next() == pytest.approx(0.1)
    assert [record.__dict__["error_code"] for record in caplog.records] == [
        "db.insufficient_privilege"
    ]


def test_equal_outcome_of_another_attempt_is_missing(
    waiting: WaitingOutcomes, ended: Ended
) -> None:
    outcome = ended(1)
    again = Outcome(outcome.execution, outcome.result)
    waiting.add([outcome])

    assert waiting.find_missing([outcome, again])[0] is again
