"""A worker on a thread of the test's, and a look at what it stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec
from runledger_postgres.definitions import upsert_job_definition
from runledger_runtime.config import JobsConfig
from runledger_runtime.health import LoopHealth
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker import run_worker_loop
from runledger_test_support.databases import TemporaryDatabase

from .._running_loop import WAIT_SECONDS, RunningLoop

Handler = Callable[[Any, Any], Any]


class RunningWorker(RunningLoop):
    """A worker loop on a thread."""

    def __init__(self, worker_id: str) -> None:
        super().__init__()
        self.worker_id = worker_id
        self.health = LoopHealth("worker")


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
        worker = RunningWorker(worker_id)
        worker.start(
            lambda: run_worker_loop(
                pool or runledger_pool, registry, config, worker.stop, health=worker.health
            )
        )
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop.request("teardown")
    for worker in workers:
        worker.thread.join(WAIT_SECONDS)


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
