"""The end of steps reads its own runs, steps and edges, whatever is known of the tables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import psycopg
import pytest

from runledger_core import JobCompletion, JobFailure, JobLease, Scope
from runledger_postgres.lifecycle import (
    FailureEntry,
    SuccessEntry,
    cancel_jobs,
    complete_jobs,
    fail_jobs,
    reap_expired_leases,
)
from runledger_test_support import TemporaryDatabase
from runledger_test_support.databases import temporary_database

from .plan_recorder import PlanMode, PlanRecorder

pytestmark = [pytest.mark.plans, pytest.mark.timeout(600)]

Act = Callable[[psycopg.Connection[Any], Sequence[JobLease]], object]

RUNS: Final = 5_000
BATCH: Final = 20
TABLES: Final = ("workflow_runs", "workflow_steps", "workflow_step_dependencies", "job_queue")
TERMINAL: Final = JobFailure.terminal("plans.failed", "failed")

# Runs of one step that has a job, and two that wait for it; as many jobs of no workflow.
FILL: Final = """
    WITH run AS MATERIALIZED (
        SELECT runledger.uuidv7() AS id, runledger.uuidv7() AS job_id, runledger.uuidv7() AS first,
            ARRAY[runledger.uuidv7(), runledger.uuidv7()] AS others
        FROM generate_series(1, %(runs)s::int8)
    ), runs AS (
        INSERT INTO runledger.workflow_runs (id, workflow_type, steps_open)
        SELECT r.id, 'plans.run', 3 FROM run AS r
    ), steps AS (
        INSERT INTO runledger.workflow_steps (
            id, workflow_run_id, step_key, status, job_type, priority, stage, max_attempts,
            timeout_seconds, job_id, payload, dependency_count_total, dependency_count_pending
        )
        SELECT
            o.id, r.id, 'step-' || o.place,
            (CASE WHEN o.place = 1 THEN 'ENQUEUED' ELSE 'BLOCKED' END)
                ::runledger.workflow_step_status,
            'plans.work', 1, 'queued', 1, 900,
            CASE WHEN o.place = 1 THEN r.job_id END, CASE WHEN o.place > 1 THEN '{}'::jsonb END,
            (o.place > 1)::int4, (o.place > 1)::int4
        FROM run AS r CROSS JOIN unnest(r.first || r.others) WITH ORDINALITY AS o(id, place)
    ), edges AS (
        INSERT INTO runledger.workflow_step_dependencies (
            workflow_run_id, prerequisite_step_id, dependent_step_id, release_mode
        )
        SELECT r.id, r.first, o.id, 'ON_SUCCESS'
        FROM run AS r CROSS JOIN unnest(r.others) AS o(id)
    ), direct AS (
        INSERT INTO runledger.job_queue (job_type, max_attempts)
        SELECT 'plans.work', 1 FROM run AS r
    )
    INSERT INTO runledger.job_queue (id, job_type, max_attempts, workflow_run_id)
    SELECT r.job_id, 'plans.work', 1, r.id FROM run AS r
"""
LEASE: Final = """
    UPDATE runledger.job_queue
    SET status = 'LEASED', attempt = 1, claim_number = 1, worker_id = 'worker-1',
        leased_at = now(), last_heartbeat_at = now(),
        lease_expires_at = clock_timestamp() + %s * interval '1 hour'
    WHERE id = ANY (ARRAY(
        SELECT q.id FROM runledger.job_queue AS q
        WHERE q.workflow_run_id IS NOT NULL ORDER BY q.id DESC LIMIT %s
    ))
    RETURNING id
"""
ENDS: Final[dict[str, Act]] = {
    "successes": lambda db, leases: complete_jobs(
        db, [SuccessEntry(lease, JobCompletion(1)) for lease in leases]
    ),
    "failures": lambda db, leases: fail_jobs(
        db, [FailureEntry(lease, TERMINAL) for lease in leases]
    ),
    "cancels": lambda db, leases: cancel_jobs(
        db, [lease.job_id for lease in leases], scope=Scope.ADMIN
    ),
    "reap": lambda db, _: reap_expired_leases(db, limit=BATCH, retry_delay_ms=1),
}


def maintain(connection: psycopg.Connection[Any]) -> None:
    for table in TABLES:
        connection.execute(f"VACUUM ANALYZE runledger.{table}".encode())


@pytest.fixture(scope="module", params=["fresh", "never", "when empty", "when small", "refilled"])
def populated(
    request: pytest.FixtureRequest, runledger_server, runledger_template
) -> Generator[TemporaryDatabase]:
    with temporary_database(
        runledger_server, prefix="plans_settle", template=runledger_template
    ) as database:
        with database.connect(autocommit=True) as connection:
            for table in TABLES:
                connection.execute(
                    f"ALTER TABLE runledger.{table} SET (autovacuum_enabled = false)".encode()
                )
            connection.execute("INSERT INTO runledger.job_definitions VALUES ('plans.work')")
            if request.param == "when empty":
                maintain(connection)
            if request.param == "when small":
                connection.execute(FILL, {"runs": 20})
                maintain(connection)
            if request.param == "refilled":
                connection.execute(FILL, {"runs": RUNS})
                for table in reversed(TABLES):
                    # The last row keeps the pages of all.
                    connection.execute(
                        f"""
                        DELETE FROM runledger.{table}
                        WHERE ctid <> (SELECT max(ctid) FROM runledger.{table})
                        """.encode()
                    )
                maintain(connection)
            connection.execute(FILL, {"runs": RUNS})
            if request.param == "fresh":
                maintain(connection)
        yield database


@pytest.fixture
def recorder(populated: TemporaryDatabase) -> Generator[PlanRecorder]:
    with populated.connect() as connection:
        yield PlanRecorder(connection)
        connection.rollback()


@pytest.mark.parametrize("name", ENDS)
def test_end_of_steps_reads_its_own_rows(recorder: PlanRecorder, mode: PlanMode, name: str):
    hours = -1 if name == "reap" else 1
    leased = recorder.connection.execute(LEASE, [hours, BATCH]).fetchall()
    leases = [
        JobLease(job_id, 1, attempt=1, claim_number=1, worker_id="worker-1") for (job_id,) in leased
    ]

    with recorder.recording(mode) as plans:
        ENDS[name](recorder.connection, leases)

    ended = recorder.connection.execute(
        "SELECT count(*)::int4 FROM runledger.workflow_steps"
        " WHERE step_key = 'step-1' AND status <> 'ENQUEUED'"
    ).fetchone()
    assert ended == (BATCH,)
    for plan in plans:
        shown = "\n".join(str(scan) for scan in plan.scans() if scan.rows)
        assert plan.sequential_scans() == [], shown
        # A step has two that wait for it; each is read to be judged, and once more to be written.
        assert plan.heap_rows() <= 10 * BATCH, shown
