from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from runledger_core import JobLease
from runledger_postgres.lifecycle import Backlog, ClaimedJob, ClaimRequest, ReadyMark, RoundResult
from runledger_runtime.worker._claim_planner import ClaimPlanner
from runledger_runtime.worker._low_mark import LowMark

POLL = 0.5
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SLACK = timedelta(milliseconds=100)
NIL = UUID(int=0)


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def place(seconds: float, *, priority: int = 0, number: int = 0) -> ReadyMark:
    return ReadyMark(~priority, at(seconds), id=UUID(int=number))


def backlog(
    now: float,
    *,
    best: dict[str, ReadyMark] | None = None,
    due_at: datetime | None = None,
    ready: tuple[float, int] = (0.0, 0),
    waiting: tuple[float, int] = (0.0, 0),
) -> Backlog:
    """A look that ended at `now` and took seconds and entries to find what is ready and waiting."""
    best = best or {}
    ended_at = at(now)
    found_at = ended_at - timedelta(seconds=waiting[0])
    return Backlog(
        found_at - timedelta(seconds=ready[0]),
        ready_types=list(best),
        ready_ranks=[mark.rank for mark in best.values()],
        ready_next_run_ats=[mark.next_run_at for mark in best.values()],
        ready_ids=[mark.id for mark in best.values()],
        ready_read_before=5,
        ready_read_after=5 + ready[1],
        ready_found_at=found_at,
        waiting_read_before=7,
        waiting_read_after=7 + waiting[1],
        next_due_at=due_at,
        looked_at=ended_at,
    )


SLOW = (0.1, 200_000)


@dataclass
class Claims:
    """Claims of one worker as its low mark sees them."""

    low_mark: LowMark = field(
        default_factory=lambda: LowMark(["a", "b"], poll_interval_seconds=POLL)
    )

    def claim(
        self, now: float, *, taken: dict[str, ReadyMark] | None = None, **seen: Any
    ) -> ClaimRequest:
        request = self.request(now)
        look = None if seen.get("best") == "unseen" else backlog(now, **seen)
        result = RoundResult([], [], last_taken=taken or {}, backlog=look)
        self.low_mark.after_claim(request, result, now=now)
        return request

    def request(self, now: float) -> ClaimRequest:
        return ClaimRequest(
            "w",
            ["a", "b"],
            limit=10,
            window=10,
            lease_ttl_seconds=60,
            marks=self.low_mark.marks(now),
            waiting_from=self.low_mark.waiting_from(now),
        )


def test_claims_begin_at_the_start_while_that_is_fast():
    claims = Claims()

    for now in (10.0, 10.001, 10.002):
        request = claims.claim(now, taken={"a": place(now)}, ready=(0.005, 200_000))
        assert (request.marks, request.waiting_from) == ({}, None)

    assert claims.low_mark.seconds_until_start(10.002) is None
    assert claims.low_mark.is_look_due(10.002) is False


def test_slow_walk_of_few_entries_is_not_the_fault_of_dead_ones():
    claims = Claims()

    claims.claim(10.0, ready=(3.0, 1_999), waiting=(3.0, 1_999))

    assert claims.request(10.1).marks == {}
    assert claims.request(10.1).waiting_from is None


def test_after_a_slow_claim_from_the_start_claims_begin_behind_what_was_taken():
    claims = Claims()

    claims.claim(10.0, taken={"a": place(9.0, priority=7)}, ready=SLOW)

    assert claims.request(10.001).marks == {
        "a": place(9.9, priority=7),
        "b": place(9.9),
    }
    assert claims.request(10.001).waiting_from is None


def test_mark_stays_before_the_best_job_that_is_left():
    claims = Claims()
    left = place(3.0, priority=2, number=4)

    claims.claim(10.0, taken={"a": place(9.0)}, best={"a": left}, ready=SLOW)

    assert claims.request(10.1).marks["a"] == left


def test_mark_stays_a_little_behind_the_clock_for_what_becomes_ready_late():
    claims = Claims()

    claims.claim(10.0, taken={"a": place(9.99)}, best={"a": place(9.999)}, ready=SLOW)

    assert claims.request(10.1).marks["a"] == place(9.9)


def test_mark_goes_with_the_clock_though_others_take_the_jobs():
    claims = Claims()
    claims.claim(10.0, taken={"a": place(9.0)}, ready=SLOW)

    claims.claim(10.5)

    assert claims.request(10.6).marks["a"] == place(10.4)


def test_marked_claim_without_a_look_moves_only_the_types_that_it_took():
    claims = Claims()
    claims.claim(10.0, ready=SLOW)
    taken = place(10.1, number=9)

    request = claims.claim(10.2, taken={"a": taken}, best="unseen")

    assert request.marks["a"] == place(9.9)
    assert claims.request(10.3).marks == {"a": taken, "b": place(9.9)}


def test_lowest_priority_taken_decides_where_the_mark_stays():
    claims = Claims()
    claims.claim(10.0, taken={"a": place(9.0, priority=-3)}, ready=SLOW)
    claims.claim(10.1, taken={"a": place(10.05, priority=8)})

    assert claims.request(10.2).marks["a"] == place(10.0, priority=-3)


