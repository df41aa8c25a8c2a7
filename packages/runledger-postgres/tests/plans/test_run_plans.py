"""A page, a bounded count or one row of workflow runs reads its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from runledger_core import Scope
from runledger_core.workflows import WorkflowRunStatus
from runledger_postgres.admin import (
    WorkflowRunFilter,
    count_workflow_runs_bounded,
    count_workflow_runs_by_status_bounded,
    list_workflow_runs,
)
from runledger_postgres.workflows import (
    WorkflowStepDependencyCursor,
    get_workflow_run,
    get_workflow_run_by_type_and_idempotency_key,
    get_workflow_run_id_for_job,
    get_workflow_step,
    list_workflow_step_dependencies,
    list_workflow_steps,
)
from runledger_test_support import TemporaryDatabase
from runledger_test_support.databases import temporary_database

from .plan_recorder import PlanMode, PlanRecorder

pytestmark = [pytest.mark.plans, pytest.mark.timeout(600)]

Act = Callable[[psycopg.Connection[Any]], object]

ADMIN: Final = Scope.ADMIN
PAGE: Final = 20
CAP: Final = 50
RUNS: Final = 20_000
LARGE: Final = UUID("01900000-0000-7000-8000-000000000001")
LARGE_STEPS: Final = 2_000
MIDDLE: Final = UUID(f"01900000-0000-7000-8000-{LARGE_STEPS // 2:012}")
LAST: Final = UUID(int=2**128 - 1)
TABLES: Final = ("workflow_runs", "workflow_steps", "workflow_step_dependencies", "job_queue")

# A run of many steps, each with a job and waiting for the one before, older than all others.
FILL_LARGE: Final = """
    WITH run AS (
        INSERT INTO runledger.workflow_runs (id, workflow_type) VALUES (%(large)s, 'plans.large')
    ), step AS (
        INSERT INTO runledger.workflow_steps (
            id, workflow_run_id, step_key, execution_kind, status, job_type, priority, stage,
            max_attempts, timeout_seconds, job_id
        )
        SELECT
            ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, %(large)s, 's-' || n,
            'JOB', 'ENQUEUED', 'plans.work', 100, 'queued', 8, 900,
            ('01900000-0000-7000-9000-' || lpad(n::text, 12, '0'))::uuid
        FROM generate_series(1, %(steps)s::int8) AS n
        RETURNING id, job_id
    ), job AS (
        INSERT INTO runledger.job_queue (id, job_type, max_attempts, workflow_run_id)
        SELECT s.job_id, 'plans.work', 8, %(large)s FROM step AS s
    )
    INSERT INTO runledger.workflow_step_dependencies (
        workflow_run_id, prerequisite_step_id, dependent_step_id
    )
    SELECT %(large)s, o.id, o.next_id
    FROM (SELECT s.id, lead(s.id) OVER (ORDER BY s.id) AS next_id FROM step AS s) AS o
    WHERE o.next_id IS NOT NULL
"""
# Behind it the oldest are of every rare status, all others have succeeded; each has two gates, and
# an edge between them.
FILL: Final = """
    WITH run AS (
        INSERT INTO runledger.workflow_runs (
            id, workflow_type, status, idempotency_key, enqueue_request
        )
        SELECT
            runledger.uuidv7(), 'plans.run',
            (CASE
                WHEN n <= 4 * %(page)s THEN (ARRAY[
                    'RUNNING', 'WAITING_FOR_EXTERNAL', 'COMPLETED_WITH_ERRORS', 'CANCELED'
                ])[1 + n %% 4]
                ELSE 'SUCCEEDED'
            END)::runledger.workflow_run_status,
            'key-' || n, '{}'
        FROM generate_series(1, %(runs)s::int8) AS n
        RETURNING id
    ), step AS (
        INSERT INTO runledger.workflow_steps (
            workflow_run_id, step_key, execution_kind, status, payload
        )
        SELECT r.id, 's-' || n, 'EXTERNAL', 'SUCCEEDED', '{}'
        FROM run AS r CROSS JOIN generate_series(1, 2) AS n
        RETURNING workflow_run_id, id
    )
    INSERT INTO runledger.workflow_step_dependencies (
        workflow_run_id, prerequisite_step_id, dependent_step_id
    )
    SELECT o.workflow_run_id, o.ids[1], o.ids[2]
    FROM (
        SELECT s.workflow_run_id, array_agg(s.id) AS ids FROM step AS s GROUP BY s.workflow_run_id
    ) AS o
"""
# Jobs of no workflow, which a join of steps with the queue would read.
FILL_QUEUE: Final = """
    INSERT INTO runledger.job_queue (job_type, max_attempts)
    SELECT 'plans.work', 8 FROM generate_series(1, %(runs)s::int8)
