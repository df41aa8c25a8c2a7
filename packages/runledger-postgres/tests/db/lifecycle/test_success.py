from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import (
    UNSET,
    JobCompletion,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    JobStatus,
    RunledgerError,
    Scope,
)
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    SuccessEntry,
    SuccessOutcome,
    WriteVerdict,
    complete_job_failure,
    complete_job_success,
    complete_jobs,
    requeue_job,
    update_job_progress,
)
from runledger_test_support import expire_lease, make_due

pytestmark = pytest.mark.core

if TYPE_CHECKING:
    from conftest import Queue

STORED, REPEATED, BUSY = WriteVerdict.STORED, WriteVerdict.REPEATED, WriteVerdict.BUSY
MISMATCH, INVALID = WriteVerdict.LEASE_OWNER_MISMATCH, WriteVerdict.INVALID_PROGRESS


def succeed(queue: Queue, lease: JobLease, output: Any = UNSET, **fields) -> SuccessOutcome:
    return complete_job_success(queue.pool, lease, JobCompletion(output, **fields))


def test_success_ends_attempt_and_job(queue: Queue):
    lease = queue.started()
    leased_at = queue.job(lease.job_id).leased_at

    outcome = succeed(queue, lease, {"sum": 3}, progress_done=1, progress_total=2, checkpoint=[1])

    job = queue.job(lease.job_id)
    assert outcome == SuccessOutcome(STORED, progress_done=1, progress_total=2)
    assert (job.status, job.stage, job.output) == (JobStatus.SUCCEEDED, "completed", {"sum": 3})
    assert (job.progress_done, job.progress_total, job.checkpoint) == (1, 2, [1])
    assert (job.worker_id, job.lease_expires_at, job.leased_at) == (None, None, None)
    assert job.finished_at == job.updated_at
    assert queue.fetch("SELECT * FROM runledger.job_attempts") == [
        {
            "job_id": lease.job_id, "claim_number": 1, "run_number": 1, "attempt": 1,
            "outcome": "SUCCEEDED", "leased_at": leased_at, "finished_at": job.finished_at,
            "retry_delay_ms": None, "worker_id": "worker-1", "error_code": None,
            "error_message": None,
        }
    ]  # fmt: skip
    assert queue.timeline(lease.job_id) == ["ENQUEUED", "LEASED", "SUCCEEDED"]


def test_what_is_not_given_stays_and_is_reported(queue: Queue):
    lease = queue.started()
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=3, total=9, checkpoint="c"))

    outcome = succeed(queue, lease, progress_done=9)

    job = queue.job(lease.job_id)
    assert outcome == SuccessOutcome(STORED, progress_done=9, progress_total=9)
    assert (job.progress_done, job.progress_total, job.checkpoint) == (9, 9, "c")
    assert job.output is UNSET


def test_json_null_is_an_output(queue: Queue):
    lease = queue.started()

    succeed(queue, lease, None)

    assert queue.job(lease.job_id).output is None


def test_success_forgets_the_errors_of_earlier_attempts(queue: Queue):
    lease = queue.started()
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, lease.job_id)

    succeed(queue, queue.lease())

    job = queue.job(lease.job_id)
    assert (job.status_reason, job.last_error_code, job.last_error_message) == (None, None, None)


@pytest.mark.parametrize("given", [{"progress_done": 4}, {"progress_total": 1}])
def test_progress_that_merging_makes_invalid_is_refused_without_change(queue: Queue, given):
    lease = queue.started()
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=2, total=3))
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        succeed(queue, lease, **given)
    outcomes = complete_jobs(queue.pool, [SuccessEntry(lease, JobCompletion(**given))])

    assert refused.value.code == "job.invalid_completion_progress"
    assert outcomes == [SuccessOutcome(INVALID)]
    assert queue.image() == before


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (UNSET, UNSET),
        (None, None),
        ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}),
        ({"n": 1}, {"n": 1.0}),
    ],
)
def test_repeated_success_answers_as_stored_and_changes_nothing(queue: Queue, first, second):
    lease = queue.started()
    succeed(queue, lease, first, progress_done=1)
    before = queue.image()

    repeated = succeed(queue, lease, second, progress_done=1)

    assert repeated == SuccessOutcome(REPEATED, progress_done=1)
    assert queue.image() == before


@pytest.mark.parametrize(
    ("first", "second"), [(UNSET, None), (None, UNSET), ({"n": 1}, {"n": 2}), ([1, 2], [2, 1])]
)
def test_success_with_another_output_is_no_repeat(queue: Queue, first, second):
    lease = queue.started()
    succeed(queue, lease, first)
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        succeed(queue, lease, second)

    assert refused.value.code == "job.lease_owner_mismatch"
    assert queue.image() == before


