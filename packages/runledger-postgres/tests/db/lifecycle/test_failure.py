from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from runledger_core import (
    UNSET,
    EnqueueDisposition,
    JobCompletion,
    JobDeadLetterReason,
    JobEnqueue,
    JobFailure,
    JobFailureKind,
    JobLease,
    JobProgressUpdate,
    JobStatus,
    RunledgerError,
    Scope,
)
from runledger_postgres import enqueue_job
from runledger_postgres.errors import QueryError
from runledger_postgres.jobs import get_dead_letter
from runledger_postgres.lifecycle import (
    FailureDisposition,
    FailureEntry,
    FailureOutcome,
    WriteVerdict,
    complete_job_failure,
    complete_job_success,
    fail_jobs,
    requeue_job,
    update_job_progress,
)
from runledger_test_support import expire_lease, make_due

pytestmark = pytest.mark.core

if TYPE_CHECKING:
    from conftest import Queue

STORED, REPEATED, BUSY = WriteVerdict.STORED, WriteVerdict.REPEATED, WriteVerdict.BUSY
MISMATCH, INVALID = WriteVerdict.LEASE_OWNER_MISMATCH, WriteVerdict.INVALID_RETRY_DELAY
RETRY, DEAD = FailureDisposition.RETRY_SCHEDULED, FailureDisposition.DEAD_LETTERED
NON_RETRYABLE = JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE
EXHAUSTED = JobDeadLetterReason.ATTEMPTS_EXHAUSTED
EXPIRED = JobDeadLetterReason.LEASE_EXPIRED
BUSY_SERVER = JobFailure.retryable("smtp.busy", "try later")


def fail(
    queue: Queue, lease: JobLease, failure: JobFailure = BUSY_SERVER, delay: int | None = 5_000
) -> FailureOutcome:
    return complete_job_failure(queue.pool, lease, failure, retry_delay_ms=delay)


def test_retry_ends_the_attempt_and_waits(queue: Queue):
    lease = queue.started()
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=1, total=2, checkpoint="c"))
    leased_at = queue.job(lease.job_id).leased_at

    outcome = fail(queue, lease)

    job = queue.job(lease.job_id)
    assert outcome == FailureOutcome(
        STORED, RETRY, next_run_at=job.next_run_at, retry_delay_ms=5_000, max_attempts=3
    )
    assert (job.status, job.stage, job.attempt, job.run_number) == (
        JobStatus.PENDING,
        "queued",
        1,
        1,
    )
    assert (job.progress_done, job.progress_total, job.checkpoint) == (1, 2, "c")
    assert (job.status_reason, job.last_error_code) == ("RETRYABLE", "smtp.busy")
    assert job.last_error_message == "try later"
    assert (job.worker_id, job.lease_expires_at, job.finished_at) == (None, None, None)
    assert job.next_run_at - job.updated_at == timedelta(seconds=5)
    assert queue.value("SELECT is_ready FROM runledger.job_queue") is False
    assert queue.fetch("SELECT * FROM runledger.job_attempts") == [
        {
            "job_id": lease.job_id, "claim_number": 1, "run_number": 1, "attempt": 1,
            "outcome": "RETRYABLE", "leased_at": leased_at, "finished_at": job.updated_at,
            "retry_delay_ms": 5_000, "worker_id": "worker-1", "error_code": "smtp.busy",
            "error_message": "try later",
        }
    ]  # fmt: skip
    assert queue.timeline(lease.job_id) == [
        "ENQUEUED", "LEASED", "PROGRESS", "FAILED", "RETRY_SCHEDULED",
    ]  # fmt: skip
    make_due(queue.pool, lease.job_id)
    assert queue.lease().attempt == 2