"""


def maintain(connection: psycopg.Connection[Any]) -> None:
    for table in TABLES:
        connection.execute(f"VACUUM ANALYZE runledger.{table}".encode())


# As other reads of operators these may be slow until statistics have been taken once.
@pytest.fixture(scope="module", params=["analyzed", "analyzed when small"])
def populated(
    request: pytest.FixtureRequest, runledger_server, runledger_template
) -> Generator[TemporaryDatabase]:
    parameters = {"large": LARGE, "steps": LARGE_STEPS, "runs": RUNS, "page": PAGE}
    with temporary_database(
        runledger_server, prefix="plans_runs", template=runledger_template
    ) as database:
        with database.connect(autocommit=True) as connection:
            for table in TABLES:
                connection.execute(
                    f"ALTER TABLE runledger.{table} SET (autovacuum_enabled = false)".encode()
                )
            connection.execute(FILL_LARGE, parameters)
            if request.param == "analyzed when small":
                # Then all runs are running, and all steps and edges are of one run.
                maintain(connection)
            connection.execute(FILL, parameters)
            connection.execute(FILL_QUEUE, parameters)
            if request.param == "analyzed":
                maintain(connection)
        yield database


@pytest.fixture
def recorder(populated: TemporaryDatabase) -> Generator[PlanRecorder]:
    with populated.connect() as connection:
        yield PlanRecorder(connection)
        connection.rollback()


def runs_of(*statuses: WorkflowRunStatus, **page: Any) -> Act:
    chosen = WorkflowRunFilter(ADMIN, status=statuses or None)
    return lambda db: list_workflow_runs(db, chosen, limit=PAGE, **page)


def number_of(*statuses: WorkflowRunStatus) -> Act:
    chosen = WorkflowRunFilter(ADMIN, status=statuses or None)
    return lambda db: count_workflow_runs_bounded(db, chosen, cap=CAP)


def steps(**page: Any) -> Act:
    return lambda db: list_workflow_steps(db, LARGE, scope=ADMIN, limit=PAGE, **page)


def edges(**page: Any) -> Act:
    return lambda db: list_workflow_step_dependencies(db, LARGE, scope=ADMIN, limit=PAGE, **page)


RUNNING, WAITING, SUCCEEDED, WITH_ERRORS, CANCELED = WorkflowRunStatus

# Not here: pages of a type or of an organization, and the latest run of a type: they have no index.
READS: Final[dict[str, tuple[Act, float]]] = {
    "runs": (runs_of(), PAGE),
    "older runs": (runs_of(after=LAST), PAGE),
    "newer runs": (runs_of(before=UUID(int=0)), PAGE),
    "runs of no status": (
        lambda db: list_workflow_runs(db, WorkflowRunFilter(ADMIN, status=[])),
        0,
    ),
    "running runs": (runs_of(RUNNING), PAGE),
    "newer running runs": (runs_of(RUNNING, before=UUID(int=0)), PAGE),
    "canceled runs": (runs_of(CANCELED, after=LAST), PAGE),
    "succeeded runs": (runs_of(SUCCEEDED), PAGE),
    "runs of both ends": (runs_of(SUCCEEDED, CANCELED), 2 * PAGE),
    "number of running": (number_of(RUNNING), PAGE + 1),
    "number of several": (number_of(SUCCEEDED, WITH_ERRORS), 2 * (CAP + 1)),
    "number of runs": (number_of(), CAP + 1),
    "numbers of every status": (
        lambda db: count_workflow_runs_by_status_bounded(db, scope=ADMIN, cap=CAP),
        5 * (CAP + 1),
    ),
    "run": (lambda db: get_workflow_run(db, LARGE, scope=ADMIN), 1),
    "run of a key": (
        lambda db: get_workflow_run_by_type_and_idempotency_key(
            db, "plans.run", "key-7", scope=Scope.GLOBAL
        ),
        1,
    ),
    "run of a job": (
        lambda db: get_workflow_run_id_for_job(
            db, UUID("01900000-0000-7000-9000-000000000007"), scope=ADMIN
        ),
        2,
    ),
    # A step, its job and the run; an edge, its two steps and the run.
    "step": (lambda db: get_workflow_step(db, LARGE, "s-7", scope=ADMIN), 3),
    "steps": (steps(), 2 * PAGE + 1),
    "steps from the middle": (steps(after=MIDDLE), 2 * PAGE + 1),
    "last steps": (steps(before=LAST), 2 * PAGE + 1),
    "edges": (edges(), 3 * PAGE + 1),
    "edges from the middle": (
        edges(after=WorkflowStepDependencyCursor(MIDDLE, LAST)),
        3 * PAGE + 1,
    ),
    "last edges": (edges(before=WorkflowStepDependencyCursor(LAST, LAST)), 3 * PAGE + 1),
}


@pytest.mark.parametrize("name", READS)
def test_read_takes_its_own_rows(recorder: PlanRecorder, mode: PlanMode, name: str):
    act, most = READS[name]

    with recorder.recording(mode) as plans:
        act(recorder.connection)

    (plan,) = plans
    assert plan.heap_rows() <= most, "\n".join(str(scan) for scan in plan.scans() if scan.rows)


def test_index_that_is_missing_is_found(recorder: PlanRecorder, mode: PlanMode):
    recorder.connection.execute("DROP INDEX runledger.idx_workflow_runs_status")

    with recorder.recording(mode) as plans:
        runs_of(RUNNING)(recorder.connection)

    assert plans[0].heap_rows() > RUNS / 2
