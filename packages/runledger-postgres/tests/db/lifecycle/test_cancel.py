from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from runledger_core import (
    JobCompletion,
    JobFailure,
    JobOutcome,
    JobProgressUpdate,
    JobStatus,
    RunledgerError,
    Scope,
)
from runledger_postgres.errors import QueryError
from runledger_postgres.jobs import list_job_attempts, list_job_events
from runledger_postgres.lifecycle import (
    OperatorVerdict,
    cancel_job,
    cancel_jobs,
    complete_job_failure,
    complete_job_success,
    update_job_progress,
)
from runledger_postgres.wakeup import CANCEL_CHANNEL
from runledger_test_support import expire_lease

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
MINE, OTHER = UUID(int=1), UUID(int=2)
DONE, NOT_FOUND = OperatorVerdict.DONE, OperatorVerdict.NOT_FOUND
INVALID_STATE = OperatorVerdict.INVALID_STATE


@pytest.mark.core
def test_pending_job_is_canceled(queue: Queue):
    (job_id,) = queue.enqueue()

    job = cancel_job(queue.pool, job_id, scope=ADMIN, reason="no longer needed")

    assert job == queue.job(job_id)
    assert (job.status, job.status_reason, job.attempt) == (
        JobStatus.CANCELED, "no longer needed", 0,
    )  # fmt: skip
    assert job.finished_at == job.updated_at
    assert queue.value("SELECT count(*) FROM runledger.job_attempts") == 0
    _, canceled = list_job_events(queue.pool, job_id, scope=ADMIN)
    assert (canceled.event_type, canceled.attempt) == ("CANCELED", None)
    assert canceled.payload == {"reason": "no longer needed"}
    assert queue.claim() == []


def test_running_job_is_canceled_and_its_attempt_closed(queue: Queue):
    lease = queue.started()
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=1, total=2, checkpoint="c"))

    job = cancel_job(queue.pool, lease.job_id, scope=ADMIN)

    (attempt,) = list_job_attempts(queue.pool, lease.job_id, scope=ADMIN)
    assert (job.status, job.status_reason) == (JobStatus.CANCELED, "CANCELED")
    assert (job.worker_id, job.lease_expires_at, job.leased_at) == (None, None, None)
    assert (job.stage, job.progress_done, job.checkpoint) == ("running", 1, "c")
    assert (attempt.outcome, attempt.worker_id) == (JobOutcome.CANCELED, "worker-1")
    assert (attempt.error_code, attempt.finished_at) == (None, job.finished_at)
    assert queue.timeline(lease.job_id) == ["ENQUEUED", "LEASED", "PROGRESS", "CANCELED"]


def test_job_waiting_for_its_retry_is_canceled(queue: Queue):
    lease = queue.started()
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)

    cancel_job(queue.pool, lease.job_id, scope=ADMIN)

    assert queue.timeline(lease.job_id) == [
        "ENQUEUED", "LEASED", "FAILED", "RETRY_SCHEDULED", "CANCELED",
    ]  # fmt: skip
    assert queue.claim() == []


def test_job_whose_lease_ran_out_is_canceled(queue: Queue):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)

    assert cancel_job(queue.pool, lease.job_id, scope=ADMIN).status is JobStatus.CANCELED


def test_job_of_a_workflow_run_is_canceled(queue: Queue):
    (job_id,) = queue.enqueue()
    queue.execute("UPDATE runledger.job_queue SET workflow_run_id = runledger.uuidv7()")

    assert cancel_job(queue.pool, job_id, scope=ADMIN).status is JobStatus.CANCELED


@pytest.mark.parametrize("status", ["SUCCEEDED", "DEAD_LETTERED", "CANCELED"])
def test_ended_job_is_not_canceled(queue: Queue, status):
    lease = queue.started()
    match status:
        case "SUCCEEDED":
            complete_job_success(queue.pool, lease, JobCompletion(1))
        case "DEAD_LETTERED":
            complete_job_failure(queue.pool, lease, JobFailure.terminal("a", "b"))
        case _:
            cancel_job(queue.pool, lease.job_id, scope=ADMIN)
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        cancel_job(queue.pool, lease.job_id, scope=ADMIN)

    assert refused.value.code == "job.invalid_state_transition"
    assert cancel_jobs(queue.pool, [lease.job_id], scope=ADMIN) == [INVALID_STATE]
    assert queue.image() == before


