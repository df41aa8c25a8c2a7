"""Workers at work on runs: many small ones, so many of them open at once, or a large one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import JobContext, JsonValue
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue
from runledger_postgres import connect_pool
from runledger_postgres.workflows import enqueue_workflow_run, enqueue_workflow_runs
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

from .graphs import GRAPHS, Graph, chains
from .loops import PAYLOAD
from .ours import JOB_TYPE, OTHER_JOB_TYPE, Worker

_START_SECONDS: Final = 60
_LOOK_SECONDS: Final = 0.01
_COUNT_WORKERS: Final = "SELECT count(*) FROM runledger.job_workers"
_COUNT_OPEN: Final = "SELECT count(*) FROM runledger.workflow_runs WHERE finished_at IS NULL"
_COUNT_STEPS: Final = """
SELECT count(*) FROM runledger.workflow_steps WHERE status = 'SUCCEEDED'
"""


def request_of(graph: Graph, *, last_type: str = OTHER_JOB_TYPE) -> WorkflowRunEnqueue:
    """Return a run of a graph; its last step may have a type that tells it apart."""
    builder = WorkflowDagBuilder("bench.workflow", {})
    for place, needed in enumerate(graph):
        job_type = last_type if place == len(graph) - 1 else JOB_TYPE
        before = [str(other) for other in needed]
        builder = builder.job(str(place), job_type, PAYLOAD, after_success=before)
    return builder.build()


class Flow:
    """A Supervisor, and a thread that begins a run for each that ends; counts steps."""

    def __init__(self, dsn: str, *, graph: str, open_runs: int, concurrency: int) -> None:
        """Take settings; nothing runs yet.

        Args:
            dsn: The database's URL.
            graph: One of GRAPHS.
            open_runs: Runs at once.
            concurrency: Handlers at once.
        """
        self._dsn = dsn
        self._request = request_of(GRAPHS[graph]())
        self._config = JobsConfig("bench", max_global_concurrency=concurrency, claim_batch_size=100)
        self._lock = threading.Lock()
        self._done = 0
        self._is_over = False
        self._has_ended_one = threading.Event()
        # How many runs to begin; None to end.
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._wanted.put(open_runs)
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._pool: ConnectionPool[Any] = connect_pool(dsn)
        self._supervisor: Supervisor | None = None

    def start(self) -> None:
        """Start the Supervisor, then the first runs; wait until one has ended."""
        self._pool.wait()
        catalog = JobCatalog().job(JOB_TYPE, self._run).job(OTHER_JOB_TYPE, self._run_last)
        self._supervisor = (
            Supervisor.builder(self._pool, self._config).with_catalog(catalog).build()
        )
        self._feeder.start()
        if not self._has_ended_one.wait(_START_SECONDS):
            raise RuntimeError("no run has ended; the worker's log is above")

    def progress(self) -> tuple[int, float | None]:
        """Return how many steps were run."""
        if not self._feeder.is_alive() and not self._is_over:
            raise RuntimeError("runs could not be enqueued; the error is above")
        return self._done, None

    def stop(self) -> Mapping[str, float]:
        """Stop the Supervisor and check that what was run is stored."""
        done, _ = self.progress()
        if self._supervisor is not None:
            self._supervisor.shutdown_with_timeout(30)
        self._is_over = True
        self._wanted.put(None)
        self._feeder.join()
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute(_COUNT_STEPS).fetchone()
        if row is None or row[0] < done:
            message = f"{done} steps were run, but {row} are stored"
            raise RuntimeError(message)
        self._pool.close()
        return {}

    def _run(self, context: JobContext, payload: JsonValue) -> None:
        del context, payload
        with self._lock:
            self._done += 1

    def _run_last(self, context: JobContext, payload: JsonValue) -> None:
        self._run(context, payload)
        self._has_ended_one.set()
        self._wanted.put(1)

    def _feed(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while (wanted := self._wanted.get()) is not None:
                # Runs that end together are followed by runs that begin together.
                while not self._wanted.empty():
                    more = self._wanted.get()
                    if more is None:
                        return
                    wanted += more
                enqueue_workflow_runs(connection, [self._request] * wanted)
                connection.commit()


class OneRun(Worker):
    """One of some workers that share a large run; the last one enqueues it when all are there."""

    def __init__(self, dsn: str, *, concurrency: int, steps: int, workers: int) -> None:
        """Take settings; nothing runs yet.

        Args:
            dsn: The database's URL.
            concurrency: Handlers at once.
            steps: Of the run, if this one enqueues it; else 0.
            workers: How many there will be.
        """
        super().__init__(dsn, concurrency=concurrency)
        self._steps = steps
        self._workers = workers
        self._look = psycopg.connect(dsn, autocommit=True)

    def start(self) -> None:
        """Start the Supervisor; wait for the first step."""
        super().start()
        if self._steps:
            graph = request_of(chains(self._steps), last_type=JOB_TYPE)
            deadline = time.monotonic() + _START_SECONDS
            while self._count(_COUNT_WORKERS) < self._workers and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            enqueue_workflow_run(self._look, graph)
        if not self._began.wait(_START_SECONDS):
            raise RuntimeError("the worker has not begun; its log is above")

    def progress(self) -> tuple[int, float | None]:
        """Return how many steps this worker has run, and when the last was if all are over."""
        done, _ = super().progress()
        return done, None if self._count(_COUNT_OPEN) else self._last_at

    def _count(self, statement: Any) -> int:
        row = self._look.execute(statement).fetchone()
        return int(row[0]) if row else 0
