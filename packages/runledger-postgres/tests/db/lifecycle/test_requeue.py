from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from runledger_core import (
    UNSET,
    JobCompletion,
    JobFailure,
    JobProgressUpdate,
    JobStatus,
    RunledgerError,
    Scope,
)
from runledger_postgres.errors import QueryError
from runledger_postgres.jobs import get_dead_letter, list_job_events
from runledger_postgres.lifecycle import (
    OperatorVerdict,
    cancel_job,
    complete_job_failure,
    complete_job_success,
    requeue_job,
    requeue_jobs,
    update_job_progress,
)

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
MINE, OTHER = UUID(int=1), UUID(int=2)
DONE, NOT_FOUND = OperatorVerdict.DONE, OperatorVerdict.NOT_FOUND
INVALID_STATE, MANAGED = OperatorVerdict.INVALID_STATE, OperatorVerdict.WORKFLOW_MANAGED


def ended(queue: Queue, status: str, **request) -> UUID:
    """Enqueue a job and let it end."""
    lease = queue.started(**request)
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=1, total=2, checkpoint="c"))
    match status:
        case "SUCCEEDED":
            complete_job_success(queue.pool, lease, JobCompletion(1))
        case "DEAD_LETTERED":
            complete_job_failure(queue.pool, lease, JobFailure.terminal("a", "b"))
        case _:
            cancel_job(queue.pool, lease.job_id, scope=ADMIN)
    return lease.job_id


@pytest.mark.core
@pytest.mark.parametrize("status", ["SUCCEEDED", "DEAD_LETTERED", "CANCELED"])
def test_ended_job_runs_again_as_its_next_run(queue: Queue, status):
    job_id = ended(queue, status, priority=7, payload=[1], idempotency_key="k", timeout_seconds=9)

    job = requeue_job(queue.pool, job_id, scope=ADMIN, reason="fixed")

    assert job == queue.job(job_id)
    assert (job.status, job.stage, job.status_reason) == (JobStatus.PENDING, "queued", "fixed")
    assert (job.run_number, job.attempt, job.claim_number) == (2, 0, 1)
    assert (job.progress_done, job.progress_total, job.checkpoint) == (None, None, UNSET)
    assert (job.output, job.last_error_code, job.last_error_message) == (UNSET, None, None)
    assert (job.started_at, job.finished_at) == (None, None)
    assert job.next_run_at == job.updated_at
    assert (job.priority, job.payload, job.idempotency_key) == (7, [1], "k")
    assert (job.max_attempts, job.timeout_seconds) == (3, 9)
    lease = queue.lease()
    assert (lease.job_id, lease.run_number, lease.attempt, lease.claim_number) == (job_id, 2, 1, 2)


def test_event_belongs_to_the_run_that_ended(queue: Queue):
    job_id = ended(queue, "SUCCEEDED")

    requeue_job(queue.pool, job_id, scope=ADMIN)

    *_, succeeded, requeued = list_job_events(queue.pool, job_id, scope=ADMIN)
    assert (succeeded.event_type, requeued.event_type) == ("SUCCEEDED", "REQUEUED")
    assert (requeued.run_number, requeued.attempt, requeued.claim_number) == (1, 1, 1)
    assert requeued.payload == {"kind": "REQUEUE", "reason": "REQUEUED"}


def test_job_canceled_before_its_first_claim_runs_again(queue: Queue):
    (job_id,) = queue.enqueue()
    cancel_job(queue.pool, job_id, scope=ADMIN)

    requeue_job(queue.pool, job_id, scope=ADMIN)

    lease = queue.lease()
    assert (lease.run_number, lease.attempt, lease.claim_number) == (2, 1, 1)
    assert queue.timeline(job_id) == ["ENQUEUED", "CANCELED", "REQUEUED", "LEASED"]


def test_dead_letter_and_history_stay(queue: Queue):
    job_id = ended(queue, "DEAD_LETTERED")

    requeue_job(queue.pool, job_id, scope=ADMIN)

    letter = get_dead_letter(queue.pool, job_id, scope=ADMIN)
    assert letter is not None
    assert (letter.run_number, letter.error_code) == (1, "a")
    assert queue.timeline(job_id) == [
        "ENQUEUED", "LEASED", "PROGRESS", "FAILED", "DEAD_LETTERED", "REQUEUED",
    ]  # fmt: skip


