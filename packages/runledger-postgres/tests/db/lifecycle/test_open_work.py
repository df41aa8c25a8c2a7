from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import JobDefinitionSpec, JobEnqueue, JobScheduleUpsert, ValidationError
from runledger_postgres.definitions import upsert_job_definition
from runledger_postgres.jobs import enqueue_job
from runledger_postgres.lifecycle import claim_jobs, has_open_work
from runledger_postgres.schedules import upsert_job_schedule

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

WORKER = "worker-a"
IN_AN_HOUR = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def pool(runledger_pool) -> ConnectionPool:
    for job_type in ("a.one", "b.two"):
        upsert_job_definition(runledger_pool, JobDefinitionSpec(job_type))
    return runledger_pool


def is_open(pool: ConnectionPool, *job_types: str, worker_id: str = WORKER) -> bool:
    return has_open_work(pool, job_types or ("a.one",), worker_id=worker_id)


def test_empty_queue_has_none(pool):
    assert not is_open(pool)


def test_due_job_of_a_named_type_is_work(pool):
    enqueue_job(pool, JobEnqueue("a.one", {}))

    assert is_open(pool, "b.two", "a.one")
    assert not is_open(pool, "b.two")


def test_waiting_job_is_work_once_it_is_due(pool, observer):
    enqueue_job(pool, JobEnqueue("a.one", {}, next_run_at=IN_AN_HOUR))
    before = is_open(pool)
    observer.value("UPDATE runledger.job_queue SET next_run_at = now() RETURNING 1")

    assert not before
    assert is_open(pool)
    assert not is_open(pool, "b.two")


def test_leased_job_is_work_of_its_owner_only(pool):
    enqueue_job(pool, JobEnqueue("a.one", {}))
    claim_jobs(pool, worker_id=WORKER, limit=1, lease_ttl_seconds=60)

    assert is_open(pool)
    assert not is_open(pool, worker_id="worker-b")


def test_due_schedule_is_work_unless_it_is_paused_or_put_off(pool, observer):
    schedule = JobScheduleUpsert("nightly", "a.one", cron_expr="@daily", next_fire_at=IN_AN_HOUR)
    upsert_job_schedule(pool, schedule)
    table = "UPDATE runledger.job_schedules SET"
    before = is_open(pool)
    observer.value(f"{table} next_fire_at = now() RETURNING 1")
    due = is_open(pool)
    observer.value(f"{table} retry_at = now() + interval '1 hour' RETURNING 1")
    put_off = is_open(pool)
    observer.value(f"{table} retry_at = NULL, is_active = false RETURNING 1")

    assert (before, due, put_off, is_open(pool)) == (False, True, False, False)


def test_types_from_a_generator_are_all_looked_for(pool):
    enqueue_job(pool, JobEnqueue("a.one", {}))

    job_types: Any = (name for name in ["b.two", "a.one"])

    assert has_open_work(pool, job_types, worker_id=WORKER)


def test_text_for_the_types_is_refused(pool):
    with pytest.raises(ValidationError) as caught:
        has_open_work(pool, "a.one", worker_id=WORKER)

    assert (caught.value.code, caught.value.field) == ("input.wrong_type", "job_types")
