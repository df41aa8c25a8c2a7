from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import (
    JobFailure,
    JobLease,
    JobProgressUpdate,
    JobStage,
    JobStatus,
    RunledgerError,
    Scope,
)
from runledger_postgres.jobs import insert_claim_log, list_job_events
from runledger_postgres.lifecycle import (
    WriteVerdict,
    complete_job_failure,
    give_back_jobs,
    release_job,
    release_jobs,
    update_job_progress,
)
from runledger_test_support import expire_lease, make_due

if TYPE_CHECKING:
    from conftest import Queue

STORED, REPEATED, BUSY = WriteVerdict.STORED, WriteVerdict.REPEATED, WriteVerdict.BUSY
MISMATCH, STARTED = WriteVerdict.LEASE_OWNER_MISMATCH, WriteVerdict.NOT_APPLICABLE


def test_release_gives_the_first_attempt_back(queue: Queue):
    lease = queue.started()
    leased_at = queue.job(lease.job_id).leased_at

    release_job(queue.pool, lease, reason="SHUTDOWN")

    job = queue.job(lease.job_id)
    assert (job.status, job.stage, job.attempt) == (JobStatus.PENDING, "queued", 0)
    assert (job.claim_number, job.run_number, job.status_reason) == (1, 1, "SHUTDOWN")
    assert (job.started_at, job.worker_id, job.lease_expires_at) == (None, None, None)
    assert job.next_run_at == job.updated_at
    assert queue.value("SELECT count(*) FROM runledger.job_attempts") == 0
    assert queue.timeline(lease.job_id) == ["ENQUEUED", "LEASED", "REQUEUED"]
    _, began, released = list_job_events(queue.pool, lease.job_id, scope=Scope.ADMIN)
    assert (began.occurred_at, began.attempt) == (leased_at, 1)
    assert began.payload == {"worker_id": "worker-1"}
    assert (released.claim_number, released.attempt, released.run_number) == (1, 1, 1)
    payload: Any = released.payload
    assert (payload["kind"], payload["reason"]) == ("RELEASE", "SHUTDOWN")


def test_released_job_is_claimed_again_under_the_same_attempt_and_a_new_claim(queue: Queue):
    old = queue.started()
    release_job(queue.pool, old, reason="SHUTDOWN")

    new = queue.lease()

    assert (new.job_id, new.attempt, new.run_number) == (old.job_id, 1, 1)
    assert (old.claim_number, new.claim_number) == (1, 2)


def test_release_of_a_later_attempt_keeps_the_start_of_the_run(queue: Queue):
    first = queue.started()
    complete_job_failure(queue.pool, first, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, first.job_id)
    started_at = queue.job(first.job_id).started_at

    release_job(queue.pool, queue.lease(), reason="SHUTDOWN")

    job = queue.job(first.job_id)
    assert (job.attempt, job.started_at, job.last_error_code) == (1, started_at, None)
    assert queue.lease().attempt == 2


def test_delayed_release_waits(queue: Queue):
    lease = queue.started()

    release_job(queue.pool, lease, reason="later", retry_delay_ms=1_500)

    job = queue.job(lease.job_id)
    assert job.next_run_at - job.updated_at == timedelta(milliseconds=1_500)
    assert queue.claim() == []


@pytest.mark.parametrize(
    "update",
    [
        JobProgressUpdate(done=0),
        JobProgressUpdate(total=5),
        JobProgressUpdate(checkpoint=None),
        JobProgressUpdate(stage=JobStage.RUNNING),
        "log",
    ],
    ids=["progress", "total", "checkpoint", "stage", "log"],
)
def test_started_claim_is_not_released(queue: Queue, update):
    lease = queue.started()
    if isinstance(update, JobProgressUpdate):
        update_job_progress(queue.pool, lease, update)
    else:
        insert_claim_log(queue.pool, lease, level="INFO", message="entered", payload={})
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        release_job(queue.pool, lease, reason="SHUTDOWN")

    assert refused.value.code == "job.unstarted_claim_release_not_applicable"
    assert release_jobs(queue.pool, [lease], reason="SHUTDOWN") == [STARTED]
    assert queue.image() == before


def test_what_earlier_claims_stored_does_not_hinder_a_release(queue: Queue):
    first = queue.started()
    update_job_progress(queue.pool, first, JobProgressUpdate(done=1))
    insert_claim_log(queue.pool, first, level="INFO", message="entered", payload={})
    complete_job_failure(queue.pool, first, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, first.job_id)

    assert release_jobs(queue.pool, [queue.lease()], reason="SHUTDOWN") == [STORED]


def test_of_ten_claims_nine_are_released_and_all_ten_run(queue: Queue):
    queue.enqueue(10, max_attempts=1)
    kept, *given_back = queue.leases(10)

    release_jobs(queue.pool, given_back, reason="SHUTDOWN")

    attempts = queue.fetch("SELECT attempt FROM runledger.job_queue WHERE status = 'PENDING'")
    assert attempts == [{"attempt": 0}] * 9
    again = queue.leases(9)
    assert {lease.job_id for lease in [kept, *again]} == {kept.job_id} | {
        lease.job_id for lease in given_back
    }
    assert {lease.attempt for lease in again} == {1}