@pytest.mark.parametrize(
    ("owner", "scope", "is_found"),
    [
        (MINE, Scope.organization(MINE), True),
        (MINE, Scope.organization(OTHER), False),
        (MINE, Scope.GLOBAL, False),
        (MINE, Scope.ADMIN, True),
        (None, Scope.organization(MINE), False),
        (None, Scope.GLOBAL, True),
        (None, Scope.ADMIN, True),
    ],
)
def test_scope_decides_whose_jobs_can_be_canceled(queue: Queue, owner, scope, is_found):
    first, second = queue.enqueue(2, organization_id=owner)
    before = queue.image()

    if is_found:
        assert cancel_job(queue.pool, first, scope=scope).organization_id == owner
        assert cancel_jobs(queue.pool, [second], scope=scope) == [DONE]
    else:
        with pytest.raises(RunledgerError) as refused:
            cancel_job(queue.pool, first, scope=scope)
        assert refused.value.code == "job.not_found"
        assert cancel_jobs(queue.pool, [second], scope=scope) == [NOT_FOUND]
        assert queue.image() == before


def test_unknown_job_is_not_found(queue: Queue):
    with pytest.raises(RunledgerError) as refused:
        cancel_job(queue.pool, uuid4(), scope=ADMIN)

    assert (refused.value.code, refused.value.field) == ("job.not_found", "job_id")


def test_batch_answers_in_input_order_for_each_id(queue: Queue):
    first, second, ended = queue.enqueue(3)
    cancel_job(queue.pool, ended, scope=ADMIN)

    verdicts = cancel_jobs(queue.pool, [ended, uuid4(), second, first, second], scope=ADMIN)

    assert verdicts == [INVALID_STATE, NOT_FOUND, DONE, DONE, DONE]
    assert queue.value("SELECT count(*) FROM runledger.job_events") == 3


def test_no_ids_need_no_sql():
    assert cancel_jobs(None, [], scope=ADMIN) == []  # pyright: ignore[reportArgumentType]  # never used


@pytest.mark.parametrize(
    ("job_id", "reason", "code", "field"),
    [
        (uuid4(), "", "input.blank", "reason"),
        (uuid4(), "a\0", "input.invalid_characters", "reason"),
    ],
)
def test_arguments_are_refused_before_sql(job_id, reason, code, field):
    for call in (cancel_job, lambda db, one, **rest: cancel_jobs(db, [one], **rest)):
        with pytest.raises(RunledgerError) as refused:
            call(None, job_id, scope=ADMIN, reason=reason)  # pyright: ignore[reportArgumentType]  # never used
        assert (refused.value.code, refused.value.field) == (code, field)


def test_long_reason_is_cut(queue: Queue):
    (job_id,) = queue.enqueue()

    job = cancel_job(queue.pool, job_id, scope=ADMIN, reason="ä" * 8_000)

    assert job.status_reason is not None
    assert job.status_reason.endswith("… [cut]")
    assert len(job.status_reason.encode()) <= 8 * 1024


def test_running_jobs_are_named_on_the_cancel_channel(queue: Queue):
    running = [lease.job_id for lease in [queue.started(), queue.started()]]
    (waiting,) = queue.enqueue()

    with queue.listening(CANCEL_CHANNEL) as told:
        cancel_jobs(queue.pool, [waiting, *running], scope=ADMIN)

        assert told() == [",".join(str(job_id) for job_id in sorted(running))]


def test_450_running_jobs_are_named_200_to_a_notification(queue: Queue):
    queue.enqueue(450)
    running = [lease.job_id for lease in queue.leases(450)]

    with queue.listening(CANCEL_CHANNEL) as told:
        verdicts = cancel_jobs(queue.pool, running, scope=ADMIN)

        payloads = told()
    assert verdicts == [DONE] * 450
    assert sorted(len(payload.split(",")) for payload in payloads) == [50, 200, 200]
    assert sorted(",".join(payloads).split(",")) == sorted(map(str, running))


def test_cancellation_in_the_callers_transaction_is_his_to_undo(queue: Queue):
    lease = queue.started()
    before = queue.image()
    connection = queue.database.connect()

    with queue.listening(CANCEL_CHANNEL) as told:
        assert cancel_job(connection, lease.job_id, scope=ADMIN).status is JobStatus.CANCELED
        connection.rollback()

        assert told() == []
    assert queue.image() == before


@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "pool"])
def test_job_that_python_cannot_read_is_canceled_and_the_caller_told_why_he_gets_no_record(
    queue: Queue, is_joined
):
    (job_id,) = queue.enqueue()
    queue.execute("UPDATE runledger.job_queue SET payload = %s", "9" * 5_000)
    connection = queue.database.connect()

    with pytest.raises(RunledgerError) as refused:
        cancel_job(connection if is_joined else queue.pool, job_id, scope=ADMIN)

    connection.execute("SELECT 1")
    connection.commit()
    assert refused.value.code == "job.undecodable_row"
    assert queue.value("SELECT status::text FROM runledger.job_queue") == "CANCELED"


def test_cancellation_is_all_or_nothing(queue: Queue):
    lease = queue.started()
    queue.execute("ALTER TABLE runledger.job_events ADD CHECK (event_type <> 'CANCELED')")
    before = queue.image()

    with pytest.raises(QueryError):
        cancel_job(queue.pool, lease.job_id, scope=ADMIN)

    assert queue.image() == before
