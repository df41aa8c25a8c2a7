from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from runledger_core import (
    UNSET,
    JobCompletion,
    JobEventType,
    JobFailure,
    JobOutcome,
    JobProgressUpdate,
    Scope,
)
from runledger_postgres.jobs import JobEventCursor, list_job_attempts, list_job_events
from runledger_postgres.lifecycle import (
    cancel_job,
    complete_job_failure,
    complete_job_success,
    release_job,
    requeue_job,
    update_job_progress,
)
from runledger_test_support import make_due

from ._one_job import claim, enqueue

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")


def live_a_full_life(pool) -> UUID:
    """Release, fail, progress, succeed, requeue, cancel."""
    job_id = enqueue(pool)
    release_job(pool, claim(pool), reason="shutdown")
    failure = JobFailure.retryable("test.busy", "busy")
    complete_job_failure(pool, claim(pool), failure, retry_delay_ms=1)
    make_due(pool, job_id)
    lease = claim(pool)
    update_job_progress(pool, lease, JobProgressUpdate(done=1, total=2))
    update_job_progress(pool, lease, JobProgressUpdate(done=2))
    complete_job_success(pool, lease, JobCompletion.success())
    requeue_job(pool, job_id, scope=ADMIN)
    cancel_job(pool, job_id, scope=ADMIN)
    return job_id


FULL_LIFE = [
    (0, JobEventType.ENQUEUED),
    (1, JobEventType.LEASED),
    (1, JobEventType.REQUEUED),
    (2, JobEventType.LEASED),
    (2, JobEventType.FAILED),
    (2, JobEventType.RETRY_SCHEDULED),
    (3, JobEventType.LEASED),
    (3, JobEventType.PROGRESS),
    (3, JobEventType.PROGRESS),
    (3, JobEventType.SUCCEEDED),
    (3, JobEventType.REQUEUED),
    (3, JobEventType.CANCELED),
]


def test_timeline_tells_a_whole_life_in_order(pool):
    job_id = live_a_full_life(pool)

    events = list_job_events(pool, job_id, scope=ADMIN)

    assert [(event.claim_number, event.event_type) for event in events] == FULL_LIFE


def test_order_does_not_come_from_times(pool):
    job_id = live_a_full_life(pool)
    with pool.connection() as connection:
        connection.execute("UPDATE runledger.job_events SET occurred_at = '2020-01-01Z'")
        connection.execute(
            "UPDATE runledger.job_attempts"
            " SET leased_at = '2030-01-01Z', finished_at = '2010-01-01Z'"
        )

    events = list_job_events(pool, job_id, scope=ADMIN)

    assert [(event.claim_number, event.event_type) for event in events] == FULL_LIFE


@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_pages_forward_show_every_entry_once(pool, limit):
    job_id = live_a_full_life(pool)

    seen, cursor = [], None
    while page := list_job_events(pool, job_id, scope=ADMIN, limit=limit, after=cursor):
        seen += page
        cursor = page[-1].cursor

    assert [(event.claim_number, event.event_type) for event in seen] == FULL_LIFE


@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_pages_backward_show_every_entry_once(pool, limit):
    job_id = live_a_full_life(pool)

    seen, cursor = [], JobEventCursor.END
    while page := list_job_events(pool, job_id, scope=ADMIN, limit=limit, before=cursor):
        seen = page + seen
        cursor = page[0].cursor

    assert [(event.claim_number, event.event_type) for event in seen] == FULL_LIFE


def test_running_claim_is_in_the_timeline_and_not_among_the_attempts(pool):
    job_id = enqueue(pool)
    claim(pool)

    events = list_job_events(pool, job_id, scope=ADMIN)

    assert [event.event_type for event in events] == ["ENQUEUED", "LEASED"]
    assert events[1].payload == {"worker_id": "worker"}
    assert list_job_attempts(pool, job_id, scope=ADMIN) == []


