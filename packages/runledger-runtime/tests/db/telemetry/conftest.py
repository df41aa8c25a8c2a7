"""A Supervisor with a catalog's handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

import pytest
from psycopg_pool import ConnectionPool

from runledger_runtime import JobCatalog, JobsConfig, Supervisor, SupervisorError
from runledger_runtime.observers import JobLifecycleObserver
from runledger_test_support import TemporaryDatabase

WAIT_SECONDS = 30.0


class StartSupervisor(Protocol):
    """Start a Supervisor with the handlers of a catalog."""

    def __call__(
        self,
        catalog: JobCatalog,
        *,
        pool: ConnectionPool[Any] | None = None,
        observer: JobLifecycleObserver | None = None,
        **settings: Any,
    ) -> Supervisor: ...


@pytest.fixture
def start_supervisor(
    runledger_database: TemporaryDatabase, runledger_pool: ConnectionPool[Any]
) -> Iterator[StartSupervisor]:
    """Start Supervisors that are stopped after the test; definitions are made."""
    started: list[Supervisor] = []

    def start(
        catalog: JobCatalog,
        *,
        pool: ConnectionPool[Any] | None = None,
        observer: JobLifecycleObserver | None = None,
        **settings: Any,
    ) -> Supervisor:
        catalog.sync_definitions(runledger_pool)
        defaults: dict[str, Any] = {"poll_interval_ms": 100, "reaper_interval_seconds": 1}
        if runledger_database.dsn != runledger_database.direct_dsn:
            # Behind a pooler, as the guide has it.
            defaults["direct_database_url"] = runledger_database.direct_dsn
        config = JobsConfig("worker", **defaults | settings)
        builder = Supervisor.builder(pool or runledger_pool, config).with_catalog(catalog)
        if observer is not None:
            builder.with_job_lifecycle_observer(observer)
        started.append(builder.build())
        return started[-1]

    yield start
    for supervisor in started:
        with suppress(SupervisorError):
            supervisor.shutdown_with_timeout(WAIT_SECONDS)
