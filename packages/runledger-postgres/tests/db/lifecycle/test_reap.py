from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from runledger_core import (
    UNSET,
    JobDeadLetterReason,
    JobFailure,
    JobFailureKind,
    JobOutcome,
    JobProgressUpdate,
    JobStatus,
    RunledgerError,
    Scope,
)
from runledger_postgres.jobs import get_dead_letter, list_job_attempts
from runledger_postgres.lifecycle import (
    FailureDisposition,
    ReapedJob,
    ReapResult,
    complete_job_failure,
    heartbeat_job,
    heartbeat_jobs,
    reap_expired_leases,
    update_job_progress,
)
from runledger_test_support import expire_lease, make_due

pytestmark = pytest.mark.core

if TYPE_CHECKING:
    from conftest import Queue

RETRY, DEAD = FailureDisposition.RETRY_SCHEDULED, FailureDisposition.DEAD_LETTERED

# Refuses the attempt rows of one job.
REFUSE_ATTEMPTS = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'refused by the test'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON runledger.job_attempts
        FOR EACH ROW WHEN (NEW.job_id = '{job_id}') EXECUTE FUNCTION public.refuse();
"""
# Refuses every write of one job's row.
REFUSE_WRITES = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'refused by the test'; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON runledger.job_queue
        FOR EACH ROW WHEN (OLD.id = '{job_id}') EXECUTE FUNCTION public.refuse();
"""


def reap(queue: Queue, limit: int = 100, delay: int = 30_000, **arguments) -> ReapResult:
    return reap_expired_leases(queue.pool, limit=limit, retry_delay_ms=delay, **arguments)


def ids(result: ReapResult) -> list[UUID]:
    return [job.lease.job_id for job in result.reaped]


def test_expired_lease_becomes_a_retry_and_all_rows_agree(queue: Queue):
    organization_id = UUID(int=7)
    lease = queue.started(organization_id=organization_id)
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=1, checkpoint="c"))
    expire_lease(queue.pool, lease.job_id)

    result = reap(queue)

    job = queue.job(lease.job_id)
    (attempt,) = list_job_attempts(queue.pool, lease.job_id, scope=Scope.ADMIN)
    assert result == ReapResult(
        [
            ReapedJob(
                lease, "test.job", organization_id=organization_id, max_attempts=3,
                failure=JobFailure.lease_expired(
                    "job.lease_expired", "the worker's lease ran out before the attempt ended"
                ),
                disposition=RETRY, dead_letter_reason=None, next_run_at=job.next_run_at,
                retry_delay_ms=30_000, is_without_heartbeat=True, payload=UNSET, checkpoint=UNSET,
            )
        ],
        [],
    )  # fmt: skip
    assert (job.status, job.stage, job.attempt, job.worker_id) == (
        JobStatus.PENDING,
        "queued",
        1,
        None,
    )
    assert (job.status_reason, job.last_error_code) == ("LEASE_EXPIRED", "job.lease_expired")
    assert (job.progress_done, job.checkpoint) == (1, "c")
    assert job.next_run_at - job.updated_at == timedelta(seconds=30)
    assert (attempt.outcome, attempt.worker_id) == (JobOutcome.LEASE_EXPIRED, "worker-1")
    assert (attempt.error_code, attempt.retry_delay_ms) == ("job.lease_expired", 30_000)
    assert attempt.finished_at == job.updated_at
    assert queue.timeline(lease.job_id)[-2:] == ["FAILED", "RETRY_SCHEDULED"]


def test_last_attempt_becomes_a_dead_letter_with_what_its_hook_needs(queue: Queue):
    lease = queue.started(max_attempts=1, payload={"to": "a"})
    update_job_progress(queue.pool, lease, JobProgressUpdate(checkpoint=[1]))
    expire_lease(queue.pool, lease.job_id)

    (reaped,) = reap(queue).reaped

    letter = get_dead_letter(queue.pool, lease.job_id, scope=Scope.ADMIN)
    assert (reaped.disposition, reaped.next_run_at) == (DEAD, None)
    assert reaped.dead_letter_reason is JobDeadLetterReason.LEASE_EXPIRED
    assert (reaped.payload, reaped.checkpoint, reaped.max_attempts) == ({"to": "a"}, [1], 1)
    assert reaped.failure.kind is JobFailureKind.LEASE_EXPIRED
    assert queue.job(lease.job_id).status is JobStatus.DEAD_LETTERED
    assert letter is not None
    assert (letter.error_code, letter.checkpoint_snapshot) == ("job.lease_expired", [1])
    assert queue.timeline(lease.job_id)[-2:] == ["FAILED", "DEAD_LETTERED"]


def test_dead_letter_that_python_cannot_read_is_reaped_with_the_others(queue: Queue):
    queue.enqueue(2, max_attempts=1, payload=1)
    readable, poison = queue.leases(2)
    queue.execute(
        "UPDATE runledger.job_queue SET payload = %s WHERE id = %s", "9" * 5_000, poison.job_id
    )
    for lease in (readable, poison):
        expire_lease(queue.pool, lease.job_id)

    result = reap(queue)

    assert [job.payload for job in result.reaped] == [1, UNSET]