def test_success_after_a_stored_failure_is_no_repeat(queue: Queue):
    lease = queue.started()
    complete_job_failure(queue.pool, lease, JobFailure.terminal("a", "b"))

    with pytest.raises(RunledgerError) as refused:
        succeed(queue, lease)

    assert refused.value.code == "job.lease_owner_mismatch"


def test_success_of_another_worker_is_no_repeat(queue: Queue):
    lease = queue.started()
    succeed(queue, lease)
    stranger = JobLease(lease.job_id, 1, attempt=1, claim_number=1, worker_id="worker-2")

    with pytest.raises(RunledgerError) as refused:
        succeed(queue, stranger)

    assert refused.value.code == "job.lease_owner_mismatch"


def test_repeat_answers_as_stored_after_the_job_runs_again(queue: Queue):
    lease = queue.started()
    succeed(queue, lease, {"n": 1}, progress_done=7)
    requeue_job(queue.pool, lease.job_id, scope=Scope.ADMIN)

    after_requeue = succeed(queue, lease, {"n": 1})
    again = queue.lease()
    update_job_progress(queue.pool, again, JobProgressUpdate(done=1))
    before = queue.image()
    after_claim = succeed(queue, lease, {"n": 1})

    # The progress of the earlier run is gone; that of the present one is not the old claim's.
    assert after_requeue == after_claim == SuccessOutcome(REPEATED)
    assert queue.image() == before


def test_repeat_whose_history_is_pruned_is_a_mismatch(queue: Queue):
    lease = queue.started()
    succeed(queue, lease)
    attempts = queue.fetch("DELETE FROM runledger.job_attempts RETURNING job_id")
    assert len(attempts) == 1

    with pytest.raises(RunledgerError) as refused:
        succeed(queue, lease)

    assert refused.value.code == "job.lease_owner_mismatch"
    queue.execute("DELETE FROM runledger.job_queue")


def test_batch_answers_in_input_order_for_each_entry_by_itself(queue: Queue):
    queue.enqueue(6)
    live, busy, expired, repeated, changed, invalid = queue.leases(6)
    succeed(queue, repeated, 1)
    succeed(queue, changed, 1)
    expire_lease(queue.pool, expired.job_id)
    update_job_progress(queue.pool, invalid, JobProgressUpdate(total=1))

    with queue.held(busy.job_id):
        outcomes = complete_jobs(
            queue.pool,
            [
                SuccessEntry(changed, JobCompletion(2)),
                SuccessEntry(expired, JobCompletion()),
                SuccessEntry(live, JobCompletion({"a": "b"})),
                SuccessEntry(busy, JobCompletion()),
                SuccessEntry(invalid, JobCompletion(progress_done=2)),
                SuccessEntry(repeated, JobCompletion(1)),
            ],
        )

    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == [MISMATCH, MISMATCH, STORED, BUSY, INVALID, REPEATED]
    assert queue.job(live.job_id).output == {"a": "b"}
    assert queue.job(changed.job_id).output == 1


def test_row_held_by_a_host_transaction_costs_no_other_success(queue: Queue):
    queue.enqueue(100)
    leases = queue.leases(100)
    entries = [SuccessEntry(lease, JobCompletion(index)) for index, lease in enumerate(leases)]

    with queue.held(leases[99].job_id):
        verdicts = [outcome.verdict for outcome in complete_jobs(queue.pool, entries)]

    assert verdicts == [*[STORED] * 99, BUSY]
    assert [queue.job(lease.job_id).output for lease in leases[:99]] == list(range(99))
    assert complete_jobs(queue.pool, entries[99:]) == [SuccessOutcome(STORED)]


def test_no_entries_need_no_sql():
    assert complete_jobs(None, []) == []  # pyright: ignore[reportArgumentType]  # never used


def test_same_job_twice_is_refused_without_change(queue: Queue):
    lease = queue.started()
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        complete_jobs(queue.pool, [SuccessEntry(lease, JobCompletion())] * 2)

    assert (refused.value.code, refused.value.entry_index) == ("input.duplicate_entry", 1)
    assert queue.image() == before


def test_success_is_all_or_nothing(queue: Queue):
    lease = queue.started()
    queue.execute("ALTER TABLE runledger.job_attempts ADD CHECK (outcome <> 'SUCCEEDED')")
    before = queue.image()

    with pytest.raises(QueryError):
        succeed(queue, lease)

    assert queue.image() == before


def test_success_in_the_callers_transaction_is_his_to_undo(queue: Queue):
    lease = queue.started()
    before = queue.image()
    connection = queue.database.connect()

    complete_job_success(connection, lease)
    repeated = complete_job_success(connection, lease)

    assert repeated.verdict is REPEATED
    connection.rollback()
    assert queue.image() == before
