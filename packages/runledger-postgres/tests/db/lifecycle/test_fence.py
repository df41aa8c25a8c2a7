"""A stale claim changes nothing at all: every owner write, every way of losing a lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from runledger_core import (
    JobCompletion,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    JobStage,
    RunledgerError,
    Scope,
)
from runledger_postgres.lifecycle import (
    FailureEntry,
    HeartbeatVerdict,
    SuccessEntry,
    WriteVerdict,
    cancel_job,
    complete_job_failure,
    complete_job_success,
    complete_jobs,
    fail_jobs,
    heartbeat_job,
    heartbeat_jobs,
    reap_expired_leases,
    release_job,
    release_jobs,
    requeue_job,
    run_waiting_round,
    run_worker_round,
    update_job_progress,
)
from runledger_test_support import expire_lease, make_due

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
RETRY = JobFailure.retryable("test.retry", "later")
FATAL = JobFailure.terminal("test.fatal", "never")
PROGRESS = JobProgressUpdate(stage=JobStage.QUEUED, done=1, total=2, checkpoint="c")


def reap(queue: Queue, lease: JobLease) -> JobLease:
    expire_lease(queue.pool, lease.job_id)
    reap_expired_leases(queue.pool, limit=1, retry_delay_ms=1)
    return lease


def claim_again(queue: Queue, lease: JobLease) -> JobLease:
    """Let the same worker claim the job again."""
    make_due(queue.pool, lease.job_id)
    assert queue.lease().job_id == lease.job_id
    return lease


def expired(queue: Queue, lease: JobLease) -> JobLease:
    expire_lease(queue.pool, lease.job_id)
    return lease


def reaped_and_reclaimed(queue: Queue, lease: JobLease) -> JobLease:
    return claim_again(queue, reap(queue, lease))


def failed_and_reclaimed(queue: Queue, lease: JobLease) -> JobLease:
    complete_job_failure(queue.pool, lease, JobFailure.timeout("test.late", ""), retry_delay_ms=1)
    return claim_again(queue, lease)


def canceled(queue: Queue, lease: JobLease) -> JobLease:
    cancel_job(queue.pool, lease.job_id, scope=ADMIN)
    return lease


def requeued(queue: Queue, lease: JobLease) -> JobLease:
    requeue_job(queue.pool, canceled(queue, lease).job_id, scope=ADMIN)
    return lease


def requeued_and_reclaimed(queue: Queue, lease: JobLease) -> JobLease:
    return claim_again(queue, requeued(queue, lease))


def released_and_reclaimed(queue: Queue, lease: JobLease) -> JobLease:
    release_job(queue.pool, lease, reason="test")
    claim_again(queue, lease)
    # Only the claim number tells the two apart.
    assert queue.job(lease.job_id).attempt == lease.attempt
    return lease


def wrong_worker(queue: Queue, lease: JobLease) -> JobLease:
    return replace(lease, worker_id="worker-2")


def claim_to_come(queue: Queue, lease: JobLease) -> JobLease:
    return replace(lease, claim_number=2)


def wrong_job(queue: Queue, lease: JobLease) -> JobLease:
    return replace(lease, job_id=uuid4())


WAYS = [
    expired, reap, reaped_and_reclaimed, failed_and_reclaimed, canceled, requeued,
    requeued_and_reclaimed, released_and_reclaimed, wrong_worker, claim_to_come, wrong_job,
]  # fmt: skip

SINGLE: dict[str, Callable[[Any, JobLease], object]] = {
    "heartbeat": lambda db, lease: heartbeat_job(db, lease, lease_ttl_seconds=60),
    "progress": lambda db, lease: update_job_progress(db, lease, PROGRESS),
    "success": lambda db, lease: complete_job_success(db, lease, JobCompletion(1)),
    "retry": lambda db, lease: complete_job_failure(db, lease, RETRY, retry_delay_ms=1),
    "dead letter": lambda db, lease: complete_job_failure(db, lease, FATAL),
    "invalid retry": lambda db, lease: complete_job_failure(db, lease, RETRY),
    "release": lambda db, lease: release_job(db, lease, reason="test"),
}
BATCH: dict[str, Callable[[Any, JobLease], list[Any]]] = {
    "heartbeat": lambda db, lease: heartbeat_jobs(db, [lease], lease_ttl_seconds=60),
    "success": lambda db, lease: complete_jobs(db, [SuccessEntry(lease, JobCompletion(1))]),
    "retry": lambda db, lease: fail_jobs(db, [FailureEntry(lease, RETRY, retry_delay_ms=1)]),
    "dead letter": lambda db, lease: fail_jobs(db, [FailureEntry(lease, FATAL)]),
    "release": lambda db, lease: release_jobs(db, [lease], reason="test"),
    "round": lambda db, lease: (
        run_worker_round(db, successes=[SuccessEntry(lease, JobCompletion(1))]).successes
    ),
    "waiting round": lambda db, lease: (
        run_waiting_round(db, failures=[FailureEntry(lease, FATAL)], wait_ms=1).failures
    ),
}


@pytest.mark.parametrize("write", SINGLE)
@pytest.mark.parametrize("lose", WAYS)
def test_stale_write_is_refused_and_changes_nothing(queue: Queue, lose, write):
    stale = lose(queue, queue.started())
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        SINGLE[write](queue.pool, stale)

    assert refused.value.code == "job.lease_owner_mismatch"
    assert queue.image() == before


@pytest.mark.parametrize("write", BATCH)
@pytest.mark.parametrize("lose", WAYS)
def test_stale_entry_of_a_batch_is_refused_and_changes_nothing(queue: Queue, lose, write):
    stale = lose(queue, queue.started())
    connection = queue.database.connect(autocommit=True)
    before = queue.image()

    (outcome,) = BATCH[write](connection, stale)

    verdict = getattr(outcome, "verdict", outcome)
    assert verdict in {
        WriteVerdict.LEASE_OWNER_MISMATCH, HeartbeatVerdict.LOST, HeartbeatVerdict.CANCELED,
    }  # fmt: skip
    assert queue.image() == before


@pytest.mark.parametrize("write", SINGLE)
def test_stale_write_in_the_callers_transaction_leaves_it_usable(queue: Queue, write):
    stale = canceled(queue, queue.started())
    connection = queue.database.connect()
    connection.execute("CREATE TABLE public.mine AS SELECT 1 AS n")
    before = queue.image()

    with pytest.raises(RunledgerError):
        SINGLE[write](connection, stale)

    connection.commit()
    assert queue.value("SELECT n FROM public.mine") == 1
    assert queue.image() == before


@pytest.mark.parametrize(
    "write", ["heartbeat", "progress", "success", "retry", "dead letter", "release"]
)
def test_write_that_waited_for_its_row_past_the_end_of_the_lease_is_refused(
    queue: Queue, background, write
):
    lease = queue.started()
    queue.execute(
        "UPDATE runledger.job_queue SET lease_expires_at = clock_timestamp() + interval '300 ms'"
    )
    before = queue.image()

    with queue.held(lease.job_id) as host:
        waiting = background.submit(SINGLE[write], queue.pool, lease)
        queue.until_waiting()
        queue.until("SELECT lease_expires_at < clock_timestamp() FROM runledger.job_queue")
        # The row was never changed: nothing makes PostgreSQL look at its condition again.
        host.rollback()
        with pytest.raises(RunledgerError) as refused:
            waiting.result()

    assert refused.value.code == "job.lease_owner_mismatch"
    assert queue.image() == before


@pytest.mark.parametrize("write", ["progress", "success", "retry", "dead letter", "release"])
def test_write_that_waited_for_a_heartbeat_goes_by_the_renewed_lease(
    queue: Queue, background, write
):
    lease = queue.started()
    queue.execute(
        "UPDATE runledger.job_queue SET lease_expires_at = clock_timestamp() + interval '300 ms'"
    )
    host = queue.database.connect()
    heartbeat_job(host, lease, lease_ttl_seconds=60)

    waiting = background.submit(SINGLE[write], queue.pool, lease)
    queue.until_waiting()
    queue.until("SELECT lease_expires_at < clock_timestamp() FROM runledger.job_queue")
    host.commit()

    waiting.result()
