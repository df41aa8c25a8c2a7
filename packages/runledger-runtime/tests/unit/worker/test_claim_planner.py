from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from runledger_postgres.lifecycle import Backlog, RoundResult
from runledger_runtime.worker._claim_planner import ClaimPlanner, ClaimReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def seen(due_in_seconds: float | None = None, *, has_ready: bool = False) -> Backlog:
    return Backlog(
        NOW,
        ready_types=["a"] if has_ready else [],
        ready_ranks=[-1] if has_ready else [],
        ready_next_run_ats=[NOW] if has_ready else [],
        ready_ids=[],
        ready_read_before=0,
        ready_read_after=0,
        ready_found_at=NOW,
        waiting_read_before=0,
        waiting_read_after=0,
        next_due_at=None if due_in_seconds is None else NOW + timedelta(seconds=due_in_seconds),
        looked_at=NOW,
    )


class Claims:
    """One worker's claims, ten jobs each at most."""

    def __init__(self) -> None:
        self.planner = ClaimPlanner("w", ["a"], lease_ttl_seconds=60, poll_interval_seconds=0.5)

    def claim(
        self, now: float, found: int, look: Backlog | None = None
    ) -> tuple[tuple[bool, bool], ClaimReport]:
        """Return whether it flipped and looked, and what it reported."""
        request = self.planner.request(10, now=now)
        claimed: list[Any] = [object()] * found
        backlog = (look or seen()) if request.has_look else None
        result = RoundResult([], [], claimed=claimed, backlog=backlog)
        return (request.has_flip, request.has_look), self.planner.report(request, result, now=now)


def test_first_claim_flips_and_looks():
    assert Claims().claim(10.0, 0)[0] == (True, True)


def test_full_claims_flip_and_look_now_and_then():
    claims = Claims()

    rounds = [claims.claim(10 + step / 50, 10)[0] for step in range(7)]

    both, none = (True, True), (False, False)
    assert rounds == [both, none, none, both, none, none, both]


def test_claim_that_is_not_full_is_repeated_with_a_look_if_it_had_none():
    claims = Claims()
    claims.claim(10.0, 10)

    without, report = claims.claim(10.01, 3)
    again, last = claims.claim(10.011, 0)

    assert (without, again) == ((False, False), (False, True))
    assert report.may_find_more is True
    assert (last.may_find_more, last.claimed) == (False, 0)


def test_flip_that_is_missing_is_made_at_once():
    claims = Claims()
    claims.claim(10.0, 0)

    without, report = claims.claim(10.01, 0, seen(-0.001))
    again, last = claims.claim(10.011, 0, seen(-0.001))

    assert (without, again) == ((False, True), (True, True))
    assert report.may_find_more is True
    # What is due yet is held by others: no reason to spin.
    assert last.may_find_more is False
    assert last.due_in_seconds == -0.001


def test_job_that_waits_for_later_needs_no_flip():
    claims = Claims()
    claims.claim(10.0, 0)

    without, report = claims.claim(10.01, 0, seen(0.001))

    assert without == (False, True)
    assert (report.may_find_more, report.due_in_seconds) == (False, 0.001)


def test_window_doubles_while_others_hold_what_is_found():
    claims = Claims()
    windows = []

    for found, has_ready in ((0, True), (0, True), (1, True), (0, False)):
        claims.claim(10.0, found, seen(has_ready=has_ready))
        windows.append(claims.planner.request(10, now=10.0).window)

    assert windows == [20, 20, 10, 10]


def test_full_claim_may_find_more():
    assert Claims().claim(10.0, 10)[1].may_find_more is True
    assert Claims().claim(10.0, 9)[1].may_find_more is False