def test_disabled_type_runs_again(queue: Queue):
    job_id = ended(queue, "SUCCEEDED")
    queue.execute("UPDATE runledger.job_definitions SET is_enabled = false")

    requeue_job(queue.pool, job_id, scope=ADMIN)

    assert queue.lease().job_id == job_id


@pytest.mark.parametrize("status", ["PENDING", "LEASED"])
def test_job_that_has_not_ended_is_not_requeued(queue: Queue, status):
    (job_id,) = queue.enqueue()
    if status == "LEASED":
        queue.lease()
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        requeue_job(queue.pool, job_id, scope=ADMIN)

    assert refused.value.code == "job.invalid_state_transition"
    assert requeue_jobs(queue.pool, [job_id], scope=ADMIN) == [INVALID_STATE]
    assert queue.image() == before


def test_job_of_a_workflow_run_is_not_requeued(queue: Queue):
    job_id = ended(queue, "DEAD_LETTERED")
    queue.execute("UPDATE runledger.job_queue SET workflow_run_id = runledger.uuidv7()")
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        requeue_job(queue.pool, job_id, scope=ADMIN)

    assert refused.value.code == "job.workflow_requeue_not_supported"
    assert requeue_jobs(queue.pool, [job_id], scope=ADMIN) == [MANAGED]
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
def test_scope_decides_whose_jobs_can_be_requeued(queue: Queue, owner, scope, is_found):
    first = ended(queue, "CANCELED", organization_id=owner)
    second = ended(queue, "CANCELED", organization_id=owner)
    before = queue.image()

    if is_found:
        assert requeue_job(queue.pool, first, scope=scope).organization_id == owner
        assert requeue_jobs(queue.pool, [second], scope=scope) == [DONE]
    else:
        with pytest.raises(RunledgerError) as refused:
            requeue_job(queue.pool, first, scope=scope)
        assert refused.value.code == "job.not_found"
        assert requeue_jobs(queue.pool, [second], scope=scope) == [NOT_FOUND]
        assert queue.image() == before


def test_batch_answers_in_input_order_for_each_id(queue: Queue):
    first, second = ended(queue, "SUCCEEDED"), ended(queue, "CANCELED")
    managed = ended(queue, "CANCELED")
    queue.execute(
        "UPDATE runledger.job_queue SET workflow_run_id = runledger.uuidv7() WHERE id = %s", managed
    )
    (pending,) = queue.enqueue()

    verdicts = requeue_jobs(
        queue.pool, [pending, managed, second, uuid4(), first, second], scope=ADMIN
    )

    assert verdicts == [INVALID_STATE, MANAGED, DONE, NOT_FOUND, DONE, DONE]
    assert queue.job(second).run_number == 2


def test_no_ids_need_no_sql():
    assert requeue_jobs(None, [], scope=ADMIN) == []  # pyright: ignore[reportArgumentType]  # never used


def test_requeue_wakes_a_sleeping_worker(queue: Queue):
    jobs = [ended(queue, "SUCCEEDED") for _ in range(3)]

    with queue.asleep("test.job") as told:
        requeue_jobs(queue.pool, jobs, scope=ADMIN)

        assert told() == ["test.job"]


def test_requeue_in_the_callers_transaction_is_his_to_undo(queue: Queue):
    job_id = ended(queue, "SUCCEEDED")
    before = queue.image()
    connection = queue.database.connect()

    assert requeue_job(connection, job_id, scope=ADMIN).run_number == 2

    connection.rollback()
    assert queue.image() == before


def test_requeue_is_all_or_nothing(queue: Queue):
    job_id = ended(queue, "SUCCEEDED")
    queue.execute("ALTER TABLE runledger.job_events ADD CHECK (event_type <> 'REQUEUED')")
    before = queue.image()

    with pytest.raises(QueryError):
        requeue_job(queue.pool, job_id, scope=ADMIN)

    assert queue.image() == before
