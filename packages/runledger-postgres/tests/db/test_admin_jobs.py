from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from runledger_core import JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.admin import JobFilter, count_jobs, list_jobs
from runledger_postgres.lifecycle import claim_jobs

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")


@pytest.fixture
def pool(runledger_pool):
    with runledger_pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_definitions (job_type)"
            " VALUES ('test.job'), ('Test.Other'), ('a%b'), ('a_b'), ('axb'), ('a\\b'), ('a/b')"
        )
    return runledger_pool


def enqueue(pool, job_type: str = "test.job", **options) -> UUID:
    return enqueue_job(pool, JobEnqueue(job_type, {}, **options)).id


def chosen(pool, scope: Scope = ADMIN, **conditions) -> set[UUID]:
    jobs = list_jobs(pool, JobFilter(scope, **conditions))
    assert count_jobs(pool, JobFilter(scope, **conditions)) == len(jobs)
    return {job.id for job in jobs}


def change(pool, job_id: UUID, assignment: str) -> None:
    with pool.connection() as connection:
        connection.execute(f"UPDATE runledger.job_queue SET {assignment} WHERE id = %s", [job_id])


def test_newest_job_comes_first_and_carries_no_body(pool):
    first, second = enqueue(pool), enqueue(pool, organization_id=ORGANIZATION)

    jobs = list_jobs(pool, JobFilter(ADMIN))

    assert [job.id for job in jobs] == [second, first]
    assert jobs[0].organization_id == ORGANIZATION
    assert (jobs[0].job_type, jobs[0].status) == ("test.job", JobStatus.PENDING)
    assert not hasattr(jobs[0], "payload")


def test_500_jobs_of_one_instant_page_both_ways(pool):
    enqueue_jobs(pool, [JobEnqueue("test.job", {}) for _ in range(500)])
    with pool.connection() as connection:
        connection.execute(
            "UPDATE runledger.job_queue SET created_at = '2026-01-01Z',"
            " updated_at = '2026-01-01Z', next_run_at = '2026-01-01Z'"
        )

    down, cursor = [], None
    while page := list_jobs(pool, JobFilter(ADMIN), limit=50, after=cursor):
        down += [job.id for job in page]
        cursor = page[-1].id
    up, cursor = [], UUID(int=0)
    while page := list_jobs(pool, JobFilter(ADMIN), limit=50, before=cursor):
        up = [job.id for job in page] + up
        cursor = page[0].id

    assert len(set(down)) == 500
    assert down == sorted(down, reverse=True)
    assert up == down


def test_page_stays_where_it_was_when_jobs_arrive(pool):
    ids = [enqueue(pool) for _ in range(4)]
    first = list_jobs(pool, JobFilter(ADMIN), limit=2)

    enqueue(pool)

    second = list_jobs(pool, JobFilter(ADMIN), limit=2, after=first[-1].id)
    assert [job.id for job in second] == [ids[1], ids[0]]


def test_page_before_a_job_is_the_one_next_to_it(pool):
    ids = [enqueue(pool) for _ in range(5)]

    page = list_jobs(pool, JobFilter(ADMIN), limit=2, before=ids[0])

    assert [job.id for job in page] == [ids[2], ids[1]]


def test_pages_of_rare_statuses_are_in_one_order_both_ways(pool):
    rare = [enqueue(pool) for _ in range(7)][::-1]
    enqueue(pool)
    for number, job_id in enumerate(rare):
        status = ("CANCELED", "DEAD_LETTERED")[number % 2]
        change(pool, job_id, f"status = '{status}', is_ready = false, finished_at = now()")
    both = JobFilter(ADMIN, status=[JobStatus.DEAD_LETTERED, JobStatus.CANCELED])

    def ids(chosen: JobFilter, **cursor) -> list[UUID]:
        return [job.id for job in list_jobs(pool, chosen, limit=3, **cursor)]

    assert ids(both) == rare[:3]
    assert ids(both, after=rare[2]) == rare[3:6]
    assert ids(both, before=rare[6]) == rare[3:6]
    assert ids(JobFilter(ADMIN, status=JobStatus.CANCELED)) == rare[:5:2]
    assert ids(JobFilter(ADMIN, status=JobStatus.DEAD_LETTERED), before=rare[5]) == rare[1:4:2]


def test_scope_chooses_whose_jobs(pool):
    theirs, everybodys = enqueue(pool, organization_id=ORGANIZATION), enqueue(pool)

    assert chosen(pool, Scope.organization(ORGANIZATION)) == {theirs}
    assert chosen(pool, Scope.organization(uuid4())) == set()
    assert chosen(pool, Scope.GLOBAL) == {everybodys}
    assert chosen(pool) == {theirs, everybodys}


