"""What the reaper tells: handlers of dead letters first, then observers, and what a stop leaves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDeadLetterReason, JobDefinitionSpec, JobEnqueue, JobFailureKind
from runledger_postgres import claim_jobs, enqueue_jobs, upsert_job_definition
from runledger_postgres.lifecycle import heartbeat_job, reap_expired_leases
from runledger_runtime import reaper
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import LoopExit
from runledger_runtime.health import LoopHealth
from runledger_runtime.observers import (
    DeadLettered,
    JobLeaseReapedEvent,
    JobLifecycleObserver,
    JobLifecycleObservers,
    RetryScheduled,
    _delivery,
)
from runledger_runtime.reaper import run_reaper_loop
from runledger_runtime.registry import JobRegistry
from runledger_runtime.shutdown import StopToken
from runledger_test_support import expire_lease

from .._running_loop import WAIT_SECONDS, RunningLoop
from .._watched_loop import WatchedHealth

TOO_SLOW = "lifecycle observers are too slow; the newest event was dropped"
SKIPPED = "dead-letter hooks skipped at the stop"
STORED = "SELECT next_run_at, status::text FROM runledger.job_queue"
DELAY = "SELECT retry_delay_ms FROM runledger.job_attempts"


class Hooked:
    """A handler whose hook is the test's."""

    job_type = "jobs.one"

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def execute(self, _context: Any, _payload: Any) -> None: ...

    def on_dead_letter(self, _context: Any, payload: Any, _info: Any) -> None:
        self.hook(payload["n"])


def expired_jobs(
    pool: ConnectionPool[Any], count: int = 1, *, max_attempts: int = 1, beat: bool = False
) -> list[Any]:
    """Leave jobs behind whose worker is gone."""
    upsert_job_definition(pool, JobDefinitionSpec("jobs.one", max_attempts=max_attempts))
    enqueue_jobs(pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(count)])
    claimed = claim_jobs(pool, worker_id="gone", limit=count, lease_ttl_seconds=60)
    with pool.connection() as connection:
        for job in claimed:
            if beat:
                heartbeat_job(connection, job.lease, lease_ttl_seconds=60)
            expire_lease(connection, job.id)
    return claimed


@contextmanager
def running_reaper(
    pool: ConnectionPool[Any],
    hook: Any = None,
    *observers: JobLifecycleObserver,
    interval_seconds: int = 3_600,
    health: LoopHealth | None = None,
) -> Iterator[RunningLoop]:
    running = RunningLoop()
    registry = JobRegistry()
    if hook is not None:
        registry.register(Hooked(hook))
    config = JobsConfig("reaper", reaper_interval_seconds=interval_seconds)
    running.start(
        lambda: run_reaper_loop(
            pool,
            config,
            running.stop,
            registry=registry,
            health=health,
            observers=JobLifecycleObservers(observers),
        )
    )
    try:
        yield running
    finally:
        running.stop.request("teardown")
        running.thread.join(WAIT_SECONDS)


@pytest.fixture
def stop_after_commit(monkeypatch: pytest.MonkeyPatch) -> list[StopToken]:
    """Request the stop of a loop between the commit of a batch and what it tells."""
    tokens: list[StopToken] = []
    reap = reap_expired_leases

    def reap_and_stop(*arguments: Any, **keywords: Any) -> Any:
        result = reap(*arguments, **keywords)
        assert result.reaped
        for token in tokens:
            token.request("after the commit")
        return result

    monkeypatch.setattr(reaper, "reap_expired_leases", reap_and_stop)
    return tokens


@pytest.mark.parametrize("beat", [False, True])
def test_retry_after_an_expired_lease_is_told_with_worker_attempt_and_heartbeats(
    beat: bool, runledger_pool: ConnectionPool[Any], events: Any, look: Any
) -> None:
    (job,) = expired_jobs(runledger_pool, max_attempts=3, beat=beat)

    with running_reaper(runledger_pool, None, events):
        reaped = events.next(JobLeaseReapedEvent)

    assert (reaped.job.job_id, reaped.job.job_type) == (job.id, "jobs.one")
    assert (reaped.job.worker_id, reaped.job.run_number) == ("gone", 1)
    assert (reaped.job.attempt, reaped.job.max_attempts) == (1, 3)
    assert reaped.failure.kind is JobFailureKind.LEASE_EXPIRED
    assert reaped.failure.code == "job.lease_expired"
    assert reaped.started_without_renewal_heartbeat is not beat
    next_run_at, status = look(STORED)
    assert status == "PENDING"
    assert reaped.disposition == RetryScheduled(look(DELAY)[0], next_run_at)


def test_dead_letter_of_an_expired_lease_is_told_with_its_reason(
    runledger_pool: ConnectionPool[Any], events: Any
) -> None:
    expired_jobs(runledger_pool)

    with running_reaper(runledger_pool, None, events):
        reaped = events.next(JobLeaseReapedEvent)

    assert reaped.disposition == DeadLettered(JobDeadLetterReason.LEASE_EXPIRED)


def test_hooks_of_a_pass_are_over_before_its_observers_begin(
    runledger_pool: ConnectionPool[Any], events: Any
) -> None:
    ended: list[int] = []
    may_end = threading.Event()

    def hook(number: int) -> None:
        assert may_end.wait(WAIT_SECONDS)
        assert events.events.empty()
        ended.append(number)

    expired_jobs(runledger_pool, 20)
    with running_reaper(runledger_pool, hook, events):
        may_end.set()
        for _ in range(20):
            events.next(JobLeaseReapedEvent)

    assert sorted(ended) == list(range(20))