@pytest.mark.parametrize(
    ("kind", "attempts_left", "disposition", "reason"),
    [
        (JobFailureKind.RETRYABLE, True, RETRY, None),
        (JobFailureKind.TIMEOUT, True, RETRY, None),
        (JobFailureKind.LEASE_EXPIRED, True, RETRY, None),
        (JobFailureKind.TERMINAL, True, DEAD, NON_RETRYABLE),
        (JobFailureKind.PANICKED, True, DEAD, NON_RETRYABLE),
        (JobFailureKind.RETRYABLE, False, DEAD, EXHAUSTED),
        (JobFailureKind.TIMEOUT, False, DEAD, EXHAUSTED),
        (JobFailureKind.LEASE_EXPIRED, False, DEAD, EXPIRED),
        (JobFailureKind.TERMINAL, False, DEAD, NON_RETRYABLE),
        (JobFailureKind.PANICKED, False, DEAD, NON_RETRYABLE),
    ],
)
def test_kind_and_attempts_decide_what_follows(
    queue: Queue, kind, attempts_left, disposition, reason
):
    lease = queue.started(max_attempts=2 if attempts_left else 1)

    outcome = fail(queue, lease, JobFailure(kind, "a.b", "c"))

    assert (outcome.verdict, outcome.disposition) == (STORED, disposition)
    assert outcome.dead_letter_reason == reason
    assert queue.value("SELECT outcome::text FROM runledger.job_attempts") == kind
    assert queue.job(lease.job_id).status == ("DEAD_LETTERED" if disposition is DEAD else "PENDING")


def test_dead_letter_keeps_what_the_last_attempt_saw(queue: Queue):
    lease = queue.started(payload={"to": "a"})
    update_job_progress(queue.pool, lease, JobProgressUpdate(checkpoint={"page": 3}))

    outcome = fail(queue, lease, JobFailure.terminal("mail.unknown", "no such address"))

    job = queue.job(lease.job_id)
    letter = get_dead_letter(queue.pool, lease.job_id, scope=Scope.ADMIN)
    assert outcome == FailureOutcome(
        STORED, DEAD, dead_letter_reason=NON_RETRYABLE, max_attempts=3, checkpoint={"page": 3}
    )
    assert (job.status, job.finished_at) == (JobStatus.DEAD_LETTERED, job.updated_at)
    assert (job.stage, job.checkpoint, job.output) == ("running", {"page": 3}, UNSET)
    assert letter is not None
    assert (letter.run_number, letter.attempt, letter.error_code) == (1, 1, "mail.unknown")
    assert (letter.payload_snapshot, letter.checkpoint_snapshot) == ({"to": "a"}, {"page": 3})
    assert letter.failed_at == letter.created_at == job.finished_at
    assert queue.timeline(lease.job_id)[-2:] == ["FAILED", "DEAD_LETTERED"]


def test_later_run_overwrites_the_dead_letter_and_keeps_its_birth(queue: Queue):
    lease = queue.started(payload=1)
    fail(queue, lease, JobFailure.terminal("first", "1"))
    first = get_dead_letter(queue.pool, lease.job_id, scope=Scope.ADMIN)
    requeue_job(queue.pool, lease.job_id, scope=Scope.ADMIN)

    fail(queue, queue.lease(), JobFailure.terminal("second", "2"))

    second = get_dead_letter(queue.pool, lease.job_id, scope=Scope.ADMIN)
    assert first is not None
    assert second is not None
    assert (second.run_number, second.error_code, second.error_message) == (2, "second", "2")
    assert second.created_at == first.created_at
    assert second.failed_at > first.failed_at


@pytest.mark.parametrize("delay", [None, 0, -1, -(2**40)])
def test_retry_without_a_positive_delay_is_refused_without_change(queue: Queue, delay):
    lease = queue.started()
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        fail(queue, lease, delay=delay)
    outcomes = fail_jobs(queue.pool, [FailureEntry(lease, BUSY_SERVER, retry_delay_ms=delay)])

    assert (refused.value.code, refused.value.field) == (
        "job.invalid_retry_delay",
        "retry_delay_ms",
    )
    assert outcomes == [FailureOutcome(INVALID)]
    assert queue.image() == before


@pytest.mark.parametrize("delay", [None, 0, -1, -(2**40), 2**40])
@pytest.mark.parametrize("kind", ["TERMINAL", "PANICKED", "RETRYABLE"])
def test_dead_letter_ignores_the_delay(queue: Queue, kind, delay):
    lease = queue.started(max_attempts=1)

    outcome = fail(queue, lease, JobFailure(JobFailureKind(kind), "a", "b"), delay)

    assert (outcome.disposition, outcome.next_run_at) == (DEAD, None)
    assert queue.value("SELECT retry_delay_ms FROM runledger.job_attempts") is None


