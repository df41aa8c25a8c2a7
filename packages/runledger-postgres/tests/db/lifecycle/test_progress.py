from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runledger_core import UNSET, JobFailure, JobProgressUpdate, JobStage, RunledgerError
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import StoredProgress, complete_job_failure, update_job_progress
from runledger_test_support import make_due

if TYPE_CHECKING:
    from conftest import Queue

INT64_MAX = 2**63 - 1


def update(queue: Queue, lease, **fields) -> StoredProgress:
    return update_job_progress(queue.pool, lease, JobProgressUpdate(**fields))


def stored_events(queue: Queue) -> list[tuple]:
    return [
        (row["event_type"], row["stage"], row["progress_done"], row["progress_total"])
        for row in queue.fetch(
            "SELECT event_type::text, stage, progress_done, progress_total"
            " FROM runledger.job_events ORDER BY id"
        )
    ]


def test_update_stores_stage_progress_and_checkpoint_together(queue: Queue):
    lease = queue.started()
    before = queue.job(lease.job_id)

    stored = update(
        queue, lease, stage=JobStage.SCHEDULED, done=3, total=10, checkpoint={"page": 3}
    )

    job = queue.job(lease.job_id)
    assert stored == StoredProgress(3, 10)
    assert (job.stage, job.progress_done, job.progress_total) == ("scheduled", 3, 10)
    assert job.checkpoint == {"page": 3}
    assert job.updated_at > before.updated_at
    assert queue.value("SELECT progressed_claim_number FROM runledger.job_queue") == 1


def test_lease_is_not_renewed(queue: Queue):
    lease = queue.started()
    before = queue.job(lease.job_id)

    update(queue, lease, done=1)

    after = queue.job(lease.job_id)
    assert after.lease_expires_at == before.lease_expires_at
    assert after.last_heartbeat_at == before.last_heartbeat_at


def test_what_is_not_given_stays(queue: Queue):
    lease = queue.started()
    update(queue, lease, done=1, total=10, checkpoint=[1])

    assert update(queue, lease, done=4) == StoredProgress(4, 10)
    assert update(queue, lease, total=8) == StoredProgress(4, 8)
    assert update(queue, lease, stage=JobStage.QUEUED) == StoredProgress(4, 8)

    assert queue.job(lease.job_id).checkpoint == [1]


def test_json_null_is_a_checkpoint(queue: Queue):
    lease = queue.started()
    assert queue.job(lease.job_id).checkpoint is UNSET

    update(queue, lease, checkpoint=None)

    assert queue.job(lease.job_id).checkpoint is None


def test_each_update_leaves_its_events_stage_before_progress(queue: Queue):
    lease = queue.started()

    update(queue, lease, done=1, total=10)
    update(queue, lease, checkpoint={"page": 1})
    update(queue, lease, stage=JobStage.RUNNING, done=2)
    update(queue, lease, stage=JobStage.SCHEDULED, total=20)
    update(queue, lease, stage=JobStage.RUNNING)

    assert stored_events(queue) == [
        ("PROGRESS", None, 1, 10),
        ("PROGRESS", None, 2, None),
        ("STAGE_CHANGED", "scheduled", None, None),
        ("PROGRESS", None, None, 20),
        ("STAGE_CHANGED", "running", None, None),
    ]
    assert queue.timeline(lease.job_id) == [
        "ENQUEUED", "LEASED", "PROGRESS", "PROGRESS", "STAGE_CHANGED", "PROGRESS", "STAGE_CHANGED",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ({"total": 3}, {"done": 4}),
        ({"done": 3}, {"total": 2}),
        ({"done": 3, "total": 5}, {"done": 6, "checkpoint": 1, "stage": JobStage.QUEUED}),
    ],
)
def test_progress_that_merging_makes_invalid_is_refused_without_change(queue: Queue, stored, given):
    lease = queue.started()
    update(queue, lease, **stored)
    before = queue.image()

    with pytest.raises(RunledgerError) as refused:
        update(queue, lease, **given)

    assert refused.value.code == "job.invalid_progress"
    assert queue.image() == before


def test_progress_counts_to_the_last_int8(queue: Queue):
    lease = queue.started()

    assert update(queue, lease, done=0, total=INT64_MAX) == StoredProgress(0, INT64_MAX)
    assert update(queue, lease, done=INT64_MAX) == StoredProgress(INT64_MAX, INT64_MAX)


def test_update_is_all_or_nothing(queue: Queue):
    lease = queue.started()
    queue.execute("ALTER TABLE runledger.job_events ADD CHECK (event_type <> 'PROGRESS')")
    before = queue.image()

    with pytest.raises(QueryError):
        update(queue, lease, stage=JobStage.QUEUED, done=1, checkpoint=1)

    assert queue.image() == before


def test_progress_and_checkpoint_reach_the_next_attempt(queue: Queue):
    lease = queue.started()
    update(queue, lease, done=3, total=10, checkpoint={"page": 3})
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, lease.job_id)

    (again,) = queue.claim()

    assert again.checkpoint == {"page": 3}
    assert update(queue, again.lease, done=4) == StoredProgress(4, 10)


def test_update_in_the_callers_transaction_is_his_to_undo(queue: Queue):
    lease = queue.started()
    before = queue.image()
    connection = queue.database.connect()

    update_job_progress(connection, lease, JobProgressUpdate(done=1))

    connection.rollback()
    assert queue.image() == before
