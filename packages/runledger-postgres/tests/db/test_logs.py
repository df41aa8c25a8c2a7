from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from runledger_core import UNSET, JobLease, NotFoundError, Scope, ValidationError
from runledger_postgres.jobs import (
    LOG_END,
    JobLogEntry,
    insert_claim_log,
    insert_job_log,
    insert_job_logs,
    list_job_logs,
)
from runledger_postgres.lifecycle import heartbeat_job, release_job, requeue_job
from runledger_test_support import expire_lease

from ._one_job import claim, enqueue

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")


def messages(pool, job_id: UUID, **page) -> list[str]:
    return [line.message for line in list_job_logs(pool, job_id, scope=ADMIN, **page)]


def test_line_of_anybody_carries_the_jobs_run_and_no_claim(pool):
    job_id = enqueue(pool)

    line_id = insert_job_log(
        pool, job_id, scope=ADMIN, level="INFO", message="looked at", payload={"by": "ops"}
    )

    (line,) = list_job_logs(pool, job_id, scope=ADMIN)
    assert (line.id, line.level, line.message) == (line_id, "INFO", "looked at")
    assert line.payload == {"by": "ops"}
    assert (line.claim_number, line.run_number, line.attempt) == (0, 1, None)


def test_line_of_anybody_names_the_present_attempt(pool):
    job_id = enqueue(pool)
    claim(pool)

    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="looked at")

    (line,) = list_job_logs(pool, job_id, scope=ADMIN)
    assert (line.claim_number, line.run_number, line.attempt) == (0, 1, 1)


def test_line_about_another_run_has_no_attempt_of_this_one(pool):
    job_id = enqueue(pool)
    claim(pool)

    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="later", run_number=2)

    (line,) = list_job_logs(pool, job_id, scope=ADMIN)
    assert (line.run_number, line.attempt) == (2, None)


def test_line_of_anybody_does_not_start_a_claim(pool):
    job_id = enqueue(pool)
    lease = claim(pool)

    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="looked at")

    release_job(pool, lease, reason="shutdown")
    assert claim(pool).attempt == 1


def test_line_of_a_claim_starts_it(pool):
    enqueue(pool)
    lease = claim(pool)

    stored = insert_claim_log(pool, lease, level="INFO", message="began", payload={"n": 1})

    assert stored
    with pytest.raises(ValidationError) as refused:
        release_job(pool, lease, reason="shutdown")
    assert refused.value.code == "job.unstarted_claim_release_not_applicable"


def test_line_of_a_claim_names_claim_run_and_attempt(pool):
    job_id = enqueue(pool)
    lease = claim(pool)

    insert_claim_log(pool, lease, level="WARN", message="slow", payload={"seconds": 3.5})

    (line,) = list_job_logs(pool, job_id, scope=ADMIN)
    assert (line.claim_number, line.run_number, line.attempt) == (1, 1, 1)
    assert (line.level, line.message, line.payload) == ("WARN", "slow", {"seconds": 3.5})


def test_late_line_of_an_expired_lease_is_dropped_quietly(pool):
    job_id = enqueue(pool)
    lease = claim(pool)
    expire_lease(pool, job_id)

    stored = insert_claim_log(pool, lease, level="INFO", message="late")

    assert not stored
    assert messages(pool, job_id) == []


@pytest.mark.parametrize(
    ("claim_number", "worker_id"), [(2, "worker"), (1, "another")], ids=["claim", "worker"]
)
def test_line_of_who_does_not_own_the_lease_is_dropped_quietly(pool, claim_number, worker_id):
    job_id = enqueue(pool)
    claim(pool)
    stranger = JobLease(job_id, 1, attempt=1, claim_number=claim_number, worker_id=worker_id)

    stored = insert_claim_log(pool, stranger, level="INFO", message="not mine")

    assert not stored
    assert messages(pool, job_id) == []


def test_line_needs_a_job_in_scope(pool):
    job_id = enqueue(pool, organization_id=ORGANIZATION)

    for missing, scope in [(uuid4(), ADMIN), (job_id, Scope.GLOBAL)]:
        with pytest.raises(NotFoundError) as refused:
            insert_job_log(pool, missing, scope=scope, level="INFO", message="hello")
        assert refused.value.code == "job.not_found"
    assert messages(pool, job_id) == []


