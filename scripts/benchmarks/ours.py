"""Runledger at work: producers, rounds without handlers, and a real worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobContext, JobEnqueue, JsonValue
from runledger_postgres import connect_pool, enqueue_job, enqueue_jobs
from runledger_postgres.lifecycle import SuccessEntry, claim_jobs, complete_jobs
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

from .loops import PAYLOAD, Connection, Loop, Step

JOB_TYPE: Final = "bench.noop"
OTHER_JOB_TYPE: Final = "bench.other"
_TENTHS: Final = 10
_BEGIN_SECONDS: Final = 60
_COUNT_SUCCEEDED: Final = (
    "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED' AND job_type = %s"
)


def enqueue_one(dsn: str, *, threads: int = 1) -> Loop:
    """Enqueue job after job through a pool, each in its own transaction."""
    pool = connect_pool(dsn, min_size=threads, max_size=threads)
    pool.wait()

    @contextmanager
    def open_step() -> Generator[Step]:
        def step() -> int:
            enqueue_job(pool, JobEnqueue(JOB_TYPE, PAYLOAD))
            return 1

        yield step

    return Loop(open_step, threads=threads)


def enqueue_many(dsn: str, *, batch: int) -> Loop:
    """Enqueue batch after batch through a pool."""

    @contextmanager
    def open_step() -> Generator[Step]:
        with connect_pool(dsn) as pool:

            def step() -> int:
                enqueue_jobs(pool, [JobEnqueue(JOB_TYPE, PAYLOAD) for _ in range(batch)])
                return batch

            yield step

    return Loop(open_step)


def rounds(dsn: str, *, batch: int) -> Loop:
    """Claim and complete batch after batch, without handlers."""

    @contextmanager
    def open_step() -> Generator[Step]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield _round(connection, batch)

    return Loop(open_step)


def _round(connection: Connection, batch: int) -> Step:
    completion = JobCompletion.success()

    def step() -> int:
        jobs = claim_jobs(
            connection,
            worker_id="rounds",
            limit=batch,
            lease_ttl_seconds=60,
            job_types=[JOB_TYPE],
        )
        complete_jobs(connection, [SuccessEntry(job.lease, completion) for job in jobs])
        return len(jobs)

    return step


class Worker:
    """A Supervisor whose handlers do nothing but count.

    At the end it tells when the first job started, each tenth of the rows and, if asked, every job.
    """

    def __init__(
        self,
        dsn: str,
        *,
        concurrency: int,
        rows: int = 0,
        job_type: str = JOB_TYPE,
        wakeups: bool = True,
        tells_starts: bool = False,
    ) -> None:
        """Take settings; nothing runs yet.

        Args:
            dsn: The database's URL.
            concurrency: Handlers at once.
            rows: Jobs that wait; after so many nothing is left. 0 if more come for ever.
            job_type: What it runs.
            wakeups: As of `JobsConfig`.
            tells_starts: Whether the start of each job is wanted.
        """
        self._dsn = dsn
        self._rows = rows
        self._job_type = job_type
        self._config = JobsConfig(
            "bench", max_global_concurrency=concurrency, claim_batch_size=100, wakeups=wakeups
        )
        self._instants: dict[str, float] = {}
        self._tells_starts = tells_starts
        self._lock = threading.Lock()
        self._done = 0
        self._last_at = 0.0
        self._began = threading.Event()
        self._pool: ConnectionPool[Any] = connect_pool(dsn)
        self._supervisor: Supervisor | None = None

    def start(self) -> None:
        """Start the Supervisor; wait for the first job if some wait."""
        self._pool.wait()
        handler = self._run_and_tell if self._tells_starts else self._run
        catalog = JobCatalog().job(self._job_type, handler)
        self._supervisor = (
            Supervisor.builder(self._pool, self._config).with_catalog(catalog).build()
        )
        if self._rows and not self._began.wait(_BEGIN_SECONDS):
            raise RuntimeError("the worker has not begun; its log is above")

    def progress(self) -> tuple[int, float | None]:
        """Return how many jobs were run, and when the last was if it was the last."""
        with self._lock:
            return self._done, self._last_at if 0 < self._rows <= self._done else None

    def stop(self) -> Mapping[str, float]:
        """Stop the Supervisor; return when things happened."""
        if self._supervisor is not None:
            self._supervisor.shutdown_with_timeout(30)
        self._check()
        self._pool.close()
        return self._instants

    def _run(self, context: JobContext, payload: JsonValue) -> None:
        del context, payload
        now = time.monotonic()
        with self._lock:
            self._done += 1
            self._last_at = now
            if self._done == 1:
                self._instants["first"] = now
                self._began.set()
            if self._rows and self._done * _TENTHS % self._rows == 0:
                self._instants[f"tenth {self._done * _TENTHS // self._rows}"] = now

    def _run_and_tell(self, context: JobContext, payload: JsonValue) -> None:
        self._instants[str(context.job_id)] = time.monotonic()
        self._run(context, payload)

    def _check(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute(_COUNT_SUCCEEDED, [self._job_type]).fetchone()
        if row is None or row[0] < self._done:
            message = f"{self._done} jobs were run, but {row} are stored"
            raise RuntimeError(message)


class Trickle:
    """A producer that commits one job now and then, and remembers when."""

    def __init__(self, dsn: str, insert: Callable[[Connection], UUID]) -> None:
        """Take what inserts a job in the transaction of a connection."""
        self._dsn = dsn
        self._insert = insert
        self._committed: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def progress(self) -> tuple[int, float | None]:
        """Return how many jobs were committed."""
        return len(self._committed), None

    def stop(self) -> Mapping[str, float]:
        """End; return when each COMMIT was sent."""
        self._stop.set()
        self._thread.join()
        return self._committed

    def _run(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            number = 0
            # Between 50 and 150 ms, no two alike in a row: long enough to fall asleep in between.
            while not self._stop.wait(0.05 + number * 37 % 100 / 1000):
                number += 1
                job_id = self._insert(connection)
                sent_at = time.monotonic()
                connection.commit()
                self._committed[str(job_id)] = sent_at


def enqueue_in_transaction(connection: Connection) -> UUID:
    """Enqueue a job in the connection's transaction."""
    return enqueue_job(connection, JobEnqueue(JOB_TYPE, PAYLOAD)).id


class OldSnapshot:
    """A transaction that holds its snapshot, and with it every dead row."""

    def __init__(self, dsn: str) -> None:
        """Take the database's URL."""
        self._connection = psycopg.connect(dsn)

    def start(self) -> None:
        """Take the snapshot."""
        self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._connection.execute("SELECT count(*) FROM runledger.job_definitions")

    def progress(self) -> tuple[int, float | None]:
        """Return nothing: it does no job."""
        return 0, None

    def stop(self) -> Mapping[str, float]:
        """Let it go."""
        self._connection.close()
        return {}
