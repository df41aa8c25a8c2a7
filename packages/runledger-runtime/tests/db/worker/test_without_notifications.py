"""Notifications are hints: with none at all everything works, later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import JobContext, JobEnqueue, JobFailure, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job, list_workers, requeue_job

Eventually = Callable[[Callable[[], bool]], None]


def test_jobs_run_without_notifications(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    ran: list[str] = []

    def handler(context: JobContext, payload: Any) -> None:
        ran.append(payload)
        if payload == "retry" and context.attempt == 1:
            raise JobFailure.retryable("test.again", "busy")

    start_worker({"jobs.one": handler}, poll_interval_ms=50, wakeups=False)
    eventually(lambda: bool(list_workers(runledger_pool)))
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    plain = enqueue_job(runledger_pool, JobEnqueue("jobs.one", "plain"))
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", "retry"))
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", "later", next_run_at=soon))

    eventually(lambda: sorted(ran) == ["later", "plain", "retry", "retry"])

    eventually(lambda: is_done(runledger_pool, plain.id))
    requeue_job(runledger_pool, plain.id, scope=Scope.ADMIN)
    eventually(lambda: ran.count("plain") == 2)


def is_done(pool: ConnectionPool[Any], job_id: UUID) -> bool:
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    return job is not None and job.status is JobStatus.SUCCEEDED