def test_batch_with_a_missing_job_stores_nothing_and_names_the_entry(pool):
    job_id = enqueue(pool)
    entries = [
        JobLogEntry(job_id, "INFO", message="one"),
        JobLogEntry(uuid4(), "INFO", message="two"),
        JobLogEntry(uuid4(), "INFO", message="three"),
    ]

    with pytest.raises(NotFoundError) as refused:
        insert_job_logs(pool, entries, scope=ADMIN)

    assert refused.value.entry_index == 1
    assert messages(pool, job_id) == []


def test_batch_keeps_its_order_and_returns_the_ids(pool):
    job_id = enqueue(pool)
    entries = [JobLogEntry(job_id, "INFO", message=f"line {number}") for number in range(300)]

    ids = insert_job_logs(pool, entries, scope=ADMIN)

    lines = list_job_logs(pool, job_id, scope=ADMIN, limit=300)
    assert [line.id for line in lines] == ids
    assert [line.message for line in lines] == [f"line {number}" for number in range(300)]


def test_empty_batch_runs_no_sql():
    assert insert_job_logs(object(), [], scope=ADMIN) == []  # pyright: ignore[reportArgumentType]  # no SQL runs


def test_log_pages_go_both_ways(pool):
    job_id = enqueue(pool)
    insert_job_logs(
        pool,
        [JobLogEntry(job_id, "INFO", message=str(number)) for number in range(7)],
        scope=ADMIN,
    )
    first = list_job_logs(pool, job_id, scope=ADMIN, limit=3)

    second = list_job_logs(pool, job_id, scope=ADMIN, limit=3, after=first[-1].id)

    assert [line.message for line in first] == ["0", "1", "2"]
    assert [line.message for line in second] == ["3", "4", "5"]
    assert messages(pool, job_id, limit=3, after=second[-1].id) == ["6"]
    assert messages(pool, job_id, limit=3, before=second[0].id) == ["0", "1", "2"]
    assert messages(pool, job_id, limit=2, before=second[0].id) == ["1", "2"]
    assert messages(pool, job_id, limit=3, before=LOG_END) == ["4", "5", "6"]


def test_last_page_shows_a_line_that_was_committed_late(pool):
    job_id = enqueue(pool)
    with pool.connection() as early, early.transaction():
        insert_job_log(early, job_id, scope=ADMIN, level="INFO", message="early id, late commit")
        insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="late id")
        assert messages(pool, job_id, before=LOG_END) == ["late id"]

    assert messages(pool, job_id, before=LOG_END) == ["early id, late commit", "late id"]


def test_open_transaction_with_a_line_does_not_hold_up_the_heartbeat(pool):
    enqueue(pool)
    lease = claim(pool)

    with pool.connection() as connection, connection.transaction():
        insert_claim_log(connection, lease, level="INFO", message="began")
        insert_job_log(connection, lease.job_id, scope=ADMIN, level="INFO", message="seen")
        heartbeat_job(pool, lease, lease_ttl_seconds=60, lock_timeout_ms=50)


def test_log_of_a_job_out_of_scope_is_empty(pool):
    job_id = enqueue(pool, organization_id=ORGANIZATION)
    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="hello")

    assert list_job_logs(pool, job_id, scope=Scope.GLOBAL) == []
    assert list_job_logs(pool, job_id, scope=Scope.organization(uuid4())) == []
    assert len(list_job_logs(pool, job_id, scope=Scope.organization(ORGANIZATION))) == 1


def test_line_whose_payload_python_cannot_read_leaves_the_others_readable(pool):
    job_id = enqueue(pool)
    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="before")
    with pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_logs (job_id, level, message, payload)"
            " VALUES (%s, 'INFO', 'huge', '[1e5000]')",
            [job_id],
        )
    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="after")

    lines = list_job_logs(pool, job_id, scope=ADMIN)

    assert [line.message for line in lines] == ["before", "huge", "after"]
    assert [line.payload for line in lines] == [{}, UNSET, {}]


def test_log_survives_a_requeue(pool):
    job_id = enqueue(pool)
    with pool.connection() as connection:
        connection.execute("UPDATE runledger.job_queue SET status = 'CANCELED'")
    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="first run")
    requeue_job(pool, job_id, scope=ADMIN)

    insert_job_log(pool, job_id, scope=ADMIN, level="INFO", message="second run")

    lines = list_job_logs(pool, job_id, scope=ADMIN)
    assert [(line.run_number, line.message) for line in lines] == [
        (1, "first run"),
        (2, "second run"),
    ]
