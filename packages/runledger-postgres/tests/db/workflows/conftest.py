"""Runs as the tests of workflows speak of them, and the invariants of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobFailure, JsonValue, Scope
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue
from runledger_postgres.lifecycle import (
    ClaimedJob,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    verify_workflow_runs,
)
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_test_support import TemporaryDatabase

JOB_TYPE = "test.job"

# Every rule returns the runs or steps that break it.
INVARIANTS = {
    "counters of a run are those of its steps": """
        SELECT w.id FROM runledger.workflow_runs w
        JOIN LATERAL (
            SELECT
                count(*) FILTER (WHERE s.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')) AS open,
                count(*) FILTER (WHERE s.status = 'WAITING_FOR_EXTERNAL') AS waiting,
                count(*) FILTER (WHERE s.status = 'FAILED') AS failed,
                count(*) FILTER (WHERE s.status = 'CANCELED') AS canceled
            FROM runledger.workflow_steps s WHERE s.workflow_run_id = w.id
        ) c ON true
        WHERE (w.steps_open, w.steps_waiting_external, w.steps_failed, w.steps_canceled)
            <> (c.open, c.waiting, c.failed, c.canceled)
    """,
    "the status of a run follows from its counters": """
        SELECT id FROM runledger.workflow_runs
        WHERE status <> 'CANCELED' AND status::text <> CASE
            WHEN steps_open > steps_waiting_external THEN 'RUNNING'
            WHEN steps_open > 0 THEN 'WAITING_FOR_EXTERNAL'
            WHEN steps_failed + steps_canceled > 0 THEN 'COMPLETED_WITH_ERRORS'
            ELSE 'SUCCEEDED'
        END
    """,
    "only an ended run has an end, and no open step": """
        SELECT id FROM runledger.workflow_runs
        WHERE (status IN ('SUCCEEDED', 'COMPLETED_WITH_ERRORS', 'CANCELED'))
            <> ALL (ARRAY[finished_at IS NOT NULL, steps_open = 0])
    """,
    "counters of a step are those of its edges": """
        SELECT s.id FROM runledger.workflow_steps s
        JOIN LATERAL (
            SELECT
                count(*) AS total,
                count(*) FILTER (WHERE p.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED'))
                    AS pending,
                count(*) FILTER (
                    WHERE e.release_mode = 'ON_SUCCESS' AND p.status IN ('FAILED', 'CANCELED')
                ) AS unsatisfied
            FROM runledger.workflow_step_dependencies e
            JOIN runledger.workflow_steps p ON p.id = e.prerequisite_step_id
            WHERE e.dependent_step_id = s.id
        ) c ON true
        JOIN runledger.workflow_runs w ON w.id = s.workflow_run_id
        WHERE w.status <> 'CANCELED'
            AND (s.dependency_count_total, s.dependency_count_pending,
                s.dependency_count_unsatisfied) <> (c.total, c.pending, c.unsatisfied)
    """,
    "a step waits exactly while a prerequisite has not ended": """
        SELECT s.id FROM runledger.workflow_steps s
        JOIN runledger.workflow_runs w ON w.id = s.workflow_run_id
        WHERE w.status <> 'CANCELED' AND (s.status = 'BLOCKED') <> (dependency_count_pending > 0)
    """,
    "a released job step has one job, whose state is the step's": """
        SELECT s.id FROM runledger.workflow_steps s
        LEFT JOIN runledger.job_queue q ON q.id = s.job_id
        WHERE s.job_id IS NOT NULL AND (
            q.id IS NULL OR q.workflow_run_id <> s.workflow_run_id
            OR s.status::text <> CASE q.status
                WHEN 'SUCCEEDED' THEN 'SUCCEEDED'
                WHEN 'DEAD_LETTERED' THEN 'FAILED'
                WHEN 'CANCELED' THEN 'CANCELED'
                ELSE 'ENQUEUED'
            END
        )
    """,
    "only an ended step has an end": """
        SELECT id FROM runledger.workflow_steps
        WHERE (status IN ('SUCCEEDED', 'FAILED', 'CANCELED')) <> (finished_at IS NOT NULL)
    """,
    "a job of a run belongs to one step": """
        SELECT q.id FROM runledger.job_queue q
        WHERE q.workflow_run_id IS NOT NULL
            AND (SELECT count(*) FROM runledger.workflow_steps s WHERE s.job_id = q.id) <> 1
    """,
}


def broken_invariants(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the rules that some row breaks."""
    return [rule for rule, sql in INVARIANTS.items() if connection.execute(sql).fetchone()]  # pyright: ignore[reportArgumentType, reportCallIssue]  # constants above


class Workflows:
    """A database with one job type, an outsider's view, and a worker driven by hand."""

    def __init__(
        self, pool: ConnectionPool[Any], database: TemporaryDatabase, look: psycopg.Connection[Any]
    ) -> None:
        self.pool = pool
        self.database = database
        self.look = look

    def enqueue(self, request: WorkflowRunEnqueue) -> UUID:
        """Enqueue a run."""
        return enqueue_workflow_run(self.pool, request).id

    def enqueue_jobs(
        self,
        edges: Mapping[str, Mapping[str, str]] | Mapping[str, list[str]],
        *,
        gates: tuple[str, ...] = (),
    ) -> UUID:
        """Enqueue a run of steps by their prerequisites: a list succeeds, a mapping has modes."""
        builder = WorkflowDagBuilder("test.workflow", {})
        for key in edges:
            builder = builder.external(key, {}) if key in gates else builder.job(key, JOB_TYPE, {})
        for key, needed in edges.items():
            for prerequisite in needed:
                mode = needed[prerequisite] if isinstance(needed, Mapping) else "success"
                wait = builder.after_success if mode == "success" else builder.after_terminal
                builder = wait(key, [prerequisite])
        return self.enqueue(builder.build())

    def claim(self, limit: int = 100, *, worker_id: str = "worker") -> dict[str, ClaimedJob]:
        """Claim what is due; return the jobs by their step's key."""
        jobs = claim_jobs(self.pool, worker_id=worker_id, limit=limit, lease_ttl_seconds=60)
        return {self.key_of(job.id): job for job in jobs}

    def succeed(self, job: ClaimedJob, output: JsonValue = None) -> None:
        """End a claimed job in success."""
        complete_job_success(self.pool, job.lease, JobCompletion(output=output))

    def fail(self, job: ClaimedJob) -> None:
        """Dead-letter a claimed job."""
        complete_job_failure(self.pool, job.lease, JobFailure.terminal("test.failed", "no"))

    def key_of(self, job_id: UUID) -> str:
        """Return the key of a job's step."""
        return self.value("SELECT step_key FROM runledger.workflow_steps WHERE job_id = %s", job_id)

    def steps(self, run_id: UUID) -> dict[str, str]:
        """Return the stored status of each step by its key."""
        sql = """
        SELECT step_key, status::text FROM runledger.workflow_steps
        WHERE workflow_run_id = %s ORDER BY step_key
        """
        return dict(self.look.execute(sql, [run_id]).fetchall())

    def status(self, run_id: UUID) -> str:
        """Return the stored status of a run."""
        return self.value("SELECT status::text FROM runledger.workflow_runs WHERE id = %s", run_id)

    def value(self, sql: str, *parameters: object) -> Any:
        """Return the first value of a statement."""
        row = self.look.execute(sql, parameters).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]  # of the tests
        return None if row is None else row[0]


@pytest.fixture
def workflows(
    runledger_pool: ConnectionPool[Any], runledger_database: TemporaryDatabase
) -> Iterator[Workflows]:
    """An empty database; at the end no invariant may be broken, as we and the product see it."""
    look = runledger_database.connect(autocommit=True)
    look.execute("INSERT INTO runledger.job_definitions (job_type) VALUES (%s)", [JOB_TYPE])
    yield Workflows(runledger_pool, runledger_database, look)
    assert broken_invariants(look) == []
    assert verify_workflow_runs(runledger_pool, scope=Scope.ADMIN) == []
