from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from runledger_core import JobEnqueue, JobFailure, JobFailureKind, Scope, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.admin import get_job_metrics, oldest_waiting_jobs
from runledger_postgres.lifecycle import claim_jobs, complete_job_failure
from runledger_test_support import age_job, expire_lease

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")
OTHER = UUID("01900000-0000-7000-8000-000000000002")
PAST, LATER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def pool(runledger_pool):
    with runledger_pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_definitions (job_type, is_enabled)"
            " VALUES ('test.a', true), ('test.b', true), ('test.c', true)"
        )
    return runledger_pool


def enqueue(pool, job_type: str = "test.a", **options) -> UUID:
    return enqueue_job(pool, JobEnqueue(job_type, {}, **options)).id


def claim(pool, job_type: str = "test.a"):
    (job,) = claim_jobs(
        pool, worker_id="worker", limit=1, lease_ttl_seconds=60, job_types=[job_type]
    )
    return job.lease


def add_attempts(pool, seconds: list[float], *, organization_id: UUID | None) -> None:
    """Store ended successes that took so many seconds."""
    jobs = enqueue_jobs(
        pool, [JobEnqueue("test.a", {}, organization_id=organization_id) for _ in seconds]
    )
    with pool.connection() as connection:
        connection.execute(
            """
            INSERT INTO runledger.job_attempts (
                job_id, claim_number, run_number, attempt, outcome, worker_id, leased_at,
                finished_at
            )
            SELECT j.id, 1, 1, 1, 'SUCCEEDED', 'w', now() - j.seconds * interval '1 second', now()
            FROM unnest(%s::uuid[], %s::float8[]) AS j(id, seconds)
            """,
            [[job.id for job in jobs], seconds],
        )


def test_every_definition_has_a_row_of_zeros(pool):
    metrics = get_job_metrics(pool, scope=ADMIN)

    assert [row.job_type for row in metrics] == ["test.a", "test.b", "test.c"]
    assert (metrics[0].pending_count, metrics[0].succeeded_24h) == (0, 0)
    assert metrics[0].p50_duration_ms_24h is None


def test_one_type_can_be_asked_for(pool):
    assert [row.job_type for row in get_job_metrics(pool, scope=ADMIN, job_type="test.b")] == [
        "test.b"
    ]
    assert get_job_metrics(pool, scope=ADMIN, job_type="test.unknown") == []


def test_type_is_checked_before_sql():
    with pytest.raises(ValidationError):
        get_job_metrics(object(), scope=ADMIN, job_type=" ")  # pyright: ignore[reportArgumentType]  # no SQL runs


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (JobFailureKind.TERMINAL, "terminal_24h"),
        (JobFailureKind.PANICKED, "panicked_24h"),
        (JobFailureKind.RETRYABLE, "retryable_24h"),
        (JobFailureKind.TIMEOUT, "timeout_24h"),
        (JobFailureKind.LEASE_EXPIRED, "lease_expired_24h"),
    ],
)
def test_failures_are_counted_by_kind(pool, kind, column):
    enqueue(pool)
    failure = JobFailure(kind, "test.code", "message")

    complete_job_failure(pool, claim(pool), failure, retry_delay_ms=60_000)

    (row,) = get_job_metrics(pool, scope=ADMIN, job_type="test.a")
    assert getattr(row, column) == 1
    assert row.dead_lettered_24h == (0 if kind.is_retryable else 1)


def test_present_jobs_are_counted_with_stale_leases(pool):
    for _ in range(3):
        enqueue(pool)
    claim(pool)
    lease = claim(pool)
    expire_lease(pool, lease.job_id)

    (row,) = get_job_metrics(pool, scope=ADMIN, job_type="test.a")

    assert (row.pending_count, row.leased_count, row.stale_leases) == (1, 2, 1)


def test_attempts_older_than_a_day_do_not_count(pool):
    job_id = enqueue(pool)
    complete_job_failure(pool, claim(pool), JobFailure.terminal("test.code", "message"))
    age_job(pool, job_id, 25 * 3600)

    (row,) = get_job_metrics(pool, scope=ADMIN, job_type="test.a")

    assert (row.terminal_24h, row.dead_lettered_24h) == (0, 0)
    assert row.p50_duration_ms_24h is None


