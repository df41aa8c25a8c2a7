"""The queue as the lifecycle's tests speak of it, and the invariants of its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row, tuple_row
from psycopg.types.string import TextLoader
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, JobLease, Scope
from runledger_postgres import enqueue_jobs, get_job
from runledger_postgres.jobs import list_job_events
from runledger_postgres.lifecycle import ClaimedJob, claim_jobs
from runledger_postgres.wakeup import SLEEP_MARK_CLASS, WAKE_CHANNEL
from runledger_test_support import TemporaryDatabase

TABLES = ("job_queue", "job_attempts", "job_events", "job_dead_letters", "job_logs")

# Every rule returns the jobs that break it.
INVARIANTS = {
    "a lease has an owner, a start and an end, and nothing else has": """
        SELECT id FROM runledger.job_queue
        WHERE (status = 'LEASED') <> ALL (ARRAY[
            worker_id IS NOT NULL, lease_expires_at IS NOT NULL, leased_at IS NOT NULL,
            last_heartbeat_at IS NOT NULL
        ])
    """,
    "only an ended job has an end": """
        SELECT id FROM runledger.job_queue
        WHERE (status NOT IN ('PENDING', 'LEASED')) <> (finished_at IS NOT NULL)
    """,
    "an ended job is not ready": """
        SELECT id FROM runledger.job_queue
        WHERE is_ready AND status NOT IN ('PENDING', 'LEASED')
    """,
    "attempts are within bounds": """
        SELECT id FROM runledger.job_queue
        WHERE NOT (attempt BETWEEN (status = 'LEASED')::int AND least(max_attempts, claim_number))
            OR progressed_claim_number > claim_number
    """,
    "only a success has an output": """
        SELECT id FROM runledger.job_queue WHERE output IS NOT NULL AND status <> 'SUCCEEDED'
    """,
    "a requeue begins each further run": """
        SELECT q.id FROM runledger.job_queue q
        WHERE run_number - 1 <> (
            SELECT count(*) FROM runledger.job_events e
            WHERE e.job_id = q.id AND e.event_type = 'REQUEUED' AND e.payload->>'kind' = 'REQUEUE'
        )
    """,
    "every claim begins once, and ends once unless it runs": """
        SELECT q.id FROM runledger.job_queue q
        WHERE (
            SELECT array_agg(t.claim_number ORDER BY t.claim_number)
            FROM runledger.job_timeline t WHERE t.job_id = q.id AND t.event_type = 'LEASED'
        ) IS DISTINCT FROM (SELECT array_agg(n) FROM generate_series(1, q.claim_number) n)
        OR (
            SELECT array_agg(ended.claim_number ORDER BY ended.claim_number)
            FROM (
                SELECT a.claim_number FROM runledger.job_attempts a WHERE a.job_id = q.id
                UNION ALL
                SELECT e.claim_number FROM runledger.job_events e
                WHERE e.job_id = q.id AND e.payload->>'kind' = 'RELEASE'
            ) ended
        ) IS DISTINCT FROM (
            SELECT array_agg(n)
            FROM generate_series(1, q.claim_number - (q.status = 'LEASED')::int) n
        )
    """,
    "an attempt's outcome has its events": """
        SELECT a.job_id FROM runledger.job_attempts a
        LEFT JOIN LATERAL (
            SELECT array_agg(e.event_type::text ORDER BY e.id) AS types
            FROM runledger.job_events e
            WHERE e.job_id = a.job_id AND e.claim_number = a.claim_number
                AND e.run_number = a.run_number AND e.attempt = a.attempt
                AND e.event_type IN ('RETRY_SCHEDULED', 'DEAD_LETTERED', 'CANCELED')
        ) e ON true
        WHERE CASE
            WHEN a.outcome = 'SUCCEEDED' THEN e.types IS NOT NULL
            WHEN a.outcome = 'CANCELED' THEN e.types IS DISTINCT FROM '{CANCELED}'
            WHEN a.retry_delay_ms IS NULL THEN e.types IS DISTINCT FROM '{DEAD_LETTERED}'
            -- While it waited for its retry it may have been canceled.
            ELSE e.types NOT IN ('{RETRY_SCHEDULED}', '{RETRY_SCHEDULED,CANCELED}')
                OR e.types IS NULL
        END
        OR (a.outcome IN ('SUCCEEDED', 'CANCELED')) <> (a.error_code IS NULL)
        OR a.finished_at < a.leased_at
    """,
    "an ended job ended as its last attempt, or was canceled while it waited": """
        SELECT q.id FROM runledger.job_queue q
        LEFT JOIN runledger.job_attempts a
            ON a.job_id = q.id AND a.claim_number = q.claim_number AND a.run_number = q.run_number
        WHERE CASE q.status
            WHEN 'SUCCEEDED' THEN a.outcome IS DISTINCT FROM 'SUCCEEDED'
            WHEN 'DEAD_LETTERED' THEN a.outcome IN ('SUCCEEDED', 'CANCELED')
                OR a.outcome IS NULL OR a.retry_delay_ms IS NOT NULL
            WHEN 'CANCELED' THEN a.outcome IN ('SUCCEEDED') OR (
                SELECT t.event_type FROM runledger.job_timeline t WHERE t.job_id = q.id
                ORDER BY t.claim_number DESC, t.rank DESC, t.event_id DESC LIMIT 1
            ) <> 'CANCELED'
            ELSE false
        END
    """,
    "a dead letter is kept for each dead-lettered run, the last one": """
        SELECT q.id FROM runledger.job_queue q
        LEFT JOIN runledger.job_dead_letters d ON d.job_id = q.id
        WHERE d.run_number IS DISTINCT FROM (
            SELECT max(e.run_number) FROM runledger.job_events e
            WHERE e.job_id = q.id AND e.event_type = 'DEAD_LETTERED'
        )
    """,
}


class Queue:
    """One test's database with its pool, and short words for what tests do."""

    def __init__(self, database: TemporaryDatabase, pool: ConnectionPool[Any]) -> None:
        self.database = database
        self.pool = pool

    def define(self, *job_types: str) -> None:
        for job_type in job_types:
            self.execute(
                "INSERT INTO runledger.job_definitions (job_type, max_attempts) VALUES (%s, 3)",
                job_type,
            )

    def enqueue(self, count: int = 1, job_type: str = "test.job", **request: Any) -> list[UUID]:
        payload = request.pop("payload", {})
        enqueue = JobEnqueue(job_type, payload, **request)
        return [job.id for job in enqueue_jobs(self.pool, [enqueue] * count)]

    def claim(
        self, limit: int = 1, *, worker_id: str = "worker-1", db: Any = None, **arguments: Any
    ) -> list[ClaimedJob]:
        arguments = {"lease_ttl_seconds": 60, "job_types": ["test.job"]} | arguments
        return claim_jobs(db or self.pool, worker_id=worker_id, limit=limit, **arguments)

    def lease(self, worker_id: str = "worker-1") -> JobLease:
        """Claim the best job."""
        return self.leases(1, worker_id)[0]

    def leases(self, count: int, worker_id: str = "worker-1") -> list[JobLease]:
        """Claim so many jobs."""
        found = [job.lease for job in self.claim(count, worker_id=worker_id)]
        assert len(found) == count
        return found

    def started(self, **request: Any) -> JobLease:
        """Enqueue a job and claim it."""
        (job_id,) = self.enqueue(**request)
        lease = self.lease()
        assert lease.job_id == job_id
        return lease

    def job(self, job_id: UUID) -> Any:
        """Return the job's record; as Any, since a test knows which of its fields are set."""
        record = get_job(self.pool, job_id, scope=Scope.ADMIN)
        assert record is not None
        return record

    def timeline(self, job_id: UUID) -> list[str]:
        events = list_job_events(self.pool, job_id, scope=Scope.ADMIN, limit=1_000)
        return [event.event_type.value for event in events]

    def execute(self, query: str, *params: object) -> None:
        with self.pool.connection() as connection:
            connection.execute(query.encode(), params or None)

    def fetch(self, query: str, *params: object) -> list[dict[str, Any]]:
        with self.pool.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            return cursor.execute(query.encode(), params or None).fetchall()

    def value(self, query: str, *params: object) -> Any:
        """Return the only value of the only row."""
        (row,) = self.fetch(query, *params)
        (value,) = row.values()
        return value

    def image(self) -> dict[str, list[dict[str, Any]]]:
        """Return every row of every table, with its physical place: the least write shows."""
        with self.pool.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            # Some tests store JSON that Python cannot read.
            cursor.adapters.register_loader("jsonb", TextLoader)
            return {
                table: cursor.execute(
                    f"SELECT t.ctid::text, t.* FROM runledger.{table} t ORDER BY t::text".encode()
                ).fetchall()
                for table in TABLES
            }

    def consistency_errors(self) -> dict[str, list[UUID]]:
        """Return the broken invariants, each with the jobs that break it."""
        with self.pool.connection() as connection:
            cursor = connection.cursor(row_factory=tuple_row)
            broken = {
                rule: [row[0] for row in cursor.execute(query.encode()).fetchall()]
                for rule, query in INVARIANTS.items()
            }
        return {rule: jobs for rule, jobs in broken.items() if jobs}

    def until_waiting(self, count: int = 1) -> None:
        """Return as soon as so many sessions wait for a lock."""
        self.until(
            "SELECT count(*) >= %s FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'",
            count,
        )

    def until(self, query: str, *params: object) -> None:
        """Return as soon as the query says so."""
        deadline = time.monotonic() + 20
        while not self.value(query, *params):
            assert time.monotonic() < deadline, query

    @contextmanager
    def asleep(self, *job_types: str) -> Iterator[Callable[[], list[str]]]:
        """Sleep like a worker of these types; the function returns what it was told."""
        with self.listening(WAKE_CHANNEL) as told:
            connection = self.database.connect_directly(autocommit=True)
            for job_type in job_types:
                connection.execute(
                    "SELECT pg_advisory_lock_shared(%s, hashtext(%s))", [SLEEP_MARK_CLASS, job_type]
                )
            yield told
            connection.close()

    @contextmanager
    def listening(self, channel: str) -> Iterator[Callable[[], list[str]]]:
        """Listen for a block; the function returns what was notified since."""
        connection = self.database.connect_directly(autocommit=True)
        connection.execute(f"LISTEN {channel}".encode())

        def told() -> list[str]:
            # Notifications come in the order of commits: this one is the last.
            self.execute(f"NOTIFY {channel}, 'end'")
            heard = []
            for notification in connection.notifies(timeout=20):
                if notification.payload == "end":
                    return heard
                heard.append(notification.payload)
            raise TimeoutError

        yield told
        connection.close()

    @contextmanager
    def held(self, *job_ids: UUID) -> Iterator[psycopg.Connection[Any]]:
        """Let a host's transaction hold the rows of these jobs for a block."""
        connection = self.database.connect()
        connection.execute(
            "SELECT FROM runledger.job_queue WHERE id = ANY (%s) FOR UPDATE", [list(job_ids)]
        )
        yield connection
        connection.rollback()
        connection.close()


@pytest.fixture
def queue(runledger_database, runledger_pool) -> Iterator[Queue]:
    """A queue that knows the type `test.job`; its rows must be consistent after the test."""
    queue = Queue(runledger_database, runledger_pool)
    queue.define("test.job")
    yield queue
    assert queue.consistency_errors() == {}
