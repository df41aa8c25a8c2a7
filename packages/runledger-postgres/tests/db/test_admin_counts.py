from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from runledger_core import JobEnqueue, JobStatus, Scope, ValidationError
from runledger_postgres import enqueue_jobs
from runledger_postgres.admin import (
    JobFilter,
    count_jobs,
    count_jobs_bounded,
    count_jobs_by_status,
    count_jobs_by_status_bounded,
)

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def seed(pool, count: int = 1, *, status: str = "PENDING", **options) -> None:
    jobs = enqueue_jobs(pool, [JobEnqueue("test.job", {}, **options) for _ in range(count)])
    lease = ", worker_id = 'w', lease_expires_at = now()" if status == "LEASED" else ""
    with pool.connection() as connection:
        connection.execute(
            f"UPDATE runledger.job_queue SET status = '{status}'{lease} WHERE id = ANY (%s)",
            [[job.id for job in jobs]],
        )


def test_empty_queue_counts_zero_of_every_status(pool):
    assert count_jobs_by_status(pool, scope=ADMIN) == {
        "PENDING": 0,
        "LEASED": 0,
        "SUCCEEDED": 0,
        "DEAD_LETTERED": 0,
        "CANCELED": 0,
    }
    assert count_jobs(pool, JobFilter(ADMIN)) == 0


def test_each_status_is_counted_exactly(pool):
    for number, status in enumerate(JobStatus, start=1):
        seed(pool, number, status=status)
    seed(pool, 10, next_run_at=LATER)

    counts = count_jobs_by_status(pool, scope=ADMIN)

    assert counts == {
        "PENDING": 11,
        "LEASED": 2,
        "SUCCEEDED": 3,
        "DEAD_LETTERED": 4,
        "CANCELED": 5,
    }


@pytest.mark.parametrize("status", list(JobStatus))
def test_bounded_count_of_a_status_stops_at_the_cap(pool, status):
    seed(pool, 3, status=status)

    below, at, above = (
        count_jobs_by_status_bounded(pool, scope=ADMIN, cap=cap)[status] for cap in (4, 3, 2)
    )

    assert (below.total, below.is_exact) == (3, True)
    assert (at.total, at.is_exact) == (3, True)
    assert (above.total, above.is_exact) == (2, False)


def test_bounded_count_adds_ready_and_waiting_jobs(pool):
    seed(pool, 2)
    seed(pool, 2, next_run_at=LATER)

    at = count_jobs_by_status_bounded(pool, scope=ADMIN, cap=4)[JobStatus.PENDING]
    above = count_jobs_by_status_bounded(pool, scope=ADMIN, cap=3)[JobStatus.PENDING]

    assert at == (4, True)
    assert above == (3, False)


def test_bounded_count_of_a_filter_stops_at_the_cap(pool):
    seed(pool, 3, status="CANCELED")
    seed(pool, 5)
    chosen = JobFilter(ADMIN, status=JobStatus.CANCELED)

    assert count_jobs(pool, chosen) == 3
    assert count_jobs_bounded(pool, chosen, cap=3) == (3, True)
    assert count_jobs_bounded(pool, chosen, cap=2) == (2, False)
    assert count_jobs_bounded(pool, JobFilter(ADMIN, status=[]), cap=1) == (0, True)


def test_scope_chooses_whose_jobs_are_counted(pool):
    seed(pool, 2, organization_id=ORGANIZATION)
    seed(pool, 1)

    totals = [
        (
            count_jobs_by_status(pool, scope=scope)[JobStatus.PENDING],
            count_jobs_by_status_bounded(pool, scope=scope, cap=9)[JobStatus.PENDING].total,
        )
        for scope in (
            ADMIN,
            Scope.GLOBAL,
            Scope.organization(ORGANIZATION),
            Scope.organization(uuid4()),
        )
    ]

    assert totals == [(3, 3), (1, 1), (2, 2), (0, 0)]


@pytest.mark.parametrize("cap", [0, -1, 2**31])
def test_bad_cap_is_refused_before_sql(cap):
    for count in (
        lambda: count_jobs_bounded(object(), JobFilter(ADMIN), cap=cap),  # pyright: ignore[reportArgumentType]  # no SQL runs
        lambda: count_jobs_by_status_bounded(object(), scope=ADMIN, cap=cap),  # pyright: ignore[reportArgumentType]  # no SQL runs
    ):
        with pytest.raises(ValidationError) as refused:
            count()
        assert (refused.value.code, refused.value.field) == ("input.out_of_range", "cap")
