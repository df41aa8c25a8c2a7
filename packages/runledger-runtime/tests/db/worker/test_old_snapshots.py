"""Workers while somebody holds an old snapshot, which keeps dead index entries alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobContext, JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, list_workers
from runledger_postgres.lifecycle import ClaimRequest, run_worker_round
from runledger_runtime.worker import _link, _low_mark
from runledger_test_support import TemporaryDatabase

Eventually = Callable[[Callable[[], bool]], None]

DEAD_ENTRIES = 3_000


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[ClaimRequest]:
    """What the workers of a test asked for; any walk of many entries is slow to them."""
    requests: list[ClaimRequest] = []

    def run(connection: Any, *, claim: ClaimRequest | None = None, **outcomes: Any) -> Any:
        result = run_worker_round(connection, claim=claim, **outcomes)
        if claim is not None:
            requests.append(claim)
        return result

    monkeypatch.setattr(_link, "run_worker_round", run)
    monkeypatch.setattr(_low_mark, "_SLOW_SECONDS", 0.0)
    return requests


@contextmanager
def old_snapshot(database: TemporaryDatabase) -> Iterator[None]:
    """Hold a snapshot under which many ready and waiting jobs live and die."""
    holder = database.connect()
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT FROM runledger.job_queue")
    host = database.connect(autocommit=True)
    host.execute(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, next_run_at, is_ready, priority)"
        " SELECT 'jobs.one', 1, now() - interval '1 hour', n %% 2 = 0, 0"
        " FROM generate_series(1, %s) n",
        [2 * DEAD_ENTRIES],
    )
    host.execute("DELETE FROM runledger.job_queue")
    yield
    holder.rollback()
    host.execute("VACUUM runledger.job_queue")


def insert(pool: ConnectionPool[Any], payload: str, values: str) -> None:
    with pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_queue"
            " (job_type, max_attempts, payload, next_run_at, is_ready, priority)"
            f" VALUES ('jobs.one', 1, to_jsonb(%s::text), {values})".encode(),
            [payload],
        )


def test_every_job_runs_wherever_it_sorts(
    runledger_database: TemporaryDatabase,
    runledger_pool: ConnectionPool[Any],
    claims: list[ClaimRequest],
    start_worker: Any,
    eventually: Eventually,
) -> None:
    ran: list[str] = []

    def handler(context: JobContext, payload: Any) -> None:
        ran.append(payload)
        if payload == "again" and context.attempt == 1:
            raise JobFailure.retryable("test.again", "busy")

    with old_snapshot(runledger_database):
        start_worker({"jobs.one": handler}, max_global_concurrency=4)
        eventually(lambda: bool(list_workers(runledger_pool)))
        for number in range(20):
            enqueue_job(runledger_pool, JobEnqueue("jobs.one", f"plain {number}"))
        eventually(lambda: len(ran) == 20 and any(claim.marks for claim in claims))
        eventually(lambda: any(claim.waiting_from for claim in claims))

        insert(runledger_pool, "urgent", "now(), true, 9")
        insert(runledger_pool, "minor", "now(), true, -9")
        insert(runledger_pool, "late", "now() - interval '1 hour', true, 0")
        insert(runledger_pool, "late and waiting", "now() - interval '2 hours', false, 0")
        soon = datetime.now(UTC) + timedelta(milliseconds=300)
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", "soon", next_run_at=soon))
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", "again"))
        eventually(lambda: len(ran) >= 27)

    assert sorted(ran[20:]) == [
        "again", "again", "late", "late and waiting", "minor", "soon", "urgent",
    ]  # fmt: skip
    assert not all(claim.marks for claim in claims[-50:])


def test_claims_begin_at_the_start_again_once_the_snapshot_is_gone(
    runledger_database: TemporaryDatabase,
    runledger_pool: ConnectionPool[Any],
    claims: list[ClaimRequest],
    start_worker: Any,
    eventually: Eventually,
) -> None:
    with old_snapshot(runledger_database):
        start_worker({"jobs.one": lambda _context, _payload: None})
        eventually(lambda: bool(list_workers(runledger_pool)))
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", "first"))
        eventually(lambda: any(claim.marks and claim.waiting_from for claim in claims))

    eventually(lambda: not claims[-1].marks and not claims[-1].waiting_from)
    begun = len(claims)
    eventually(lambda: len(claims) >= begun + 5)
    assert not any(claim.marks or claim.waiting_from for claim in claims[begun + 1 :])