@pytest.mark.parametrize(
    ("walk_seconds", "interval"), [(0.006, POLL), (0.025, POLL), (0.026, 0.52), (0.2, 4.0)]
)
def test_claim_from_the_start_comes_again_in_time(walk_seconds: float, interval: float):
    claims = Claims()
    low_mark = claims.low_mark
    claims.claim(10.0, ready=(walk_seconds, 200_000))

    assert low_mark.seconds_until_start(10.0) == pytest.approx(interval)
    assert claims.request(10.0 + interval - 0.001).marks != {}
    assert low_mark.is_look_due(10.0 + interval - 0.001) is False
    # Marked claims do not put it off, however slow they are themselves.
    claims.claim(10.0 + interval - 0.001, ready=(9.0, 200_000))
    assert claims.request(10.0 + interval + 0.001).marks == {}
    assert low_mark.is_look_due(10.0 + interval + 0.001) is True
    assert low_mark.seconds_until_start(99.0) == 0.0


def test_claim_from_the_start_that_failed_is_due_again():
    claims = Claims()
    claims.claim(10.0, ready=SLOW)

    assert claims.request(12.5).marks == {}
    assert claims.request(12.6).marks == {}


def test_claim_from_the_start_begins_the_marks_anew():
    claims = Claims()
    claims.claim(10.0, taken={"a": place(9.0)}, ready=SLOW)
    urgent = place(11.0, priority=5)

    request = claims.claim(12.5, taken={"a": urgent}, best={"a": urgent}, ready=SLOW)

    assert request.marks == {}
    assert claims.request(12.6).marks["a"] == urgent


def test_marks_are_dropped_once_a_claim_from_the_start_is_fast():
    claims = Claims()
    claims.claim(10.0, ready=SLOW, waiting=SLOW)

    claims.claim(12.5, ready=(0.001, 50), waiting=(0.001, 50))

    assert (claims.request(12.501).marks, claims.request(12.501).waiting_from) == ({}, None)
    assert claims.low_mark.seconds_until_start(12.501) is None


def test_flip_begins_at_the_earliest_waiting_job_or_a_little_behind_the_clock():
    claims = Claims()
    claims.claim(10.0, waiting=SLOW)
    assert claims.request(10.1).marks == {}
    assert claims.request(10.1).waiting_from == at(9.9)

    claims.claim(10.1, due_at=at(4.0))
    assert claims.request(10.2).waiting_from == at(4.0)

    claims.claim(10.2, due_at=at(99.0))
    assert claims.request(10.3).waiting_from == at(10.1)
    assert claims.low_mark.seconds_until_start(10.3) == pytest.approx(1.7)
    assert claims.request(12.1).waiting_from is None


class Shop:
    """A queue of one type whose head is full of dead entries: what claims find, and when."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ready: dict[ReadyMark, float] = {}
        self.waits: list[float] = []

    def arrive(self, now: float) -> None:
        self.ready[
            place(
                now - self.chance.choice([0.0, 0.001, 0.05, 0.5, 30.0]),
                priority=self.chance.choice([-2, 0, 0, 0, 9]),
                number=self.chance.getrandbits(100),
            )
        ] = now

    def claim(self, request: ClaimRequest, now: float) -> RoundResult:
        begin = request.marks.get("a", ReadyMark(-(2**40), EPOCH, id=NIL))
        found = sorted(mark for mark in self.ready if mark >= begin)
        taken, left = found[: request.limit], found[request.limit :]
        for mark in taken:
            self.waits.append(now - self.ready.pop(mark))
        look = backlog(
            now,
            best={"a": left[0]} if left else {},
            ready=(0.001, 10) if request.marks else SLOW,
        )
        return RoundResult(
            [],
            [],
            claimed=[job(mark) for mark in taken],
            last_taken={"a": taken[-1]} if taken else {},
            backlog=look if request.has_look else None,
        )


def job(mark: ReadyMark) -> ClaimedJob:
    return ClaimedJob(
        JobLease(mark.id, 1, attempt=1, claim_number=1, worker_id="w"),
        "a",
        organization_id=None,
        workflow_run_id=None,
        max_attempts=1,
        priority=~mark.rank,
        timeout_seconds=1,
        lease_expires_at=EPOCH,
        payload=None,
        checkpoint=None,
        payload_json="null",
    )


@pytest.mark.parametrize("seed", range(8))
def test_no_job_waits_longer_than_for_the_next_claim_from_the_start(seed: int):
    shop = Shop(seed)
    planner = ClaimPlanner("w", ["a"], lease_ttl_seconds=60, poll_interval_seconds=POLL)
    now, marked = 100.0, 0
    while now < 106.0 or shop.ready:
        if now < 106.0:
            for _ in range(shop.chance.choice([0, 0, 0, 1, 2])):
                shop.arrive(now)
        request = planner.request(10, now=now)
        marked += bool(request.marks)
        report = planner.report(request, shop.claim(request, now), now=now)
        pause = 0.0 if report.may_find_more else shop.chance.uniform(0.001, 0.02)
        now += 0.001 + min(pause, report.latest_seconds or pause)
        assert now < 112.0, f"jobs are forgotten, seed {seed}"

    assert marked > 50
    # 20 times the walk of a tenth of a second, and the steps of this test.
    assert max(shop.waits) < 2.0 + 0.1, f"seed {seed}"


def test_order_is_strict_while_claims_from_the_start_are_fast():
    shop = Shop(1)
    planner = ClaimPlanner("w", ["a"], lease_ttl_seconds=60, poll_interval_seconds=POLL)
    for step in range(60):
        now = 100 + step / 100
        for _ in range(12):
            shop.arrive(now)
        best = sorted(shop.ready)[:10]
        request = planner.request(10, now=now)
        result = shop.claim(request, now)
        if result.backlog is not None:
            fast = backlog(now, ready=(0.5, 100), waiting=(0.5, 100))
            result = replace(result, backlog=fast)
        planner.report(request, result, now=now)

        assert [claimed.id for claimed in result.claimed] == [mark.id for mark in best]