def test_live_lease_is_left_alone(queue: Queue):
    queue.started()
    before = queue.image()

    assert reap(queue) == ReapResult([], [])
    assert queue.image() == before


def test_reaper_holds_no_row_whose_lease_is_live(queue: Queue):
    queue.enqueue(2)
    live, expired = queue.leases(2)
    expire_lease(queue.pool, expired.job_id)
    connection = queue.database.connect()

    reap_expired_leases(connection, limit=10, retry_delay_ms=1_000)

    assert heartbeat_jobs(queue.pool, [live], lease_ttl_seconds=60) == ["RENEWED"]
    connection.commit()


def test_lease_that_ended_since_the_callers_transaction_began_is_reaped(queue: Queue):
    lease = queue.started()
    connection = queue.database.connect()
    connection.execute("SELECT 1")
    queue.execute("UPDATE runledger.job_queue SET lease_expires_at = clock_timestamp()")

    result = reap_expired_leases(connection, limit=10, retry_delay_ms=1_000)

    assert ids(result) == [lease.job_id]
    connection.commit()


def test_only_the_lease_of_the_present_attempt_counts(queue: Queue):
    lease = queue.started()
    for _ in range(2):
        expire_lease(queue.pool, lease.job_id)
        reap(queue)
        make_due(queue.pool, lease.job_id)
        queue.lease()
    queue.execute("UPDATE runledger.job_queue SET started_at = started_at - interval '1 day'")

    assert ids(reap(queue)) == []
    assert queue.job(lease.job_id).attempt == 3


def test_recovery_needs_nothing_but_the_row(queue: Queue):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)
    queue.execute("DELETE FROM runledger.job_definitions")
    queue.execute("DELETE FROM runledger.job_workers")

    assert ids(reap(queue)) == [lease.job_id]
    make_due(queue.pool, lease.job_id)
    assert queue.lease("worker-2").job_id == lease.job_id


def test_heartbeat_before_the_end_is_told(queue: Queue):
    queue.enqueue(2)
    silent, beating = queue.leases(2)
    heartbeat_job(queue.pool, beating, lease_ttl_seconds=60)
    for lease in (silent, beating):
        expire_lease(queue.pool, lease.job_id)

    told = {job.lease.job_id: job.is_without_heartbeat for job in reap(queue).reaped}

    assert told == {silent.job_id: True, beating.job_id: False}


def test_oldest_leases_come_first(queue: Queue):
    queue.enqueue(5)
    leases = queue.leases(5)
    for age, lease in zip((3, 1, 5, 2, 4), leases, strict=True):
        queue.execute(
            "UPDATE runledger.job_queue SET lease_expires_at = now() - %s * interval '1 min'"
            " WHERE id = %s",
            age,
            lease.job_id,
        )

    assert ids(reap(queue, limit=3)) == [leases[n].job_id for n in (2, 4, 0)]
    assert ids(reap(queue, limit=3)) == [leases[n].job_id for n in (3, 1)]


def test_row_held_by_somebody_else_is_left_for_the_next_pass(queue: Queue):
    queue.enqueue(3)
    leases = queue.leases(3)
    for lease in leases:
        expire_lease(queue.pool, lease.job_id)

    with queue.held(leases[0].job_id):
        first = reap(queue)

    assert ids(first) == [lease.job_id for lease in leases[1:]]
    assert ids(reap(queue)) == [leases[0].job_id]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"delay": 0}, "job.invalid_retry_delay"),
        ({"delay": -1}, "job.invalid_retry_delay"),
        ({"delay": 2**31}, "job.invalid_retry_delay"),
        ({"delay": True}, "input.wrong_type"),
        ({"limit": 0}, "input.out_of_range"),
        ({"limit": 1_001}, "input.out_of_range"),
        ({"backoff_ms": [0]}, "input.out_of_range"),
        ({"backoff_ms": [1, 2**31]}, "input.out_of_range"),
    ],
)
def test_arguments_are_refused_without_change(queue: Queue, arguments, code):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        reap(queue, **arguments)

    assert refused.value.code == code
    assert queue.image() == before


@pytest.mark.parametrize(
    ("attempt", "least", "most"),
    [(1, 900, 1_100), (2, 9_000, 11_000), (3, 90_000, 110_000), (4, 90_000, 110_000)],
)
def test_delay_grows_with_the_attempt_and_is_spread(queue: Queue, attempt, least, most):
    queue.enqueue(20, max_attempts=9)
    queue.execute("UPDATE runledger.job_queue SET attempt = %s, claim_number = %s", attempt - 1, 0)
    for lease in queue.leases(20):
        expire_lease(queue.pool, lease.job_id)
    queue.execute("UPDATE runledger.job_queue SET attempt = 1")
    queue.execute("UPDATE runledger.job_queue SET attempt = %s", attempt)

    reap(queue, delay=500, backoff_ms=[1_000, 10_000, 100_000])

    delays = [
        row["ms"] for row in queue.fetch("SELECT retry_delay_ms ms FROM runledger.job_attempts")
    ]
    assert least <= min(delays) < max(delays) <= most
    queue.execute("TRUNCATE runledger.job_queue")