def test_retry_goes_behind_what_was_due_before_the_attempt_failed(queue: Queue):
    poison = queue.enqueue(3)
    leases = queue.leases(3)
    good = queue.enqueue(3)

    for lease in leases:
        complete_job_failure(queue.pool, lease, BUSY_SERVER, retry_delay_ms=1)
    queue.until("SELECT max(next_run_at) <= clock_timestamp() FROM runledger.job_queue")

    assert [job.id for job in queue.claim(6)] == good + poison


def test_endless_delay_becomes_the_longest(queue: Queue):
    lease = queue.started()

    fail(queue, lease, delay=2**40)

    job = queue.job(lease.job_id)
    assert job.next_run_at - job.updated_at == timedelta(milliseconds=2**31 - 1)


def test_text_of_a_failure_is_made_storable(queue: Queue):
    lease = queue.started()
    failure = JobFailure.terminal("a\0b", "x\ud800" + "y" * 1_000_000)
    entry = FailureEntry(lease, failure, traceback="t\0" + "z" * 1_000_000)

    (outcome,) = fail_jobs(queue.pool, [entry])

    job = queue.job(lease.job_id)
    assert outcome.verdict is STORED
    assert job.last_error_code == "a\ufffdb"
    assert job.last_error_message.startswith("x\ufffdyyy")
    assert len(job.last_error_message.encode()) == 8 * 1024
    (log,) = queue.fetch("SELECT * FROM runledger.job_logs")
    assert (log["claim_number"], log["level"], log["attempt"]) == (1, "ERROR", 1)
    assert len(log["payload"]["traceback"].encode()) == 64 * 1024
    assert fail_jobs(queue.pool, [entry])[0].verdict is REPEATED


def test_text_that_a_subclass_changed_is_made_storable(queue: Queue):
    class HostFailure(JobFailure):
        pass

    lease = queue.started()
    failure = HostFailure(JobFailureKind.TERMINAL, "a", "b")
    failure.code, failure.message = "a\0", "b\ud800"

    assert fail(queue, lease, failure).verdict is STORED
    assert fail(queue, lease, failure).verdict is REPEATED
    assert queue.job(lease.job_id).last_error_code == "a\ufffd"


def test_traceback_of_a_failure_without_text_is_logged_under_its_code(queue: Queue):
    lease = queue.started()

    fail_jobs(
        queue.pool, [FailureEntry(lease, JobFailure.terminal("job.bug", ""), traceback="line 1")]
    )

    (log,) = queue.fetch("SELECT message, payload FROM runledger.job_logs")
    assert log == {"message": "job.bug", "payload": {"traceback": "line 1"}}


def test_repeated_failure_answers_as_stored_and_changes_nothing(queue: Queue):
    lease = queue.started()
    stored = fail(queue, lease)
    before = queue.image()

    repeated = fail(queue, lease, JobFailure.retryable("smtp.busy", "other words"), delay=1)

    assert repeated == FailureOutcome(
        REPEATED, RETRY, next_run_at=stored.next_run_at, retry_delay_ms=5_000, max_attempts=3
    )
    assert queue.image() == before


def test_repeated_failure_answers_as_stored_after_later_claims(queue: Queue):
    lease = queue.started()
    stored = fail(queue, lease)
    make_due(queue.pool, lease.job_id)
    during_second = (second := queue.lease()) and fail(queue, lease)
    fail(queue, second, delay=77)

    after_second = fail(queue, lease)

    assert during_second == after_second
    assert after_second == FailureOutcome(
        REPEATED, RETRY, next_run_at=stored.next_run_at, retry_delay_ms=5_000, max_attempts=3
    )


def test_repeated_dead_letter_answers_with_reason_and_checkpoint(queue: Queue):
    lease = queue.started(max_attempts=1)
    update_job_progress(queue.pool, lease, JobProgressUpdate(checkpoint=[7]))
    stored = fail(queue, lease)
    requeue_job(queue.pool, lease.job_id, scope=Scope.ADMIN)

    repeated = fail(queue, lease)

    assert stored == FailureOutcome(
        STORED, DEAD, dead_letter_reason=EXHAUSTED, max_attempts=1, checkpoint=[7]
    )
    assert repeated == FailureOutcome(
        REPEATED, DEAD, dead_letter_reason=EXHAUSTED, max_attempts=1, checkpoint=[7]
    )


