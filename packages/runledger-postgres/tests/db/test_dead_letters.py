from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from runledger_core import (
    UNSET,
    InternalError,
    JobEnqueue,
    JobFailure,
    JobProgressUpdate,
    JsonInput,
    Scope,
    Unset,
)
from runledger_postgres import enqueue_job
from runledger_postgres.jobs import DeadLetterCursor, get_dead_letter, list_dead_letters
from runledger_postgres.lifecycle import (
    claim_jobs,
    complete_job_failure,
    requeue_job,
    update_job_progress,
)

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")

INSERT_DEAD_LETTERS = """
    INSERT INTO runledger.job_dead_letters (
        job_id, job_type, organization_id, run_number, attempt, error_code, error_message,
        payload_snapshot, failed_at
    )
    SELECT runledger.uuidv7(), 'test.job', %(organization_id)s, 1, n, 'test.code', 'message',
        '{}', %(failed_at)s::timestamptz
    FROM generate_series(1, %(count)s) AS n
"""


def insert_dead_letters(pool, *, count: int, failed_at: str, organization_id=None) -> None:
    parameters = {"count": count, "failed_at": failed_at, "organization_id": organization_id}
    with pool.connection() as connection:
        connection.execute(INSERT_DEAD_LETTERS, parameters)


def fail_for_good(
    pool, *, organization_id: UUID | None = None, checkpoint: JsonInput | Unset = UNSET
) -> UUID:
    enqueue_job(pool, JobEnqueue("test.job", {"n": 1}, organization_id=organization_id))
    (job,) = claim_jobs(
        pool, worker_id="worker", limit=1, lease_ttl_seconds=60, job_types=["test.job"]
    )
    update_job_progress(pool, job.lease, JobProgressUpdate(checkpoint=checkpoint))
    complete_job_failure(pool, job.lease, JobFailure.terminal("test.bad", "bad"))
    return job.id


def test_dead_letter_has_what_the_last_attempt_saw(pool):
    job_id = fail_for_good(pool, checkpoint=[1])

    letter = get_dead_letter(pool, job_id, scope=ADMIN)

    assert letter is not None
    assert (letter.job_type, letter.run_number, letter.attempt) == ("test.job", 1, 1)
    assert (letter.error_code, letter.error_message) == ("test.bad", "bad")
    assert (letter.payload_snapshot, letter.checkpoint_snapshot) == ({"n": 1}, [1])


def test_dead_letter_without_a_checkpoint_has_none(pool):
    job_id = fail_for_good(pool)

    letter = get_dead_letter(pool, job_id, scope=ADMIN)

    assert letter is not None
    assert letter.checkpoint_snapshot is UNSET


def test_dead_letter_outlives_a_requeue(pool):
    job_id = fail_for_good(pool)

    requeue_job(pool, job_id, scope=ADMIN)

    assert get_dead_letter(pool, job_id, scope=ADMIN) is not None


def test_dead_letters_are_seen_in_their_scope_only(pool):
    job_id = fail_for_good(pool, organization_id=ORGANIZATION)
    own, other = Scope.organization(ORGANIZATION), Scope.organization(uuid4())

    assert get_dead_letter(pool, job_id, scope=own) is not None
    assert get_dead_letter(pool, job_id, scope=other) is None
    assert get_dead_letter(pool, job_id, scope=Scope.GLOBAL) is None
    assert [letter.job_id for letter in list_dead_letters(pool, scope=own)] == [job_id]
    assert list_dead_letters(pool, scope=other) == []
    assert list_dead_letters(pool, scope=Scope.GLOBAL) == []


def test_latest_failure_comes_first(pool):
    first, second, third = (fail_for_good(pool) for _ in range(3))

    letters = list_dead_letters(pool, scope=ADMIN, limit=2)

    assert [letter.job_id for letter in letters] == [third, second]
    older = list_dead_letters(pool, scope=ADMIN, limit=2, after=letters[-1].cursor)
    assert [letter.job_id for letter in older] == [first]


def test_500_failures_of_one_instant_page_both_ways(pool):
    insert_dead_letters(pool, count=3, failed_at="2026-01-02 00:00:00.000001Z")
    insert_dead_letters(pool, count=500, failed_at="2026-01-01 12:00:00.123456Z")
    insert_dead_letters(pool, count=3, failed_at="2026-01-01 12:00:00.123455Z")

    forward, cursor = [], None
    while page := list_dead_letters(pool, scope=ADMIN, limit=50, after=cursor):
        forward += page
        cursor = page[-1].cursor
    backward, cursor = [], DeadLetterCursor(datetime(2000, 1, 1, tzinfo=UTC), UUID(int=0))
    while page := list_dead_letters(pool, scope=ADMIN, limit=50, before=cursor):
        backward = page + backward
        cursor = page[0].cursor

    assert len({letter.job_id for letter in forward}) == 506
    assert [letter.failed_at for letter in forward] == sorted(
        (letter.failed_at for letter in forward), reverse=True
    )
    assert backward == forward


def test_first_page_shows_one_that_another_tool_dated_infinity(pool):
    insert_dead_letters(pool, count=1, failed_at="infinity")

    (letter,) = list_dead_letters(pool, scope=ADMIN)

    assert letter.failed_at == datetime.max.replace(tzinfo=UTC)


def test_unreadable_bodies_fail_the_detail_and_not_the_list(pool):
    job_id = fail_for_good(pool)
    with pool.connection() as connection:
        connection.execute("UPDATE runledger.job_dead_letters SET payload_snapshot = '1e5000'")

    assert [letter.job_id for letter in list_dead_letters(pool, scope=ADMIN)] == [job_id]
    with pytest.raises(InternalError) as refused:
        get_dead_letter(pool, job_id, scope=ADMIN)
    assert (refused.value.code, refused.value.field) == (
        "job.undecodable_row",
        "payload_snapshot",
    )
