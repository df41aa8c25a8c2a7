"""Numbers at their bounds: priorities of int4, sequences and claims beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runledger_core import JobCompletion, JobFailure, JobProgressUpdate, Scope
from runledger_postgres.jobs import insert_claim_log, list_job_events
from runledger_postgres.lifecycle import (
    WriteVerdict,
    complete_job_failure,
    complete_job_success,
    heartbeat_jobs,
    release_job,
    requeue_job,
    update_job_progress,
)
from runledger_test_support import make_due

if TYPE_CHECKING:
    from conftest import Queue

BEYOND_INT4 = 3_000_000_000
INT4_MIN, INT4_MAX = -(2**31), 2**31 - 1


def test_priorities_sort_over_all_of_int4(queue: Queue):
    jobs = {
        priority: queue.enqueue(priority=priority)[0]
        for priority in (0, INT4_MIN, 1, INT4_MAX, -1, INT4_MIN + 1, INT4_MAX - 1)
    }

    claimed = queue.claim(10)

    assert [job.id for job in claimed] == [
        jobs[priority] for priority in sorted(jobs, reverse=True)
    ]
    assert [job.priority for job in claimed] == sorted(jobs, reverse=True)


def test_whole_life_beyond_int4(queue: Queue):
    for row in queue.fetch(
        "SELECT schemaname || '.' || sequencename AS name FROM pg_sequences"
        " WHERE schemaname = 'runledger' AND max_value > %s",
        BEYOND_INT4,
    ):
        queue.execute("SELECT setval(%s, %s)", row["name"], BEYOND_INT4)
    (job_id,) = queue.enqueue()
    queue.execute("UPDATE runledger.job_queue SET claim_number = %s", BEYOND_INT4)

    release_job(queue.pool, queue.lease(), reason="test")
    failed = queue.lease()
    update_job_progress(queue.pool, failed, JobProgressUpdate(done=2**40, total=2**41))
    insert_claim_log(queue.pool, failed, level="INFO", message="m", payload={})
    complete_job_failure(queue.pool, failed, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, job_id)
    done = queue.lease()
    heartbeat_jobs(queue.pool, [done], lease_ttl_seconds=60)
    complete_job_success(queue.pool, done, JobCompletion(1))
    repeated = complete_job_success(queue.pool, done, JobCompletion(1))
    requeue_job(queue.pool, job_id, scope=Scope.ADMIN)

    assert repeated.verdict is WriteVerdict.REPEATED
    assert done.claim_number == BEYOND_INT4 + 3
    events = list_job_events(queue.pool, job_id, scope=Scope.ADMIN)
    assert [event.event_type.value for event in events] == [
        "ENQUEUED", "LEASED", "REQUEUED", "LEASED", "PROGRESS", "FAILED", "RETRY_SCHEDULED",
        "LEASED", "SUCCEEDED", "REQUEUED",
    ]  # fmt: skip
    assert max(event.event_id for event in events) > BEYOND_INT4
    queue.execute("TRUNCATE runledger.job_queue")