@pytest.mark.parametrize(
    "other",
    [
        JobFailure.retryable("smtp.gone", "try later"),
        JobFailure.timeout("smtp.busy", "try later"),
        JobFailure.terminal("smtp.busy", "try later"),
    ],
)
def test_other_failure_is_no_repeat(queue: Queue, other):
    lease = queue.started()
    fail(queue, lease)
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        fail(queue, lease, other)

    assert refused.value.code == "job.lease_owner_mismatch"
    assert queue.image() == before


def test_batch_answers_in_input_order_for_each_entry_by_itself(queue: Queue):
    queue.enqueue(6)
    retried, dead, busy, expired, repeated, invalid = queue.leases(6)
    fail(queue, repeated)
    expire_lease(queue.pool, expired.job_id)

    with queue.held(busy.job_id):
        outcomes = fail_jobs(
            queue.pool,
            [
                FailureEntry(repeated, BUSY_SERVER, retry_delay_ms=1),
                FailureEntry(expired, BUSY_SERVER, retry_delay_ms=1),
                FailureEntry(dead, JobFailure.terminal("a", "b")),
                FailureEntry(busy, BUSY_SERVER, retry_delay_ms=1),
                FailureEntry(invalid, BUSY_SERVER),
                FailureEntry(retried, BUSY_SERVER, retry_delay_ms=1),
            ],
        )

    assert [(outcome.verdict, outcome.disposition) for outcome in outcomes] == [
        (REPEATED, RETRY), (MISMATCH, None), (STORED, DEAD), (BUSY, None), (INVALID, None),
        (STORED, RETRY),
    ]  # fmt: skip
    assert queue.job(invalid.job_id).status is JobStatus.LEASED


def test_row_held_by_a_host_transaction_costs_no_other_failure(queue: Queue):
    queue.enqueue(100)
    leases = queue.leases(100)
    entries = [FailureEntry(lease, BUSY_SERVER, retry_delay_ms=1) for lease in leases]

    with queue.held(leases[0].job_id):
        verdicts = [outcome.verdict for outcome in fail_jobs(queue.pool, entries)]

    assert verdicts == [BUSY, *[STORED] * 99]


def test_same_job_twice_is_refused_and_none_needs_no_sql(queue: Queue):
    lease = queue.started()

    with pytest.raises(RunledgerError) as refused:
        fail_jobs(queue.pool, [FailureEntry(lease, BUSY_SERVER, retry_delay_ms=1)] * 2)

    assert (refused.value.code, refused.value.entry_index) == ("input.duplicate_entry", 1)
    assert fail_jobs(None, []) == []  # pyright: ignore[reportArgumentType]  # never used


def test_dead_letter_of_an_unreadable_checkpoint_answers_without_it(queue: Queue):
    lease = queue.started(max_attempts=1)
    queue.execute("UPDATE runledger.job_queue SET checkpoint = %s", "1" + "0" * 5_000)

    assert fail(queue, lease).checkpoint is UNSET
    assert fail(queue, lease) == FailureOutcome(
        REPEATED, DEAD, dead_letter_reason=EXHAUSTED, max_attempts=1
    )


def test_failure_is_all_or_nothing(queue: Queue):
    lease = queue.started()
    queue.execute("ALTER TABLE runledger.job_events ADD CHECK (event_type <> 'RETRY_SCHEDULED')")
    before = queue.image()

    with pytest.raises(QueryError):
        fail(queue, lease)

    assert queue.image() == before


def test_retry_keeps_its_key_and_cannot_collide_with_a_newer_enqueue(queue: Queue):
    lease = queue.started(idempotency_key="order-1")
    fail(queue, lease)
    request = JobEnqueue("test.job", {}, idempotency_key="order-1")

    during_retry = enqueue_job(queue.pool, request)
    make_due(queue.pool, lease.job_id)
    complete_job_success(queue.pool, queue.lease(), JobCompletion())
    requeue_job(queue.pool, lease.job_id, scope=Scope.ADMIN)
    after_requeue = enqueue_job(queue.pool, request)

    assert during_retry.id == after_requeue.id == lease.job_id
    assert after_requeue.disposition is EnqueueDisposition.EXISTING
    assert queue.value("SELECT count(*) FROM runledger.job_queue") == 1
