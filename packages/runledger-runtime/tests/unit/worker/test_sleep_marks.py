from __future__ import annotations

from collections.abc import Mapping

import pytest
from psycopg_pool import ConnectionPool

from runledger_postgres.wakeup import DROP_MARKS, TAKE_MARKS
from runledger_runtime.engine import EngineConnections
from runledger_runtime.worker._claim_planner import ClaimReport
from runledger_runtime.worker._sleep import Sleep
from runledger_runtime.worker._wakeup import Listener, SleepMarks

pytestmark = pytest.mark.usefixtures("still_clock")

EMPTY = ClaimReport(0, may_find_more=False)


class RecordedMarks(SleepMarks):
    """Remembers what it would send."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener._connections, listener, ["jobs.one"])
        self.sent: list[str] = []
        self.is_free = True

    def _ask(self, sql: str, parameters: Mapping[str, object]) -> object:
        self.sent.append(sql)
        return self.is_free


@pytest.fixture
def listener() -> Listener:
    connections = EngineConnections(ConnectionPool(open=False))
    return Listener(connections, on_wake=lambda _: None, on_cancel=lambda _: None)


def test_marks_are_taken_once_an_echo_has_been_heard(listener: Listener):
    marks = RecordedMarks(listener)

    before = marks.take()
    listener.is_proven = True
    taken = [marks.take(), marks.take()]

    assert before is False
    assert taken == [True, False]
    assert marks.sent == [TAKE_MARKS]


def test_marks_are_dropped_when_echoes_stop(listener: Listener):
    marks = RecordedMarks(listener)
    listener.is_proven = True
    marks.take()

    listener.is_proven = False
    again = marks.take()

    assert again is False
    assert not marks.are_held
    assert marks.sent == [TAKE_MARKS, DROP_MARKS]


def test_queue_is_looked_at_once_more_after_the_marks_were_taken(listener: Listener):
    marks = RecordedMarks(listener)
    listener.is_proven = True
    sleep = Sleep(marks, poll_interval_seconds=50.0)
    sleep.is_over()

    sleep.after_claim(EMPTY)
    held_at_the_second_look = (marks.are_held, sleep.is_over())
    sleep.after_claim(EMPTY)

    assert held_at_the_second_look == (True, True)
    assert not sleep.is_over()
    assert marks.are_held


def test_first_polls_are_short_each_time_the_marks_were_taken(listener: Listener):
    marks = RecordedMarks(listener)
    sleep = Sleep(marks, poll_interval_seconds=50.0)
    for _ in range(5):
        sleep.is_over()
        sleep.after_claim(EMPTY)
    asleep_by_polling = sleep.seconds_left()

    listener.is_proven = True
    for _ in range(2):
        sleep.is_over()
        sleep.after_claim(EMPTY)

    assert asleep_by_polling > 1
    assert marks.are_held
    assert 0 < sleep.seconds_left() < 0.1


def test_marks_that_a_writer_tries_for_a_moment_are_tried_again_soon(listener: Listener):
    marks = RecordedMarks(listener)
    sleep = Sleep(marks, poll_interval_seconds=50.0)
    for _ in range(5):
        sleep.is_over()
        sleep.after_claim(EMPTY)
    assert sleep.seconds_left() > 1

    listener.is_proven = True
    marks.is_free = False
    sleep.is_over()
    sleep.after_claim(EMPTY)

    assert not marks.are_held
    assert 0 < sleep.seconds_left() < 1


def test_marks_are_dropped_when_something_was_claimed(listener: Listener):
    marks = RecordedMarks(listener)
    listener.is_proven = True
    sleep = Sleep(marks, poll_interval_seconds=50.0)
    sleep.after_claim(EMPTY)

    sleep.after_claim(ClaimReport(1, may_find_more=True))

    assert not marks.are_held


def test_notification_that_comes_during_a_claim_is_not_slept_through():
    sleep = Sleep(None, poll_interval_seconds=50.0)
    sleep.is_over()

    sleep.end()
    sleep.after_claim(EMPTY)

    assert sleep.is_over()
