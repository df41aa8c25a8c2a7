from __future__ import annotations

import pytest

from runledger_runtime.worker._claim_planner import ClaimReport
from runledger_runtime.worker._sleep import Sleep

pytestmark = pytest.mark.usefixtures("still_clock")

POLL = 50.0


@pytest.fixture
def sleep() -> Sleep:
    """A sleep without marks that is past its first, short polls."""
    sleep = Sleep(None, poll_interval_seconds=POLL)
    for _ in range(4):
        sleep.after_claim(ClaimReport(0, may_find_more=False))
    assert sleep.seconds_left() < 1
    return sleep


def empty(**seen: float) -> ClaimReport:
    return ClaimReport(0, may_find_more=False, **seen)  # pyright: ignore[reportArgumentType]  # numbers


def test_empty_queue_is_left_alone_for_about_the_poll_interval(sleep: Sleep):
    sleep.is_over()
    sleep.after_claim(empty())

    assert 0.8 * POLL < sleep.seconds_left() <= 1.1 * POLL


def test_worker_wakes_for_the_next_claim_from_the_start(sleep: Sleep):
    sleep.is_over()
    sleep.after_claim(empty(latest_seconds=10.0, due_in_seconds=20.0))

    assert 9 < sleep.seconds_left() <= 10


def test_worker_wakes_for_the_next_job_that_comes_due(sleep: Sleep):
    sleep.is_over()
    sleep.after_claim(empty(latest_seconds=20.0, due_in_seconds=10.0))

    assert 9 < sleep.seconds_left() <= 10


def test_worker_does_not_rest_while_a_claim_may_find_more(sleep: Sleep):
    sleep.is_over()
    sleep.after_claim(ClaimReport(0, may_find_more=True, latest_seconds=10.0))

    assert sleep.is_over()


def test_contended_jobs_do_not_put_off_the_next_claim_from_the_start(sleep: Sleep):
    for _ in range(9):
        sleep.after_claim(ClaimReport(0, may_find_more=False, has_ready=True))
    sleep.is_over()
    sleep.after_claim(ClaimReport(0, may_find_more=False, has_ready=True, latest_seconds=0.0))

    assert sleep.is_over()