def test_hook_that_hangs_stops_no_pass_and_costs_no_event(
    runledger_pool: ConnectionPool[Any], events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runledger_runtime.dead_letters.DEAD_LETTER_SECONDS", 1.0)
    began, let_go = threading.Event(), threading.Event()

    def hook(_number: int) -> None:
        began.set()
        let_go.wait(WAIT_SECONDS)

    (first,) = expired_jobs(runledger_pool)
    with running_reaper(runledger_pool, hook, events, interval_seconds=1):
        assert began.wait(WAIT_SECONDS)
        (second,) = expired_jobs(runledger_pool, max_attempts=3)

        told = [events.next(JobLeaseReapedEvent).job.job_id for _ in range(2)]

        assert not let_go.is_set()
        let_go.set()
    assert sorted(told) == sorted([first.id, second.id])


def test_types_without_a_handler_here_have_no_hook_but_are_observed(
    runledger_pool: ConnectionPool[Any], events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expired_jobs(runledger_pool, 3)

    with running_reaper(runledger_pool, None, events) as running:
        for _ in range(3):
            events.next(JobLeaseReapedEvent)
        assert running.end() is LoopExit.SHUTDOWN

    assert SKIPPED not in caplog.text


def test_of_eighty_hooks_eight_start_if_the_stop_came_before_them(
    runledger_pool: ConnectionPool[Any],
    stop_after_commit: list[StopToken],
    caplog: pytest.LogCaptureFixture,
) -> None:
    began: list[int] = []
    expired_jobs(runledger_pool, 80)

    # They end at once, so that nothing but the count holds up the ninth.
    with running_reaper(runledger_pool, began.append) as running:
        stop_after_commit.append(running.stop)
        assert running.end() is LoopExit.SHUTDOWN

    assert len(began) == 8
    (record,) = [each for each in caplog.records if each.getMessage() == SKIPPED]
    assert (record.levelno, record.skipped) == (logging.WARNING, 72)  # pyright: ignore[reportAttributeAccessIssue]  # an extra


def test_of_eighty_hooks_no_more_start_if_the_stop_comes_among_them(
    runledger_pool: ConnectionPool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    began = threading.Semaphore(0)
    count: list[int] = []
    may_end = threading.Event()

    def hook(number: int) -> None:
        count.append(number)
        began.release()
        assert may_end.wait(WAIT_SECONDS)

    expired_jobs(runledger_pool, 80)
    with running_reaper(runledger_pool, hook) as running:
        for _ in range(8):
            assert began.acquire(timeout=WAIT_SECONDS)
        running.stop.request("among them")
        may_end.set()
        assert running.end() is LoopExit.SHUTDOWN

    assert len(count) == 8
    (record,) = [each for each in caplog.records if each.getMessage() == SKIPPED]
    assert record.skipped == 72  # pyright: ignore[reportAttributeAccessIssue]  # an extra


def test_batch_that_was_committed_at_the_stop_has_its_hook_but_no_observer(
    runledger_pool: ConnectionPool[Any], stop_after_commit: list[StopToken], events: Any
) -> None:
    told: list[int] = []
    expired_jobs(runledger_pool)

    with running_reaper(runledger_pool, told.append, events) as running:
        stop_after_commit.append(running.stop)
        assert running.end() is LoopExit.SHUTDOWN

    assert told == [0]
    assert events.events.empty()


def test_no_observer_begins_after_a_stop_that_comes_during_the_hook(
    runledger_pool: ConnectionPool[Any], events: Any
) -> None:
    order: list[str] = []
    began = threading.Event()
    expired_jobs(runledger_pool)

    with running_reaper(runledger_pool, lambda _: hook(), events) as running:

        def hook() -> None:
            began.set()
            assert running.stop.wait(WAIT_SECONDS)
            # Long enough for a loop that would not wait.
            running.thread.join(0.3)
            order.append("loop runs" if running.thread.is_alive() else "loop is gone")

        assert began.wait(WAIT_SECONDS)
        assert running.end() is LoopExit.SHUTDOWN

    assert order == ["loop runs"]
    assert events.events.empty()


def test_observer_that_runs_at_the_stop_is_not_waited_for(
    runledger_pool: ConnectionPool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    began, let_go = threading.Event(), threading.Event()

    class Slow(JobLifecycleObserver):
        def on_job_lease_reaped(self, event: JobLeaseReapedEvent) -> None:
            began.set()
            let_go.wait(WAIT_SECONDS)

    expired_jobs(runledger_pool)
    with running_reaper(runledger_pool, None, Slow()) as running:
        assert began.wait(WAIT_SECONDS)
        assert running.end() is LoopExit.SHUTDOWN

        assert not let_go.is_set()
        let_go.set()
    assert "lifecycle observers are still running at the stop" in caplog.text


def test_as_many_ends_as_one_commit_may_hold_wait_for_a_slow_observer_twice(
    runledger_pool: ConnectionPool[Any],
    events: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_delivery, "OBSERVER_SECONDS", WAIT_SECONDS)
    may_go = threading.Event()

    class Slow(JobLifecycleObserver):
        def on_job_lease_reaped(self, event: JobLeaseReapedEvent) -> None:
            assert may_go.wait(WAIT_SECONDS)
            events.put(event)

    # Two full batches, one behind the other.
    ids = {job.id for job in expired_jobs(runledger_pool, 200)}
    health = WatchedHealth("reaper")
    with running_reaper(runledger_pool, None, Slow(), health=health):
        # The third pass finds nothing more: all ends were handed over.
        backlogs = [health.passes.get(timeout=WAIT_SECONDS) for _ in range(3)]
        may_go.set()
        assert TOO_SLOW not in caplog.messages
        told = {events.next(JobLeaseReapedEvent).job.job_id for _ in range(200)}

    assert backlogs == [None, None, 0]
    assert told == ids