@pytest.mark.parametrize("backoff", [[], [1], [100, 200]])
def test_delay_is_never_below_the_reapers_own(queue: Queue, backoff):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)

    reap(queue, delay=30_000, backoff_ms=backoff)

    assert queue.value("SELECT retry_delay_ms FROM runledger.job_attempts") == 30_000


def test_longest_backoff_fits(queue: Queue):
    for lease in [queue.started() for _ in range(8)]:
        expire_lease(queue.pool, lease.job_id)

    assert len(reap(queue, backoff_ms=[2**31 - 1]).reaped) == 8


def test_bad_row_is_deferred_and_reported_while_healthy_rows_go_on(queue: Queue):
    queue.enqueue(4)
    leases = queue.leases(4)
    for lease in leases:
        expire_lease(queue.pool, lease.job_id)
    bad = leases[1].job_id
    queue.execute(REFUSE_ATTEMPTS.format(job_id=bad))

    result = reap(queue)

    (deferred,) = result.deferred
    assert ids(result) == [lease.job_id for lease in leases if lease.job_id != bad]
    assert (deferred.job_id, deferred.error.code) == (bad, "db.query_failed")
    assert queue.job(bad).status is JobStatus.LEASED
    assert queue.value(
        "SELECT lease_expires_at - now() BETWEEN '25 s' AND '30 s' FROM runledger.job_queue"
        " WHERE status = 'LEASED'"
    )
    assert reap(queue) == ReapResult([], [])
    queue.execute("DROP TRIGGER refuse ON runledger.job_attempts")
    expire_lease(queue.pool, bad)
    assert ids(reap(queue)) == [bad]


def test_row_that_takes_no_write_at_all_is_reported_and_stops_nobody(queue: Queue):
    queue.enqueue(3)
    leases = queue.leases(3)
    for lease in leases:
        expire_lease(queue.pool, lease.job_id)
    queue.execute(REFUSE_WRITES.format(job_id=leases[0].job_id))

    result = reap(queue)

    assert ids(result) == [lease.job_id for lease in leases[1:]]
    assert [error.job_id for error in result.deferred] == [leases[0].job_id]


@pytest.mark.parametrize("numbers", ["claim_number = -5", "attempt = 0", "worker_id = ' '"])
def test_lease_that_no_claim_gave_ends_and_costs_the_others_nothing(queue: Queue, numbers: str):
    queue.enqueue(2)
    odd, plain = queue.leases(2)
    for lease in (odd, plain):
        expire_lease(queue.pool, lease.job_id)
    queue.execute(f"UPDATE runledger.job_queue SET {numbers} WHERE id = %s", odd.job_id)

    result = reap(queue)

    assert ids(result) == [plain.job_id]
    assert result.deferred == []
    assert [queue.job(lease.job_id).status for lease in (odd, plain)] == [JobStatus.PENDING] * 2
    # Its numbers break the invariants: no history leads to them.
    queue.execute("DELETE FROM runledger.job_queue WHERE id = %s", odd.job_id)


def test_bad_row_leaves_the_callers_transaction_usable(queue: Queue):
    queue.enqueue(2)
    leases = queue.leases(2)
    for lease in leases:
        expire_lease(queue.pool, lease.job_id)
    queue.execute(REFUSE_ATTEMPTS.format(job_id=leases[0].job_id))
    connection = queue.database.connect()
    connection.execute("CREATE TABLE public.mine AS SELECT 1 AS n")

    result = reap_expired_leases(connection, limit=10, retry_delay_ms=1_000)

    connection.commit()
    assert ids(result) == [leases[1].job_id]
    assert [error.job_id for error in result.deferred] == [leases[0].job_id]
    assert queue.value("SELECT n FROM public.mine") == 1


def test_reaping_in_the_callers_transaction_is_his_to_undo(queue: Queue):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)
    before = queue.image()
    connection = queue.database.connect()

    assert ids(reap_expired_leases(connection, limit=10, retry_delay_ms=1_000)) == [lease.job_id]

    connection.rollback()
    assert queue.image() == before


def test_retry_goes_on_until_attempts_are_exhausted(queue: Queue):
    lease = queue.started(max_attempts=2)
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, lease.job_id)
    queue.lease()
    expire_lease(queue.pool, lease.job_id)

    (reaped,) = reap(queue).reaped

    assert reaped.disposition is DEAD
    assert queue.timeline(lease.job_id) == [
        "ENQUEUED", "LEASED", "FAILED", "RETRY_SCHEDULED", "LEASED", "FAILED", "DEAD_LETTERED",
    ]  # fmt: skip