def test_repeated_release_answers_as_stored_while_the_job_waits(queue: Queue):
    lease = queue.started()
    release_job(queue.pool, lease, reason="SHUTDOWN")
    before = queue.image()

    release_job(queue.pool, lease, reason="SHUTDOWN")

    assert release_jobs(queue.pool, [lease], reason="again") == [REPEATED]
    assert queue.image() == before


def test_claim_that_has_stored_something_is_given_back_with_it(queue: Queue):
    lease = queue.started()
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=1, total=2, checkpoint=[7]))
    insert_claim_log(queue.pool, lease, level="INFO", message="begun")

    assert give_back_jobs(queue.pool, [lease], reason="SHUTDOWN") == [STORED]
    assert give_back_jobs(queue.pool, [lease], reason="SHUTDOWN") == [REPEATED]

    job = queue.job(lease.job_id)
    assert (job.status, job.attempt, job.status_reason) == (JobStatus.PENDING, 0, "SHUTDOWN")
    assert (job.progress_done, job.progress_total, job.checkpoint) == (1, 2, [7])
    (again,) = queue.claim()
    assert again.lease.attempt == lease.attempt
    assert again.lease.claim_number == lease.claim_number + 1
    assert again.checkpoint == [7]


def test_claims_that_others_hold_or_that_are_not_live_are_not_given_back(queue: Queue):
    queue.enqueue(3)
    expired, held, plain = queue.leases(3)
    expire_lease(queue.pool, expired.job_id)
    with queue.database.connect() as holder:
        holder.execute("SELECT FROM runledger.job_queue WHERE id = %s FOR UPDATE", [held.job_id])

        verdicts = give_back_jobs(queue.pool, [expired, held, plain], reason="SHUTDOWN")

    assert verdicts == [MISMATCH, BUSY, STORED]
    assert [queue.job(lease.job_id).attempt for lease in (expired, held, plain)] == [1, 1, 0]


def test_release_of_another_worker_is_no_repeat(queue: Queue):
    lease = queue.started()
    release_job(queue.pool, lease, reason="SHUTDOWN")
    stranger = JobLease(lease.job_id, 1, attempt=1, claim_number=1, worker_id="worker-2")

    assert release_jobs(queue.pool, [stranger], reason="SHUTDOWN") == [MISMATCH]


def test_release_of_a_claim_that_ended_otherwise_is_no_repeat(queue: Queue):
    lease = queue.started()
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)

    assert release_jobs(queue.pool, [lease], reason="SHUTDOWN") == [MISMATCH]


def test_batch_answers_in_input_order_for_each_lease_by_itself(queue: Queue):
    queue.enqueue(5)
    live, busy, expired, started, released = queue.leases(5)
    update_job_progress(queue.pool, started, JobProgressUpdate(done=1))
    expire_lease(queue.pool, expired.job_id)
    release_job(queue.pool, released, reason="SHUTDOWN")

    with queue.held(busy.job_id):
        verdicts = release_jobs(
            queue.pool, [released, started, expired, busy, live], reason="SHUTDOWN"
        )

    assert verdicts == [REPEATED, STARTED, MISMATCH, BUSY, STORED]


def test_row_held_by_a_host_transaction_costs_no_other_release(queue: Queue):
    queue.enqueue(100)
    leases = queue.leases(100)

    with queue.held(leases[50].job_id):
        verdicts = release_jobs(queue.pool, leases, reason="SHUTDOWN")

    assert verdicts == [*[STORED] * 50, BUSY, *[STORED] * 49]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"reason": " "}, "input.blank"),
        ({"reason": "a\0"}, "input.invalid_characters"),
        ({"reason": "a", "retry_delay_ms": -1}, "input.out_of_range"),
        ({"reason": "a", "retry_delay_ms": 2**31}, "input.out_of_range"),
        ({"reason": "a", "retry_delay_ms": True}, "input.wrong_type"),
    ],
)
def test_arguments_are_refused_without_change(queue: Queue, arguments, code):
    lease = queue.started()
    before = queue.image()

    for call in (release_job, lambda db, one, **rest: release_jobs(db, [one], **rest)):
        with pytest.raises(RunledgerError) as refused:
            call(queue.pool, lease, **arguments)
        assert refused.value.code == code

    assert queue.image() == before


def test_long_reason_is_cut(queue: Queue):
    lease = queue.started()

    release_job(queue.pool, lease, reason="ä" * 8_000)

    reason = queue.job(lease.job_id).status_reason
    assert reason.endswith("… [cut]")
    assert len(reason.encode()) <= 8 * 1024


def test_same_job_twice_is_refused_and_none_needs_no_sql(queue: Queue):
    lease = queue.started()

    with pytest.raises(RunledgerError) as refused:
        release_jobs(queue.pool, [lease, lease], reason="SHUTDOWN")

    assert refused.value.code == "input.duplicate_entry"
    assert release_jobs(None, [], reason="x") == []  # pyright: ignore[reportArgumentType]  # never used


@pytest.mark.parametrize(("delay", "woken"), [(0, ["test.job"]), (5, [])])
def test_release_wakes_a_sleeping_worker_if_the_job_is_due(queue: Queue, delay, woken):
    lease = queue.started()

    with queue.asleep("test.job") as notifications:
        release_job(queue.pool, lease, reason="SHUTDOWN", retry_delay_ms=delay)

        assert notifications() == woken