def test_percentiles_are_those_of_all_rows_and_no_average(pool):
    add_attempts(pool, [1.0] * 9, organization_id=ORGANIZATION)
    add_attempts(pool, [101.0], organization_id=OTHER)

    (everybody,) = get_job_metrics(pool, scope=ADMIN, job_type="test.a")
    (one,) = get_job_metrics(pool, scope=Scope.organization(OTHER), job_type="test.a")

    assert everybody.p50_duration_ms_24h == pytest.approx(1_000)
    assert everybody.p95_duration_ms_24h == pytest.approx(56_000)
    assert everybody.succeeded_24h == 10
    assert one.p50_duration_ms_24h == pytest.approx(101_000)


def test_scope_chooses_whose_jobs_are_counted(pool):
    enqueue(pool, organization_id=ORGANIZATION)
    enqueue(pool)

    pending = [
        get_job_metrics(pool, scope=scope, job_type="test.a")[0].pending_count
        for scope in (
            ADMIN,
            Scope.GLOBAL,
            Scope.organization(ORGANIZATION),
            Scope.organization(OTHER),
        )
    ]

    assert pending == [2, 1, 1, 0]


def test_oldest_waiting_job_of_each_type_is_found_across_priorities(pool):
    enqueue(pool, "test.a", priority=100)
    oldest = enqueue(pool, "test.a", priority=1, next_run_at=PAST)
    enqueue(pool, "test.a", priority=50)
    other = enqueue(pool, "test.b", priority=-5)

    waiting = oldest_waiting_jobs(pool, scope=ADMIN)

    assert [(one.job_type, one.job_id) for one in waiting] == [
        ("test.a", oldest),
        ("test.b", other),
    ]
    assert waiting[0].due_at == PAST


def test_wait_begins_when_the_job_was_made_if_it_was_due_before(pool):
    job_id = enqueue(pool, next_run_at=PAST)
    age_job(pool, job_id, 600)

    (waiting,) = oldest_waiting_jobs(pool, scope=ADMIN)

    assert 600 <= waiting.waiting_seconds < 660


def test_jobs_not_due_leased_or_ended_do_not_wait(pool):
    enqueue(pool, next_run_at=LATER)
    enqueue(pool)
    claim(pool)
    enqueue(pool)
    complete_job_failure(pool, claim(pool), JobFailure.terminal("test.code", "message"))

    assert oldest_waiting_jobs(pool, scope=ADMIN) == []


def test_job_that_came_due_while_no_worker_lived_is_waiting(pool):
    job_id = enqueue(pool, next_run_at=LATER)
    with pool.connection() as connection:
        connection.execute("UPDATE runledger.job_queue SET next_run_at = now() - interval '1 hour'")

    (waiting,) = oldest_waiting_jobs(pool, scope=ADMIN)

    assert waiting.job_id == job_id


def test_oldest_waiting_job_is_that_of_the_scope(pool):
    theirs = enqueue(pool, organization_id=ORGANIZATION)
    everybodys = enqueue(pool)

    found = [
        [one.job_id for one in oldest_waiting_jobs(pool, scope=scope)]
        for scope in (
            ADMIN,
            Scope.GLOBAL,
            Scope.organization(ORGANIZATION),
            Scope.organization(uuid4()),
        )
    ]

    assert found == [[theirs], [everybodys], [theirs], []]


def test_looking_for_the_oldest_reads_few_of_many_ready_jobs(pool):
    with pool.connection() as connection:
        connection.execute(
            """
            INSERT INTO runledger.job_queue (job_type, max_attempts, priority)
            SELECT 'test.' || chr(97 + n % 3), 1, n % 4 FROM generate_series(1, 20000) AS n
            """
        )
        connection.execute("ANALYZE runledger.job_queue")
        before = connection.execute(
            "SELECT pg_stat_get_xact_tuples_fetched('runledger.job_queue'::regclass)"
        ).fetchone()

        waiting = oldest_waiting_jobs(connection, scope=ADMIN)

        after = connection.execute(
            "SELECT pg_stat_get_xact_tuples_fetched('runledger.job_queue'::regclass)"
        ).fetchone()
    assert [one.job_type for one in waiting] == ["test.a", "test.b", "test.c"]
    assert after[0] - before[0] < 100
