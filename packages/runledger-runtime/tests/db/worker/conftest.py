"""A worker on a thread of the test's, and waiting for what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec
from runledger_postgres.definitions import upsert_job_definition
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import RuntimeLoopExit
from runledger_runtime.health import LoopHealth
from runledger_runtime.registry import JobRegistry
from runledger_runtime.shutdown import StopToken
from runledger_runtime.worker import run_worker_loop
from runledger_test_support.databases import TemporaryDatabase

WAIT_SECONDS = 30.0

Handler = Callable[[Any, Any], Any]


@dataclass
class RunningWorker:
    """A worker loop on a thread."""

    stop: StopToken
    thread: threading.Thread
    worker_id: str
    health: LoopHealth = field(default_factory=lambda: LoopHealth("worker"))
    exits: list[RuntimeLoopExit] = field(default_factory=list)

    def end(self) -> RuntimeLoopExit:
        """Ask it to stop and return how the loop ended."""
        self.stop.request("end of test")
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()
        return self.exits[0]


class StartWorker(Protocol):
    """Start a worker with handlers by job type."""

    def __call__(
        self,
        handlers: dict[str, Handler],
        *,
        pool: ConnectionPool[Any] | None = None,
        **settings: Any,
    ) -> RunningWorker: ...


@pytest.fixture
def start_worker(
    runledger_database: TemporaryDatabase, runledger_pool: ConnectionPool[Any]
) -> Iterator[StartWorker]:
    """Start workers that are stopped after the test; definitions are made for their types."""
    workers: list[RunningWorker] = []

    def start(
        handlers: dict[str, Handler], *, pool: ConnectionPool[Any] | None = None, **settings: Any
    ) -> RunningWorker:
        registry = JobRegistry()
        for job_type, handler in handlers.items():
            upsert_job_definition(runledger_pool, JobDefinitionSpec(job_type, max_attempts=3))
            registry.register_function(job_type, handler)
            registry.register_retry_delay_override(job_type, "test.again", 1)
        worker_id = f"worker-{len(workers) + 1}"
        defaults: dict[str, Any] = {"poll_interval_ms": 200, "lease_ttl_seconds": 10}
        if runledger_database.dsn != runledger_database.direct_dsn:
            # Behind a pooler, as the guide has it.
            defaults["direct_database_url"] = runledger_database.direct_dsn
        config = JobsConfig(worker_id, **defaults | settings)
        worker = RunningWorker(StopToken(), threading.Thread(), worker_id)

        def run() -> None:
            worker.exits.append(
                run_worker_loop(
                    pool or runledger_pool, registry, config, worker.stop, health=worker.health
                )
            )

        worker.thread = threading.Thread(target=run, daemon=True)
        worker.thread.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop.request("teardown")
    for worker in workers:
        worker.thread.join(WAIT_SECONDS)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds; fail after half a minute."""

    def wait(condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            pause.wait(0.01)

    return wait


class Look(Protocol):
    """Read values from outside of the worker."""

    def __call__(self, sql: str, *parameters: object) -> Any: ...


@pytest.fixture
def look(runledger_database: TemporaryDatabase) -> Look:
    """Return the first value of a statement, over a connection of the test's own."""
    connection = runledger_database.connect_directly(autocommit=True)

    def value(sql: str, *parameters: object) -> Any:
        row = connection.execute(sql, parameters).fetchone()  # pyright: ignore[reportArgumentType]  # test statements
        return None if row is None else row[0]

    return value
