from __future__ import annotations

from dataclasses import replace

import pytest

from runledger_core import EnqueueDisposition, JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.lifecycle import claim_jobs, complete_job_failure

pytestmark = pytest.mark.core

FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = "00-11111111111111111111111111111111-2222222222222222-01 vendor=a b"
STORED = "SELECT trace_context FROM runledger.job_queue WHERE id = %(id)s"
PLAIN = JobEnqueue("test.job", {"n": 1})
KEYED = replace(PLAIN, idempotency_key="key", trace_context=FIRST)


def claim(pool):
    return claim_jobs(pool, worker_id="worker", limit=10, lease_ttl_seconds=60)


def test_each_job_of_a_batch_gets_its_own_trace_context(pool, observer):
    jobs = enqueue_jobs(
        pool,
        [PLAIN, replace(PLAIN, trace_context=FIRST), replace(PLAIN, trace_context=SECOND)],
    )

    assert [observer.value(STORED, id=job.id) for job in jobs] == [None, FIRST, SECOND]


def test_keyed_and_unkeyed_jobs_of_a_batch_get_their_own_trace_context(pool, observer):
    jobs = enqueue_jobs(pool, [KEYED, PLAIN, replace(PLAIN, trace_context=SECOND)])

    assert [observer.value(STORED, id=job.id) for job in jobs] == [FIRST, None, SECOND]


@pytest.mark.parametrize("trace_context", [SECOND, None])
def test_repeat_from_another_trace_is_the_same_request(pool, observer, trace_context):
    first = enqueue_job(pool, KEYED)

    again = enqueue_job(pool, replace(KEYED, trace_context=trace_context))

    assert (again.id, again.disposition) == (first.id, EnqueueDisposition.EXISTING)
    assert observer.value(STORED, id=first.id) == FIRST


def test_repeat_in_one_batch_from_another_trace_is_the_same_request(pool, observer):
    first, again = enqueue_jobs(pool, [KEYED, replace(KEYED, trace_context=SECOND)])

    assert (again.id, again.disposition) == (first.id, EnqueueDisposition.EXISTING)
    assert observer.value(STORED, id=first.id) == FIRST


def test_snapshot_of_a_keyed_request_does_not_hold_the_trace_context(pool, observer):
    job = enqueue_job(pool, KEYED)

    snapshot = observer.value(
        "SELECT enqueue_request::text FROM runledger.job_queue WHERE id = %(id)s", id=job.id
    )
    assert FIRST not in snapshot
    assert "trace" not in snapshot


def test_every_attempt_is_claimed_with_the_trace_context(pool, observer):
    enqueue_job(pool, KEYED)
    (first,) = claim(pool)
    complete_job_failure(
        pool, first.lease, JobFailure.retryable("test.again", ""), retry_delay_ms=1
    )
    observer.until("SELECT next_run_at <= clock_timestamp() FROM runledger.job_queue")

    (second,) = claim(pool)

    assert (first.lease.attempt, first.trace_context) == (1, FIRST)
    assert (second.lease.attempt, second.trace_context) == (2, FIRST)


def test_job_without_a_trace_context_is_claimed_without_one(pool):
    enqueue_job(pool, PLAIN)

    assert [job.trace_context for job in claim(pool)] == [None]
