"""Runs that a real Supervisor brings to their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_runtime import JobCatalog, JobsConfig, Supervisor
from runledger_test_support import TemporaryDatabase

WAIT_SECONDS = 30.0
# Longer than a test waits: what runs meanwhile was woken.
ASLEEP_MS = 120_000


class Runs:
    """A catalog to add jobs to, Supervisors of it, and a look at the runs from outside."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        database: TemporaryDatabase,
        look: psycopg.Connection[Any],
        stack: ExitStack,
    ) -> None:
        self.pool = pool
        self.catalog = JobCatalog()
        self._database = database
        self._look = look
        self._stack = stack

    def start(self, **settings: Any) -> Supervisor:
        """Sync the catalog and start a Supervisor of it, which the test's end stops."""
        self.sync()
        values: dict[str, Any] = {"poll_interval_ms": 200, "lease_ttl_seconds": 30}
        if self._database.dsn != self._database.direct_dsn:
            values["direct_database_url"] = self._database.direct_dsn
        config = JobsConfig("test", **values | settings)
        builder = Supervisor.builder(self.pool, config).with_catalog(self.catalog)
        return self._stack.enter_context(builder.build())

    def sync(self) -> None:
        """Write the definitions of the catalog's jobs."""
        self.catalog.sync_definitions(self.pool)

    def dag(self) -> WorkflowDagBuilder:
        """Begin a run of the catalog's jobs."""
        return self.catalog.workflow_dag("test.workflow")

    def enqueue(self, dag: WorkflowDagBuilder) -> UUID:
        """Enqueue a run."""
        return enqueue_workflow_run(self.pool, dag.build()).id

    def status(self, run_id: UUID) -> str:
        """Return the stored status of a run."""
        return self.value("SELECT status::text FROM runledger.workflow_runs WHERE id = %s", run_id)

    def steps(self, run_id: UUID) -> dict[str, str]:
        """Return the stored status of each step by its key."""
        sql = (
            "SELECT step_key, status::text FROM runledger.workflow_steps WHERE workflow_run_id = %s"
        )
        return dict(self._look.execute(sql, [run_id]).fetchall())

    def ended(self, run_id: UUID) -> str:
        """Wait until a run has ended and return its status."""
        self.wait_until(lambda: self.status(run_id) not in {"RUNNING", "WAITING_FOR_EXTERNAL"})
        return self.status(run_id)

    def job_of(self, run_id: UUID, step_key: str) -> UUID:
        """Return the job of a step."""
        sql = """
        SELECT job_id FROM runledger.workflow_steps WHERE workflow_run_id = %s AND step_key = %s
        """
        return self.value(sql, run_id, step_key)

    def value(self, sql: str, *parameters: object) -> Any:
        """Return the first value of a statement."""
        row = self._look.execute(sql, parameters).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]  # of the tests
        return None if row is None else row[0]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail after half a minute."""
        pause = threading.Event()
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            pause.wait(0.01)


@pytest.fixture
def runs(
    runledger_pool: ConnectionPool[Any], runledger_database: TemporaryDatabase
) -> Iterator[Runs]:
    """An empty catalog and database."""
    look = runledger_database.connect_directly(autocommit=True)
    with ExitStack() as stack:
        yield Runs(runledger_pool, runledger_database, look, stack)
