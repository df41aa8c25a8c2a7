"""Jobs whose claim, or whose becoming ready, a trigger of the host refuses: the others run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import enqueue_jobs, upsert_job_definition
from runledger_runtime.health import LoopState

Until = Callable[[dict[str, list[str]]], None]

REFUSE = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION USING ERRCODE = ''23514''; END';
    CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON runledger.job_queue {mode}
        FOR EACH ROW WHEN (NEW.job_type = 'jobs.bad' AND {condition})
        EXECUTE FUNCTION public.refuse();
"""
STATUSES = """
    SELECT jsonb_object_agg(s.job_type, s.statuses) FROM (
        SELECT q.job_type, jsonb_agg(DISTINCT q.status) AS statuses
        FROM runledger.job_queue AS q GROUP BY q.job_type
    ) AS s
"""
GOOD_ONES_RAN = {"jobs.bad": ["PENDING"], "jobs.good": ["SUCCEEDED"]}
HANDLERS: dict[str, Any] = {"jobs.bad": lambda *_: None, "jobs.good": lambda *_: None}

every_mode = pytest.mark.parametrize(
    "mode", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["at once", "at the commit"]
)


class Queue:
    """A queue with jobs of which the host refuses some, and a worker's log."""

    def __init__(self, pool: ConnectionPool[Any], caplog: pytest.LogCaptureFixture) -> None:
        self._pool = pool
        self._caplog = caplog
        for job_type in HANDLERS:
            upsert_job_definition(pool, JobDefinitionSpec(job_type))

    def refuse(self, condition: str, *, mode: str = "") -> None:
        """Have writes to jobs of the type `jobs.bad` refused."""
        self.execute(REFUSE.format(mode=mode, condition=condition))

    def execute(self, sql: str) -> None:
        with self._pool.connection() as connection:
            connection.execute(sql.encode())

    def enqueue(self, job_type: str, *, count: int = 1, **settings: Any) -> set[str]:
        requests = [JobEnqueue(job_type, {}, **settings)] * count
        return {str(job.id) for job in enqueue_jobs(self._pool, requests)}

    def left_out(self) -> set[str]:
        """Return the jobs that the worker told of."""
        logged = [vars(record).get("job_id") for record in self._caplog.records]
        return {job_id for job_id in logged if job_id is not None}


@pytest.fixture
def until(eventually: Any, look: Any) -> Until:
    """Wait until the jobs of each type have these statuses."""
    return lambda expected: eventually(lambda: look(STATUSES) == expected)


@pytest.fixture
def queue(runledger_pool: ConnectionPool[Any], caplog: pytest.LogCaptureFixture) -> Queue:
    return Queue(runledger_pool, caplog)


@every_mode
@pytest.mark.parametrize("concurrency", [1, 8])
def test_job_that_cannot_be_leased_is_left_out_and_the_others_run(
    queue: Queue, start_worker: Any, until: Until, mode: str, concurrency: int
) -> None:
    queue.refuse("NEW.status = 'LEASED'", mode=mode)
    bad = queue.enqueue("jobs.bad", count=3, priority=9)
    queue.enqueue("jobs.good", count=20)

    worker = start_worker(HANDLERS, max_global_concurrency=concurrency)

    until(GOOD_ONES_RAN)
    assert queue.left_out() == bad
    assert worker.thread.is_alive()


@every_mode
def test_job_that_cannot_become_ready_is_left_out_and_the_others_run(
    queue: Queue, start_worker: Any, until: Until, mode: str
) -> None:
    queue.refuse("NEW.is_ready", mode=mode)
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    bad = queue.enqueue("jobs.bad", count=3, next_run_at=soon)
    queue.enqueue("jobs.good", count=20, next_run_at=soon + timedelta(seconds=0.1))

    start_worker(HANDLERS)

    until(GOOD_ONES_RAN)
    assert queue.left_out() == bad


def test_job_that_was_left_out_is_claimed_when_its_time_is_over(
    queue: Queue, start_worker: Any, until: Until, eventually: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("runledger_runtime.worker._refused_claims._LEFT_OUT_SECONDS", 0.5)
    queue.refuse("NEW.status = 'LEASED'")
    queue.enqueue("jobs.bad")
    worker = start_worker(HANDLERS)
    eventually(lambda: bool(queue.left_out()))
    shown = worker.health.status(LoopState.RUNNING).left_out_jobs
    assert {str(job_id) for job_id in shown} == queue.left_out()

    queue.execute("DROP FUNCTION public.refuse CASCADE")

    until({"jobs.bad": ["SUCCEEDED"]})
    eventually(lambda: not worker.health.status(LoopState.RUNNING).left_out_jobs)