@pytest.mark.parametrize("status", list(JobStatus))
def test_status_chooses_its_jobs(pool, status):
    ids = {one: enqueue(pool) for one in JobStatus}
    for one, job_id in ids.items():
        lease = ", worker_id = 'w', lease_expires_at = now()" if one == "LEASED" else ""
        change(pool, job_id, f"status = '{one}'{lease}")

    assert chosen(pool, status=status) == {ids[status]}


def test_pending_jobs_are_ready_and_waiting_ones(pool):
    ready = enqueue(pool)
    waiting = enqueue(pool, next_run_at=datetime(2100, 1, 1, tzinfo=UTC))

    assert chosen(pool, status=JobStatus.PENDING) == {ready, waiting}


def test_several_statuses_choose_any_of_them_and_none_chooses_nothing(pool):
    pending, canceled, succeeded = enqueue(pool), enqueue(pool), enqueue(pool)
    change(pool, canceled, "status = 'CANCELED'")
    change(pool, succeeded, "status = 'SUCCEEDED'")

    both = chosen(pool, status=[JobStatus.PENDING, JobStatus.CANCELED])

    assert both == {pending, canceled}
    assert chosen(pool, status=[]) == set()


def test_type_is_matched_exactly(pool):
    job_id = enqueue(pool, "test.job")
    enqueue(pool, "Test.Other")

    assert chosen(pool, job_type="test.job") == {job_id}
    assert chosen(pool, job_type="test") == set()
    assert chosen(pool, job_type="%") == set()


def test_part_of_a_type_is_matched_in_any_case(pool):
    job_id = enqueue(pool, "Test.Other")
    enqueue(pool, "test.job")

    assert chosen(pool, job_type_contains="t.oTh") == {job_id}


@pytest.mark.parametrize("character", ["%", "_", "\\", "/"])
def test_wildcards_in_part_of_a_type_stand_for_themselves(pool, character):
    ids = {name: enqueue(pool, name) for name in ("a%b", "a_b", "axb", "a\\b", "a/b")}

    assert chosen(pool, job_type_contains=f"A{character}B") == {ids[f"a{character}b"]}


def test_worker_chooses_what_it_holds_now(pool):
    enqueue(pool)
    (job,) = claim_jobs(pool, worker_id="w1", limit=1, lease_ttl_seconds=60, job_types=["test.job"])
    enqueue(pool)

    assert chosen(pool, worker_id="w1") == {job.id}
    assert chosen(pool, worker_id="w2") == set()


def test_workflow_run_chooses_its_jobs(pool):
    run_id, job_id = uuid4(), enqueue(pool)
    enqueue(pool)
    change(pool, job_id, f"workflow_run_id = '{run_id}'")

    assert chosen(pool, workflow_run_id=run_id) == {job_id}


def test_times_choose_half_open_ranges(pool):
    instants = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    ids = [enqueue(pool) for _ in instants]
    for instant, job_id in zip(instants, ids, strict=True):
        change(pool, job_id, f"created_at = '{instant}', updated_at = '{instant}'")

    created = chosen(pool, created_from=instants[0], created_before=instants[2])
    updated = chosen(pool, updated_from=instants[1], updated_before=instants[2])

    assert created == {ids[0], ids[1]}
    assert updated == {ids[1]}


def test_conditions_hold_together(pool):
    wanted = enqueue(pool, organization_id=ORGANIZATION)
    enqueue(pool)
    enqueue(pool, "Test.Other", organization_id=ORGANIZATION)

    found = chosen(
        pool,
        Scope.organization(ORGANIZATION),
        status=JobStatus.PENDING,
        job_type="test.job",
        job_type_contains="JOB",
    )

    assert found == {wanted}


@pytest.mark.parametrize("text", ["'; DROP TABLE x; --", "%(x)s", "100%", "{}", "é"])
def test_odd_text_is_a_value_and_never_sql(pool, text):
    enqueue(pool)

    assert chosen(pool, job_type=text) == set()
    assert chosen(pool, job_type_contains=text) == set()
    assert chosen(pool, worker_id=text) == set()


def test_list_joins_the_callers_transaction(pool):
    with pool.connection() as connection, connection.transaction(force_rollback=True):
        job_id = enqueue(connection)

        assert [job.id for job in list_jobs(connection, JobFilter(ADMIN))] == [job_id]


def test_list_works_in_a_sqlalchemy_session(pool, runledger_database):
    job_id = enqueue(pool)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(runledger_database.dsn),
        poolclass=NullPool,
    )

    with Session(engine) as session:
        jobs = list_jobs(session, JobFilter(ADMIN, job_type="test.job"))

    assert [job.id for job in jobs] == [job_id]
