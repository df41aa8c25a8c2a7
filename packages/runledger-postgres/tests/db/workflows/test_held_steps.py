"""A host that holds a row of a step, on purpose or by a foreign key, costs its own run only."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from runledger_core import JobCompletion, JobEnqueue
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    RoundResult,
    SuccessEntry,
    WriteVerdict,
    claim_jobs,
    reap_expired_leases,
    run_worker_round,
)

from .conftest import JOB_TYPE, Workflows

BUSY, STORED = WriteVerdict.BUSY, WriteVerdict.STORED
REFERENCE = """
CREATE TABLE public.notes (step_id uuid REFERENCES runledger.workflow_steps (id))
"""
HOLDS = {
    "lock": "SELECT 1 FROM runledger.workflow_steps WHERE step_key = 'held' FOR UPDATE",
    "reference": """
        INSERT INTO public.notes
        SELECT id FROM runledger.workflow_steps WHERE step_key = 'held'
    """,
}


@pytest.fixture(params=HOLDS)
def host(workflows: Workflows, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A session that holds the step `held` of the first of two runs."""
    workflows.look.execute(REFERENCE)
    for key in ("held", "free"):
        dag = WorkflowDagBuilder("test.workflow", {}).job("first", JOB_TYPE, {})
        workflows.enqueue(dag.job(key, JOB_TYPE, {}, after_terminal=["first"]).build())
    enqueue_job(workflows.pool, JobEnqueue(JOB_TYPE, {}))
    host = workflows.database.connect()
    host.execute(HOLDS[request.param].encode())
    yield host
    host.rollback()
    workflows.look.execute("DROP TABLE public.notes")


def claimed(workflows: Workflows) -> list[ClaimedJob]:
    jobs = claim_jobs(workflows.pool, worker_id="worker", limit=3, lease_ttl_seconds=60)
    # In the order of the enqueues.
    return sorted(jobs, key=lambda job: job.id)


def round_of(workflows: Workflows, jobs: list[ClaimedJob]) -> RoundResult:
    with workflows.database.connect(autocommit=True) as connection:
        return run_worker_round(
            connection,
            successes=[SuccessEntry(job.lease, JobCompletion()) for job in jobs],
            claim=ClaimRequest("worker", [JOB_TYPE], limit=9, window=9, lease_ttl_seconds=60),
            in_workflows=True,
        )


def test_round_stores_what_is_not_of_its_run_and_claims(
    workflows: Workflows, host: psycopg.Connection
):
    jobs = claimed(workflows)

    result = round_of(workflows, jobs)
    released = round_of(workflows, []).claimed
    host.rollback()
    again = round_of(workflows, jobs[:1])

    assert [outcome.verdict for outcome in result.successes] == [BUSY, STORED, STORED]
    assert [workflows.key_of(job.id) for job in (*result.claimed, *released)] == ["free"]
    assert [outcome.verdict for outcome in again.successes] == [STORED]
    assert [workflows.key_of(job.id) for job in again.claimed] == ["held"]


def test_reaper_ends_the_other_leases(workflows: Workflows, host: psycopg.Connection):
    jobs = claimed(workflows)
    workflows.look.execute(
        "UPDATE runledger.job_queue SET max_attempts = 1,"
        " lease_expires_at = clock_timestamp() - interval '1 second' WHERE status = 'LEASED'"
    )

    result = reap_expired_leases(workflows.pool, limit=10, retry_delay_ms=1)

    assert {reaped.lease.job_id for reaped in result.reaped} == {job.id for job in jobs[1:]}
    assert [deferred.job_id for deferred in result.deferred] == [jobs[0].id]
    host.rollback()
    (last,) = reap_expired_leases(workflows.pool, limit=10, retry_delay_ms=1).reaped
    assert last.lease.job_id == jobs[0].id
