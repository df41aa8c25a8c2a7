"""What the tests of a database in trouble share: a Supervisor, waiting, looking on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec
from runledger_postgres import upsert_job_definition
from runledger_runtime import JobRegistry, JobsConfig, Supervisor
from runledger_test_support import make_due

WAIT_SECONDS = 60.0
SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"

Handler = Callable[[Any, Any], Any]


def eventually(
    condition: Callable[[], object],
    *,
    seconds: float = WAIT_SECONDS,
    seen: Callable[[], object] = lambda: "",
) -> None:
    """Wait until a condition holds; say what was seen instead."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {seen()}"
        pause.wait(0.01)


def define(db: Any, *job_types: str, max_attempts: int = 3) -> None:
    """Make the definitions of job types."""
    for job_type in job_types:
        upsert_job_definition(db, JobDefinitionSpec(job_type, max_attempts=max_attempts))


def registry_of(handlers: Mapping[str, Handler]) -> JobRegistry:
    """Return a registry of handlers; `test.again` is tried again at once."""
    registry = JobRegistry()
    for job_type, handler in handlers.items():
        registry.register_function(job_type, handler)
        registry.register_retry_delay_override(job_type, "test.again", 1)
    return registry


@contextmanager
def supervised(
    pool: ConnectionPool[Any], handlers: Mapping[str, Handler], **settings: Any
) -> Iterator[Supervisor]:
    """Run all loops for a block; every one must live at its end."""
    defaults: dict[str, Any] = {
        "poll_interval_ms": 200,
        "lease_ttl_seconds": 3,
        "reaper_interval_seconds": 1,
        "schedule_poll_interval_seconds": 1,
        "reaper_retry_delay_ms": 100,
        "max_global_concurrency": 4,
    }
    config = JobsConfig("worker-1", **defaults | settings)
    with Supervisor.builder(pool, config).with_registry(registry_of(handlers)).build() as running:
        yield running
        assert running.health().is_healthy, running.health()
        assert not running.is_shutdown_requested


class Outside:
    """Looks at the database past whatever the worker goes through."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def value(self, sql: str, *parameters: object) -> Any:
        """Return the first value of the first row; None if there is none."""
        row = self.connection.execute(sql.encode(), parameters or None).fetchone()
        return None if row is None else row[0]

    def column(self, sql: str, *parameters: object) -> list[Any]:
        """Return the first column."""
        rows = self.connection.execute(sql.encode(), parameters or None).fetchall()
        return [row[0] for row in rows]

    def backend(self, name: str) -> int | None:
        """Return the newest server process of an engine connection."""
        return self.value(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = %s ORDER BY backend_start DESC LIMIT 1",
            f"runledger {name}",
        )


def run_again_at_once(db: psycopg.Connection[Any], job_id: UUID) -> None:
    """Wait until a lost attempt has been ended, and skip the ten seconds to its next one."""
    outside = Outside(db)
    status = "SELECT status = 'PENDING' AND attempt > 0 FROM runledger.job_queue WHERE id = %s"
    eventually(lambda: outside.value(status, job_id))
    make_due(db, job_id)


def passes(running: Supervisor) -> dict[str, Any]:
    """Return when each loop last completed a pass without an error since; None otherwise."""
    return {
        loop.name: None if loop.consecutive_errors else loop.last_pass_at
        for loop in running.health().loops
    }
