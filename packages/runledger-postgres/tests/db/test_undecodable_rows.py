"""Rows that PostgreSQL can hold and Python cannot."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from uuid import UUID

import pytest

from runledger_core import InternalError, JobEnqueue, Scope
from runledger_postgres import enqueue_job, get_job
from runledger_postgres.admin import JobFilter, count_jobs, list_jobs, oldest_waiting_jobs

ADMIN = Scope.ADMIN
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def enqueue(pool) -> UUID:
    return enqueue_job(pool, JobEnqueue("test.job", {})).id


def change(pool, assignment: str, **parameters) -> None:
    with pool.connection() as connection:
        connection.execute(f"UPDATE runledger.job_queue SET {assignment}", parameters)


@pytest.mark.parametrize(
    ("column", "json"),
    [
        pytest.param("payload", '{"n": 1e5000}', id="payload"),
        pytest.param("checkpoint", "[1e5000]", id="checkpoint"),
        pytest.param("output", "1e5000", id="output"),
        pytest.param(
            "payload",
            "[" * 3_000 + "]" * 3_000,
            id="depth",
            # It reads JSON as deep as PostgreSQL stores it.
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 reads it"),
        ),
    ],
)
def test_unreadable_json_fails_the_detail_and_not_the_list(pool, column, json):
    job_id, neighbour = enqueue(pool), enqueue(pool)
    change(pool, f"{column} = %(json)s::jsonb WHERE id = %(job_id)s", json=json, job_id=job_id)

    with pytest.raises(InternalError) as refused:
        get_job(pool, job_id, scope=ADMIN)

    assert (refused.value.code, refused.value.field) == ("job.undecodable_row", column)
    assert get_job(pool, neighbour, scope=ADMIN) is not None
    assert [job.id for job in list_jobs(pool, JobFilter(ADMIN))] == [neighbour, job_id]
    assert count_jobs(pool, JobFilter(ADMIN)) == 2


def test_error_shows_nothing_of_the_value(pool):
    job_id = enqueue(pool)
    change(pool, """payload = '{"password": "s3cret", "n": 1e5000}'""")

    with pytest.raises(InternalError) as refused:
        get_job(pool, job_id, scope=ADMIN)

    assert "s3cret" not in str(refused.value) + repr(refused.value) + repr(refused.value.__cause__)


def test_callers_transaction_goes_on_after_an_unreadable_row(pool):
    job_id = enqueue(pool)
    change(pool, "payload = '1e5000'")

    with pool.connection() as connection, connection.transaction():
        with pytest.raises(InternalError):
            get_job(connection, job_id, scope=ADMIN)
        enqueue_job(connection, JobEnqueue("test.job", {}))

    assert count_jobs(pool, JobFilter(ADMIN)) == 2


@pytest.mark.parametrize("time_zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("infinity", LATEST),
        ("-infinity", EARLIEST),
        ("10000-01-01 00:00:00+00", LATEST),
        ("294276-01-01 00:00:00+00", LATEST),
        ("0044-03-15 12:00:00+00 BC", EARLIEST),
        ("0001-12-31 23:59:59+00 BC", EARLIEST),
        ("0001-01-01 00:00:00+00", EARLIEST),
        ("9999-12-31 23:59:59.999999+00", LATEST),
        ("2026-03-29 01:30:00.000001+00", datetime(2026, 3, 29, 1, 30, 0, 1, tzinfo=UTC)),
    ],
)
def test_instants_are_read_as_utc_and_far_ones_as_the_nearest(pool, stored, read, time_zone):
    job_id = enqueue(pool)
    change(pool, "next_run_at = %(stored)s::timestamptz", stored=stored)

    with pool.connection() as connection, connection.transaction():
        connection.execute("SELECT set_config('TimeZone', %s, true)", [time_zone])
        job = get_job(connection, job_id, scope=ADMIN)
        (listed,) = list_jobs(connection, JobFilter(ADMIN))

    assert job is not None
    assert job.next_run_at == read
    assert job.next_run_at.tzinfo is UTC
    assert listed.next_run_at == read


@pytest.mark.parametrize("is_ready", [True, False])
def test_job_due_since_ever_is_waiting_since_it_was_made(pool, is_ready):
    job_id = enqueue(pool)
    change(pool, "next_run_at = '-infinity', is_ready = %(is_ready)s", is_ready=is_ready)

    (waiting,) = oldest_waiting_jobs(pool, scope=ADMIN)

    assert (waiting.job_id, waiting.due_at) == (job_id, EARLIEST)
    assert 0 <= waiting.waiting_seconds < 60
