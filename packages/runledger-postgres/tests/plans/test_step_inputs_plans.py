"""What a step may build on is read by its own edges, whatever is known of the tables."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from runledger_postgres.workflows import get_step_inputs, get_step_key
from runledger_test_support import TemporaryDatabase
from runledger_test_support.databases import temporary_database

from .plan_recorder import PlanMode, PlanRecorder

pytestmark = [pytest.mark.plans, pytest.mark.timeout(600)]

RUNS: Final = 2_000
FAN_IN: Final = 10
TABLES: Final = ("workflow_runs", "workflow_steps", "workflow_step_dependencies", "job_queue")

# Runs of ten steps that have succeeded, and one behind all of them that a worker may have.
FILL: Final = """
    WITH run AS MATERIALIZED (
        SELECT runledger.uuidv7() AS id, n FROM generate_series(1, %(runs)s::int8) AS n
    ), runs AS (
        INSERT INTO runledger.workflow_runs (id, workflow_type, steps_open)
        SELECT r.id, 'plans.run', 1 FROM run AS r
    ), step AS MATERIALIZED (
        SELECT r.id AS run_id, runledger.uuidv7() AS id, runledger.uuidv7() AS job_id, place,
            CASE WHEN place = 0 THEN 'ENQUEUED' ELSE 'SUCCEEDED' END AS status
        FROM run AS r CROSS JOIN generate_series(0, %(fan_in)s::int8) AS place
    ), steps AS (
        INSERT INTO runledger.workflow_steps (
            id, workflow_run_id, step_key, status, job_type, priority, stage, max_attempts,
            timeout_seconds, job_id, finished_at
        )
        SELECT s.id, s.run_id, 'step-' || s.place, s.status::runledger.workflow_step_status,
            'plans.work', 1, 'queued', 1, 900, s.job_id,
            CASE WHEN s.place > 0 THEN now() END
        FROM step AS s
    ), edges AS (
        INSERT INTO runledger.workflow_step_dependencies (
            workflow_run_id, prerequisite_step_id, dependent_step_id
        )
        SELECT s.run_id, s.id, l.id
        FROM step AS s JOIN step AS l ON l.run_id = s.run_id AND l.place = 0
        WHERE s.place > 0
    )
    INSERT INTO runledger.job_queue (
        id, job_type, max_attempts, workflow_run_id, status, is_ready, output, finished_at
    )
    SELECT s.job_id, 'plans.work', 1, s.run_id,
        (CASE WHEN s.place = 0 THEN 'PENDING' ELSE 'SUCCEEDED' END)::runledger.job_status,
        s.place = 0, CASE WHEN s.place > 0 THEN to_jsonb(s.place) END,
        CASE WHEN s.place > 0 THEN now() END
    FROM step AS s
"""
JOIN: Final = """
    SELECT job_id FROM runledger.workflow_steps WHERE step_key = 'step-0' ORDER BY id LIMIT 1
"""


def maintain(connection: psycopg.Connection[Any]) -> None:
    for table in TABLES:
        connection.execute(f"VACUUM ANALYZE runledger.{table}".encode())


def fill(connection: psycopg.Connection[Any], runs: int) -> None:
    connection.execute(FILL, {"runs": runs, "fan_in": FAN_IN})


@pytest.fixture(scope="module", params=["fresh", "never", "when empty", "when small", "refilled"])
def populated(
    request: pytest.FixtureRequest, runledger_server, runledger_template
) -> Generator[TemporaryDatabase]:
    with temporary_database(
        runledger_server, prefix="plans_inputs", template=runledger_template
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
                fill(connection, 3)
                maintain(connection)
            if request.param == "refilled":
                fill(connection, RUNS)
                for table in reversed(TABLES):
                    # The last row keeps the pages of all.
                    connection.execute(
                        f"""
                        DELETE FROM runledger.{table}
                        WHERE ctid <> (SELECT max(ctid) FROM runledger.{table})
                        """.encode()
                    )
                maintain(connection)
            fill(connection, RUNS)
            if request.param == "fresh":
                maintain(connection)
        yield database


def test_step_reads_its_own_prerequisites(populated: TemporaryDatabase, mode: PlanMode):
    with populated.connect() as connection:
        found = connection.execute(JOIN).fetchone()
        assert found is not None
        job_id: UUID = found[0]

        with PlanRecorder(connection).recording(mode) as plans:
            inputs = get_step_inputs(connection, job_id)
        connection.rollback()

    expected = {f"step-{place}": place for place in range(1, FAN_IN + 1)}
    assert inputs.prerequisite_outputs == expected
    (plan,) = plans
    shown = "\n".join(str(scan) for scan in plan.scans() if scan.rows)
    assert plan.sequential_scans() == [], shown
    # The step, and of each edge the edge, its step and its job.
    assert plan.heap_rows() <= 1 + 3 * FAN_IN, shown


def test_key_of_a_step_is_read_by_its_job(populated: TemporaryDatabase, mode: PlanMode):
    with populated.connect() as connection:
        found = connection.execute(JOIN).fetchone()
        assert found is not None

        with PlanRecorder(connection).recording(mode) as plans:
            key = get_step_key(connection, found[0])
        connection.rollback()

    assert key == "step-0"
    (plan,) = plans
    assert plan.sequential_scans() == []
    assert plan.heap_rows() <= 1
