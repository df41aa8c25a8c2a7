"""A worker with observers on a thread of the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec
from runledger_postgres.definitions import upsert_job_definition
from runledger_runtime.config import JobsConfig
from runledger_runtime.observers import (
    JobLifecycleEvent,
    JobLifecycleObserver,
    JobLifecycleObservers,
)
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker import run_worker_loop

from .._running_loop import WAIT_SECONDS, RunningLoop


class EventQueue(JobLifecycleObserver):
    """Puts every event into a queue that a test waits for."""

    def __init__(self) -> None:
        self.events: SimpleQueue[JobLifecycleEvent] = SimpleQueue()

    def put(self, event: JobLifecycleEvent) -> None:
        """Keep an event."""
        self.events.put(event)

    on_job_running = put
    on_job_succeeded = put
    on_job_failed = put
    on_job_completion_persist_failed = put
    on_job_lease_lost = put
    on_job_lease_reaped = put

    def next(self, kind: type[JobLifecycleEvent]) -> Any:
        """Return the next event, which must be of this kind."""
        try:
            event = self.events.get(timeout=WAIT_SECONDS)
        except Empty:
            pytest.fail(f"nobody told of {kind.__name__}")
        assert type(event) is kind, event
        return event


@pytest.fixture
def events() -> EventQueue:
    """An observer that keeps all events."""
    return EventQueue()


class StartObserved(Protocol):
    """Start a worker with a handler, a function or an object, and observers."""

    def __call__(
        self, handler: Any, *observers: JobLifecycleObserver, **settings: Any
    ) -> RunningLoop: ...


@pytest.fixture
def start_observed(runledger_pool: ConnectionPool[Any]) -> Iterator[StartObserved]:
    """Start workers for jobs.one that are stopped after the test."""
    workers: list[RunningLoop] = []

    def start(handler: Any, *observers: JobLifecycleObserver, **settings: Any) -> RunningLoop:
        registry = JobRegistry()
        upsert_job_definition(runledger_pool, JobDefinitionSpec("jobs.one", max_attempts=3))
        if hasattr(handler, "execute"):
            registry.register(handler)
        else:
            registry.register_function("jobs.one", handler)
        values: dict[str, Any] = {"poll_interval_ms": 200, "lease_ttl_seconds": 10}
        config = JobsConfig("worker-1", **values | settings)
        worker = RunningLoop()
        worker.start(
            lambda: run_worker_loop(
                runledger_pool,
                registry,
                config,
                worker.stop,
                observers=JobLifecycleObservers(observers),
            )
        )
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop.request("teardown")
    for worker in workers:
        worker.thread.join(WAIT_SECONDS)


@pytest.fixture
def look(runledger_database: Any) -> Callable[..., Any]:
    """Return the first row of a statement, over a connection of its own each time."""

    def row(sql: str, *parameters: object) -> Any:
        with runledger_database.connect(autocommit=True) as connection:
            return connection.execute(sql, parameters).fetchone()

    return row
