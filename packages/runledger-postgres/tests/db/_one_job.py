"""One job of the type `test.job`, as tests of its reads make and claim it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, JobLease
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import claim_jobs


def enqueue(pool: ConnectionPool[Any], *, organization_id: UUID | None = None) -> UUID:
    return enqueue_job(pool, JobEnqueue("test.job", {}, organization_id=organization_id)).id


def claim(pool: ConnectionPool[Any]) -> JobLease:
    """Claim the only job that is due."""
    (job,) = claim_jobs(
        pool, worker_id="worker", limit=1, lease_ttl_seconds=60, job_types=["test.job"]
    )
    return job.lease
