"""A pass of the scheduler reads its own rows, however many schedules there are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest

from runledger_postgres import (
    DueSchedule,
    ScheduleFire,
    fire_due_schedules,
    get_job_schedule_by_name,
    list_job_schedules,
    set_job_schedule_active,
)
from runledger_test_support import TemporaryDatabase

from .plan_recorder import PlanMode, PlanRecorder
from .population import SMALL_TABLES

pytestmark = [pytest.mark.plans, pytest.mark.timeout(600)]

BATCH: Final = 16
KINDS: Final = 5_000

DEFINE: Final = "INSERT INTO runledger.job_definitions (job_type) VALUES ('plans.work')"
# Due but switched off, failing for long, due in the future: each before those that are due.
FILL: Final = """
    INSERT INTO runledger.job_schedules (
        name, job_type, cron_expr, is_active, next_fire_at, retry_at, failure_count
    )
    SELECT
        kind || '-' || n, 'plans.work', '* * * * *', kind <> 'off',
        now() + CASE kind WHEN 'ahead' THEN interval '1 hour' ELSE interval '-1 hour' END
            * (1 + n::float8 / %(rows)s::float8),
        CASE kind WHEN 'failing' THEN now() + interval '1 hour' END, 0
    FROM generate_series(1, %(rows)s::int8) AS n,
        unnest('{off,failing,ahead}'::text[]) AS kind
"""
MAKE_DUE: Final = """
    UPDATE runledger.job_schedules SET next_fire_at = now() - interval '1 second'
    WHERE name IN (SELECT 'ahead-' || n FROM generate_series(1, %(rows)s::int8) AS n)
"""


def plan(due: DueSchedule) -> ScheduleFire:
    return ScheduleFire(due.now + timedelta(days=1), due.scheduled_for)


def fire(db: psycopg.Connection[Any]) -> int:
    return len(fire_due_schedules(db, plan, limit=BATCH).fired)


@pytest.fixture(params=["analyzed", "never analyzed"])
def recorder(
    request: pytest.FixtureRequest, runledger_database: TemporaryDatabase
) -> Generator[PlanRecorder]:
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute("ALTER TABLE runledger.job_schedules SET (autovacuum_enabled = false)")
        connection.execute(DEFINE)
        connection.execute(FILL, {"rows": KINDS})
        connection.execute(MAKE_DUE, {"rows": 2 * BATCH})
        if request.param == "analyzed":
            connection.execute("VACUUM ANALYZE runledger.job_schedules")
    with runledger_database.connect() as connection:
        yield PlanRecorder(connection)
        connection.rollback()


def read_by(
    recorder: PlanRecorder, mode: PlanMode, act: Callable[[psycopg.Connection[Any]], object]
) -> tuple[list[str], float]:
    """Return the tables read from end to end, and the most rows that one statement took."""
    with recorder.recording(mode) as plans:
        act(recorder.connection)
    assert plans
    scanned = [
        relation for plan in plans for relation in plan.sequential_scans(ignored=SMALL_TABLES)
    ]
    return scanned, max(plan.heap_rows(ignored=SMALL_TABLES) for plan in plans)


def test_pass_walks_neither_schedules_that_fail_nor_those_ahead(
    recorder: PlanRecorder, mode: PlanMode
):
    scanned, rows = read_by(recorder, mode, fire)

    assert scanned == []
    assert rows <= 2 * BATCH


def test_pass_with_nothing_due_reads_next_to_nothing(recorder: PlanRecorder, mode: PlanMode):
    while fire(recorder.connection):
        pass

    scanned, rows = read_by(recorder, mode, fire)

    assert scanned == []
    assert rows <= 2 * BATCH


@pytest.mark.parametrize(
    ("act", "most"),
    [
        (lambda db: get_job_schedule_by_name(db, "ahead-1"), 1),
        (lambda db: list_job_schedules(db, limit=BATCH), BATCH),
        (lambda db: list_job_schedules(db, limit=BATCH, after="failing-1"), 2 * BATCH),
        (lambda db: set_job_schedule_active(db, "ahead-1", False), 1),
    ],
    ids=["get", "list", "next page", "switch off"],
)
def test_schedule_is_found_by_its_name(
    recorder: PlanRecorder, mode: PlanMode, act: Callable[[Any], object], most: int
):
    scanned, rows = read_by(recorder, mode, act)

    assert scanned == []
    assert rows <= most


def test_index_that_is_missing_is_found(recorder: PlanRecorder, mode: PlanMode):
    recorder.connection.execute("DROP INDEX runledger.idx_job_schedules_due")

    scanned, rows = read_by(recorder, mode, fire)

    assert scanned or rows > KINDS
