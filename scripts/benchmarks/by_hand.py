"""A queue as a person writes it in an afternoon: one row per job, no history, no fence.

A floor for what durable jobs cost on PostgreSQL, not a product.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from .loops import PAYLOAD, Connection, Loop, Step

SCHEMA: Final = """
CREATE SCHEMA hand;
CREATE TABLE hand.jobs (
    id uuid PRIMARY KEY DEFAULT runledger.uuidv7(),
    job_type text NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    priority int4 NOT NULL DEFAULT 0,
    attempt int4 NOT NULL DEFAULT 0,
    max_attempts int4 NOT NULL DEFAULT 3,
    run_at timestamptz NOT NULL DEFAULT now(),
    worker text,
    lease_expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    last_error text,
    payload jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 85);
CREATE INDEX ON hand.jobs (priority DESC, run_at, id) WHERE status = 'pending';
"""
FILL: Final = """
INSERT INTO hand.jobs (job_type, payload)
SELECT 'bench.noop', jsonb_build_object('customer', 4711, 'text', repeat('x', 171))
FROM generate_series(1, %(rows)s)
"""
INSERT: Final = "INSERT INTO hand.jobs (job_type, payload) VALUES (%s, %s) RETURNING id"
COPY: Final = "COPY hand.jobs (job_type, payload) FROM STDIN"
_TAKE: Final = """
UPDATE hand.jobs SET
    status = 'running', attempt = attempt + 1, worker = 'me',
    lease_expires_at = now() + interval '1 minute'
WHERE id = ANY (ARRAY(
    SELECT id FROM hand.jobs
    WHERE status = 'pending' AND run_at <= now()
    ORDER BY priority DESC, run_at, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING id, payload
"""
_FINISH: Final = """
UPDATE hand.jobs SET
    status = 'done', finished_at = now(), worker = NULL, lease_expires_at = NULL
WHERE id = ANY (%(ids)s)
"""
# A job's end and the next one's start share a commit. The end comes first: taking also locks rows
# that another connection took meanwhile, and two that did so would wait for each other.
_DUE: Final = "run_at <= now()"
_FINISH_AND_TAKE: Final = f"WITH finished AS ({_FINISH} RETURNING id) " + _TAKE.replace(
    _DUE, f"{_DUE} AND (SELECT count(*) FROM finished) >= 0"
)
_CHANNEL: Final = "hand_jobs"


def enqueue_one(dsn: str) -> Loop:
    """Insert job after job, each with its own commit."""

    @contextmanager
    def open_step() -> Generator[Step]:
        with psycopg.connect(dsn, autocommit=True) as connection:

            def step() -> int:
                connection.execute(INSERT, ["bench.noop", Jsonb(PAYLOAD)]).fetchone()
                return 1

            yield step

    return Loop(open_step)


def enqueue_many(dsn: str, *, batch: int) -> Loop:
    """Copy batch after batch."""

    @contextmanager
    def open_step() -> Generator[Step]:
        with psycopg.connect(dsn, autocommit=True) as connection:

            def step() -> int:
                with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                    for _ in range(batch):
                        copy.write_row(("bench.noop", json.dumps(PAYLOAD)))
                return batch

            yield step

    return Loop(open_step)


def drain(dsn: str, *, batch: int, connections: int = 1) -> Loop:
    """Take and finish jobs; single ones finish with the next one's start."""

    @contextmanager
    def open_step() -> Generator[Step]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield _batches(connection, batch) if batch > 1 else _singles(connection)

    return Loop(open_step, threads=connections)


def _batches(connection: Connection, batch: int) -> Step:
    def step() -> int:
        taken = connection.execute(_TAKE, {"limit": batch}).fetchall()
        connection.execute(_FINISH, {"ids": [row[0] for row in taken]})
        return len(taken)

    return step


def _singles(connection: Connection) -> Step:
    finished: list[UUID] = []

    def step() -> int:
        taken = connection.execute(_FINISH_AND_TAKE, {"ids": finished, "limit": 1}).fetchall()
        finished[:] = [row[0] for row in taken]
        return len(taken)

    return step


class Listener:
    """A worker that waits for notifications and runs job after job."""

    def __init__(self, dsn: str) -> None:
        """Take the database's URL."""
        self._dsn = dsn
        self._started: dict[str, float] = {}
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._ready.wait()

    def progress(self) -> tuple[int, float | None]:
        """Return how many jobs were run."""
        return len(self._started), None

    def stop(self) -> Mapping[str, float]:
        """End; return when each job began."""
        self._stop.set()
        self._thread.join()
        return self._started

    def _run(self) -> None:
        with (
            psycopg.connect(self._dsn, autocommit=True) as listener,
            psycopg.connect(self._dsn, autocommit=True) as connection,
        ):
            listener.execute(f"LISTEN {_CHANNEL}")
            self._ready.set()
            while not self._stop.is_set():
                for _ in listener.notifies(timeout=0.5, stop_after=1):
                    while taken := connection.execute(_TAKE, {"limit": 1}).fetchall():
                        self._started[str(taken[0][0])] = time.monotonic()
                        connection.execute(_FINISH, {"ids": [taken[0][0]]})


def insert_and_notify(connection: Connection) -> UUID:
    """Insert a job and tell the listener, in the connection's transaction."""
    row = connection.execute(INSERT, ["bench.noop", Jsonb(PAYLOAD)]).fetchone()
    connection.execute(f"NOTIFY {_CHANNEL}")
    if row is None:
        raise RuntimeError("nothing was inserted")
    return row[0]
