"""No job waits for an observer; the loop does, for a while, when it stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime.errors import LoopExit
from runledger_runtime.observers import (
    JobFailedEvent,
    JobLeaseLostEvent,
    JobLifecycleObserver,
    JobRunningEvent,
    JobSucceededEvent,
    _delivery,
)

WAIT_SECONDS = 30.0
# Of heartbeats that a row has had: its claim counts as one.
BEATEN = "SELECT last_heartbeat_at > leased_at FROM runledger.job_queue"


class Hanging(JobLifecycleObserver):
    """Hangs in the start of every attempt until it is let go; keeps what it was told."""

    def __init__(self, began: threading.Semaphore | None = None) -> None:
        self.began = began or threading.Semaphore(0)
        self.let_go = threading.Event()
        self.told: list[str] = []

    def on_job_running(self, event: JobRunningEvent) -> None:
        self.began.release()
        assert self.let_go.wait(WAIT_SECONDS)
        self.told.append("running")

    def on_job_succeeded(self, event: JobSucceededEvent) -> None:
        self.told.append("succeeded")

    def on_job_failed(self, event: JobFailedEvent) -> None:
        self.told.append("failed")


def enqueue(pool: ConnectionPool[Any]) -> None:
    enqueue_job(pool, JobEnqueue("jobs.one", {}))


def test_hanging_observers_delay_neither_handler_nor_heartbeats_nor_hook(
    runledger_pool: ConnectionPool[Any], start_observed: Any, look: Callable[..., Any]
) -> None:
    was_told = threading.Event()
    began = threading.Semaphore(0)
    observers = [Hanging(began) for _ in range(25)]
    order: list[str] = []

    class Declined:
        job_type = "jobs.one"

        def execute(self, context: Any, _payload: Any) -> None:
            for _ in range(25):
                assert began.acquire(timeout=WAIT_SECONDS)
            # Only a heartbeat gets the handler out of here.
            while not look(BEATEN)[0]:
                context.wait(0.02)
            order.append("handler")
            raise JobFailure.terminal("test.never", "never")

        def on_dead_letter(self, *_: Any) -> None:
            order.append("hook")
            was_told.set()

    worker = start_observed(Declined(), *observers, lease_ttl_seconds=3)
    enqueue(runledger_pool)

    assert was_told.wait(WAIT_SECONDS)
    order.append("let go")
    for observer in observers:
        observer.let_go.set()
    assert worker.end() is LoopExit.SHUTDOWN
    assert order == ["handler", "hook", "let go"]
    assert [observer.told for observer in observers] == [["running", "failed"]] * 25


def test_starts_of_many_jobs_that_hang_delay_no_job(
    runledger_pool: ConnectionPool[Any], start_observed: Any, look: Callable[..., Any]
) -> None:
    hanging = Hanging()
    done = threading.Semaphore(0)
    worker = start_observed(lambda *_: done.release(), hanging, max_global_concurrency=4)

    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {}) for _ in range(25)])

    for _ in range(25):
        assert done.acquire(timeout=WAIT_SECONDS)
    assert hanging.told == []
    hanging.let_go.set()
    assert worker.end() is LoopExit.SHUTDOWN
    assert look("SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'") == (25,)


def test_loop_returns_only_after_the_last_event_was_delivered(
    runledger_pool: ConnectionPool[Any], start_observed: Any
) -> None:
    hanging = Hanging()
    worker = start_observed(lambda *_: None, hanging)
    enqueue(runledger_pool)
    assert hanging.began.acquire(timeout=WAIT_SECONDS)

    worker.stop.request("end of test")
    # Long enough for a loop that would not wait.
    worker.thread.join(0.5)
    is_waiting = worker.thread.is_alive()
    hanging.let_go.set()

    assert worker.end() is LoopExit.SHUTDOWN
    assert is_waiting
    assert hanging.told == ["running", "succeeded"]


def test_start_that_hangs_at_the_stop_does_not_cost_the_end(
    runledger_pool: ConnectionPool[Any], start_observed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_delivery, "OBSERVER_SECONDS", 0.3)
    hanging = Hanging()
    worker = start_observed(lambda *_: None, hanging)
    enqueue(runledger_pool)
    assert hanging.began.acquire(timeout=WAIT_SECONDS)

    assert worker.end() is LoopExit.SHUTDOWN

    assert hanging.told == ["succeeded"]
    hanging.let_go.set()


def test_observer_that_never_returns_does_not_hold_the_loop(
    runledger_pool: ConnectionPool[Any],
    start_observed: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_delivery, "OBSERVER_SECONDS", 0.3)
    began, let_go = threading.Event(), threading.Event()

    class Endless(JobLifecycleObserver):
        def on_job_succeeded(self, event: JobSucceededEvent) -> None:
            began.set()
            let_go.wait(WAIT_SECONDS)

    worker = start_observed(lambda *_: None, Endless())
    enqueue(runledger_pool)
    assert began.wait(WAIT_SECONDS)

    assert worker.end() is LoopExit.SHUTDOWN

    assert not let_go.is_set()
    let_go.set()
    assert "a lifecycle observer takes too long" in caplog.text


def test_abort_waits_for_no_observer(
    runledger_pool: ConnectionPool[Any], start_observed: Any
) -> None:
    hanging = Hanging()
    worker = start_observed(lambda *_: None, hanging)
    enqueue(runledger_pool)
    assert hanging.began.acquire(timeout=WAIT_SECONDS)
    worker.stop.request("end of test")

    worker.stop.abort("now")

    assert worker.end() is LoopExit.SHUTDOWN
    assert hanging.told == []
    hanging.let_go.set()


def test_abort_waits_for_no_hook(
    runledger_pool: ConnectionPool[Any], start_observed: Any, look: Callable[..., Any]
) -> None:
    began, let_go = threading.Event(), threading.Event()

    class Declined:
        job_type = "jobs.one"

        def execute(self, _context: Any, _payload: Any) -> None:
            raise JobFailure.terminal("test.never", "never")

        def on_dead_letter(self, *_: Any) -> None:
            began.set()
            let_go.wait(WAIT_SECONDS)

    worker = start_observed(Declined())
    enqueue(runledger_pool)
    assert began.wait(WAIT_SECONDS)
    worker.stop.request("end of test")

    worker.stop.abort("now")

    assert worker.end() is LoopExit.SHUTDOWN
    assert not let_go.is_set()
    let_go.set()
    assert look("SELECT status::text FROM runledger.job_queue") == ("DEAD_LETTERED",)


def test_job_that_an_aborted_stop_takes_from_its_handler_is_told(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        context.wait(WAIT_SECONDS)
        context.raise_if_cancelled()

    worker = start_observed(handler, events)
    enqueue(runledger_pool)
    events.next(JobRunningEvent)
    worker.stop.request("end of test")

    worker.stop.abort("now")

    lost = events.next(JobLeaseLostEvent)
    assert worker.end() is LoopExit.SHUTDOWN
    assert lost.failure.code == "job.worker_shutdown"