def test_500_stored_entries_of_one_instant_page_both_ways(pool):
    job_id = enqueue(pool)
    claim(pool)
    with pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_events"
            " (job_id, claim_number, run_number, attempt, event_type, progress_done, occurred_at)"
            " SELECT %s, 1, 1, 1, 'PROGRESS', n, '2026-01-01Z' FROM generate_series(1, 500) AS n",
            [job_id],
        )

    forward, cursor = [], None
    while page := list_job_events(pool, job_id, scope=ADMIN, limit=50, after=cursor):
        forward += page
        cursor = page[-1].cursor
    backward, cursor = [], JobEventCursor.END
    while page := list_job_events(pool, job_id, scope=ADMIN, limit=50, before=cursor):
        backward = page + backward
        cursor = page[0].cursor

    assert [event.progress_done for event in forward] == [None, None, *range(1, 501)]
    assert backward == forward


def test_entry_whose_payload_python_cannot_read_leaves_the_others_readable(pool):
    job_id = live_a_full_life(pool)
    with pool.connection() as connection:
        connection.execute(
            "UPDATE runledger.job_events SET payload = '{\"n\": 1e5000}'"
            " WHERE event_type = 'RETRY_SCHEDULED'"
        )

    events = list_job_events(pool, job_id, scope=ADMIN)

    assert [event.event_type for event in events if event.payload is UNSET] == ["RETRY_SCHEDULED"]
    assert len(events) == 12


def test_attempts_tell_how_each_claim_ended(pool):
    job_id = live_a_full_life(pool)

    attempts = list_job_attempts(pool, job_id, scope=ADMIN)

    assert [(one.claim_number, one.run_number, one.attempt, one.outcome) for one in attempts] == [
        (2, 1, 1, JobOutcome.RETRYABLE),
        (3, 1, 2, JobOutcome.SUCCEEDED),
    ]
    assert (attempts[0].error_code, attempts[0].error_message) == ("test.busy", "busy")
    assert attempts[0].retry_delay_ms == 1
    assert attempts[0].worker_id == "worker"


def test_attempts_page_both_ways(pool):
    job_id = live_a_full_life(pool)
    first = list_job_attempts(pool, job_id, scope=ADMIN, limit=1)

    second = list_job_attempts(pool, job_id, scope=ADMIN, limit=1, after=first[0].claim_number)

    assert [one.claim_number for one in first + second] == [2, 3]
    assert list_job_attempts(pool, job_id, scope=ADMIN, after=second[0].claim_number) == []
    assert list_job_attempts(pool, job_id, scope=ADMIN, before=second[0].claim_number) == first
    assert list_job_attempts(pool, job_id, scope=ADMIN, limit=1, before=100) == second


@pytest.mark.parametrize("read", [list_job_events, list_job_attempts])
def test_history_of_a_job_out_of_scope_is_empty(pool, read):
    job_id = enqueue(pool, organization_id=ORGANIZATION)
    complete_job_success(pool, claim(pool), JobCompletion.success())

    assert read(pool, job_id, scope=Scope.GLOBAL) == []
    assert read(pool, job_id, scope=Scope.organization(uuid4())) == []
    assert read(pool, uuid4(), scope=ADMIN) == []
    assert read(pool, job_id, scope=Scope.organization(ORGANIZATION)) != []


def test_timeline_of_one_job_reads_no_other_rows(pool):
    job_id = live_a_full_life(pool)
    with pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_attempts (job_id, claim_number, run_number, attempt,"
            " outcome, leased_at, finished_at, worker_id)"
            " SELECT runledger.uuidv7(), 1, 1, 1, 'SUCCEEDED', now(), now(), 'w'"
            " FROM generate_series(1, 5000)"
        )
        connection.execute("ANALYZE runledger.job_attempts")
        plan = connection.execute(
            "EXPLAIN SELECT * FROM runledger.job_timeline WHERE job_id = %s", [job_id]
        ).fetchall()

    assert not [line for (line,) in plan if "Seq Scan on job_attempts" in line]
