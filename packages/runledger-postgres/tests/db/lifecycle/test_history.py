"""What each way through a job's life leaves in its timeline and in the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobFailure, JobLease, JobProgressUpdate, JobStage, Scope
from runledger_postgres.jobs import list_job_events
from runledger_postgres.lifecycle import (
    cancel_job,
    complete_job_failure,
    complete_job_success,
    heartbeat_job,
    reap_expired_leases,
    release_job,
    requeue_job,
    update_job_progress,
)
from runledger_test_support import age_job, expire_lease, make_due

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
RETRY = JobFailure.retryable("smtp.busy", "try later")
FATAL = JobFailure.terminal("smtp.gone", "no such host")


def succeed(queue: Queue, lease: JobLease) -> None:
    complete_job_success(queue.pool, lease, JobCompletion(1, progress_done=2, progress_total=2))


def progress(queue: Queue, lease: JobLease) -> None:
    update_job_progress(queue.pool, lease, JobProgressUpdate(done=1, total=2))
    update_job_progress(
        queue.pool, lease, JobProgressUpdate(stage=JobStage.SCHEDULED, done=2, checkpoint="c")
    )


def retry(queue: Queue, lease: JobLease) -> None:
    complete_job_failure(queue.pool, lease, RETRY, retry_delay_ms=1)


def give_up(queue: Queue, lease: JobLease) -> None:
    complete_job_failure(queue.pool, lease, FATAL)


def reap(queue: Queue, lease: JobLease) -> None:
    expire_lease(queue.pool, lease.job_id)
    reap_expired_leases(queue.pool, limit=1, retry_delay_ms=1)


def release(queue: Queue, lease: JobLease) -> None:
    release_job(queue.pool, lease, reason="SHUTDOWN")


def cancel(queue: Queue, lease: JobLease) -> None:
    cancel_job(queue.pool, lease.job_id, scope=ADMIN)


def requeue(queue: Queue, lease: JobLease) -> None:
    requeue_job(queue.pool, lease.job_id, scope=ADMIN)


def beat(queue: Queue, lease: JobLease) -> None:
    heartbeat_job(queue.pool, lease, lease_ttl_seconds=60)


# Steps of one claim; None is the next claim. Entries are (claim, run, attempt, type).
SCENARIOS: dict[str, tuple[list[Callable | None], list[tuple]]] = {
    "success": (
        [beat, progress, succeed],
        [
            (1, 1, 1, "PROGRESS"), (1, 1, 1, "STAGE_CHANGED"), (1, 1, 1, "PROGRESS"),
            (1, 1, 1, "SUCCEEDED"),
        ],
    ),
    "retry, then success": (
        [retry, None, succeed],
        [
            (1, 1, 1, "FAILED"), (1, 1, 1, "RETRY_SCHEDULED"),
            (2, 1, 2, "LEASED"), (2, 1, 2, "SUCCEEDED"),
        ],
    ),
    "dead letter": ([give_up], [(1, 1, 1, "FAILED"), (1, 1, 1, "DEAD_LETTERED")]),
    "reaped until dead": (
        [reap, None, reap, None, reap],
        [
            (1, 1, 1, "FAILED"), (1, 1, 1, "RETRY_SCHEDULED"),
            (2, 1, 2, "LEASED"), (2, 1, 2, "FAILED"), (2, 1, 2, "RETRY_SCHEDULED"),
            (3, 1, 3, "LEASED"), (3, 1, 3, "FAILED"), (3, 1, 3, "DEAD_LETTERED"),
        ],
    ),
    "released, then canceled while it waits": (
        [release, cancel], [(1, 1, 1, "REQUEUED"), (1, 1, None, "CANCELED")],
    ),
    "released, then canceled while it runs": (
        [release, None, cancel],
        [(1, 1, 1, "REQUEUED"), (2, 1, 1, "LEASED"), (2, 1, 1, "CANCELED")],
    ),
    "requeued, then canceled, then requeued": (
        [succeed, requeue, cancel, requeue, None, give_up, requeue],
        [
            (1, 1, 1, "SUCCEEDED"), (1, 1, 1, "REQUEUED"), (1, 2, None, "CANCELED"),
            (1, 2, None, "REQUEUED"),
            (2, 3, 1, "LEASED"), (2, 3, 1, "FAILED"), (2, 3, 1, "DEAD_LETTERED"),
            (2, 3, 1, "REQUEUED"),
        ],
    ),
    "running": ([beat, progress], [
        (1, 1, 1, "PROGRESS"), (1, 1, 1, "STAGE_CHANGED"), (1, 1, 1, "PROGRESS"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_timeline_is_complete_and_ordered(queue: Queue, scenario):
    steps, expected = SCENARIOS[scenario]
    lease = queue.started()
    for step in steps:
        if step is None:
            make_due(queue.pool, lease.job_id)
            lease = queue.lease()
        else:
            step(queue, lease)

    events = list_job_events(queue.pool, lease.job_id, scope=ADMIN)

    assert [
        (event.claim_number, event.run_number, event.attempt, event.event_type.value)
        for event in events
    ] == [(0, 1, None, "ENQUEUED"), (1, 1, 1, "LEASED"), *expected]


def test_entries_tell_what_happened(queue: Queue):
    lease = queue.started()
    retry(queue, lease)
    make_due(queue.pool, lease.job_id)
    lease = queue.lease()
    give_up(queue, lease)
    job = queue.job(lease.job_id)

    payloads: dict[tuple[int, str], Any] = {
        (event.claim_number, event.event_type.value): event.payload
        for event in list_job_events(queue.pool, lease.job_id, scope=ADMIN)
    }

    scheduled = payloads.pop((1, "RETRY_SCHEDULED"))
    assert scheduled.keys() == {"retry_delay_ms", "next_run_at"}
    assert payloads == {
        (0, "ENQUEUED"): {"job_type": "test.job"},
        (1, "LEASED"): {"worker_id": "worker-1"},
        (1, "FAILED"): {
            "kind": "RETRYABLE", "error_code": "smtp.busy", "error_message": "try later",
        },
        (2, "LEASED"): {"worker_id": "worker-1"},
        (2, "FAILED"): {
            "kind": "TERMINAL", "error_code": "smtp.gone", "error_message": "no such host",
        },
        (2, "DEAD_LETTERED"): {"kind": "TERMINAL", "error_code": "smtp.gone"},
    }  # fmt: skip
    *_, failed, dead = list_job_events(queue.pool, lease.job_id, scope=ADMIN)
    assert failed.occurred_at == dead.occurred_at == job.finished_at


def test_metrics_count_each_type_of_each_organization(queue: Queue):
    mine = UUID(int=1)
    queue.define("other.job")
    queue.enqueue(2, "other.job", organization_id=mine)
    queue.enqueue(9)
    done, failed, dead, late, gone, stale, running, canceled, old = queue.leases(9)
    succeed(queue, done)
    retry(queue, failed)
    give_up(queue, dead)
    complete_job_failure(queue.pool, late, JobFailure.timeout("a", "b"), retry_delay_ms=9_000)
    complete_job_failure(queue.pool, gone, JobFailure.panicked("a", "b"))
    cancel(queue, canceled)
    give_up(queue, old)
    age_job(queue.pool, old.job_id, 25 * 3600)
    reap(queue, running)
    expire_lease(queue.pool, stale.job_id)
    queue.enqueue(3)

    rows = queue.fetch(
        "SELECT * FROM runledger.job_metrics_rollup ORDER BY organization_id NULLS FIRST"
    )

    for row in rows:
        assert (row.pop("p50_duration_ms_24h") is None) == (row["organization_id"] == mine)
        assert (row.pop("p95_duration_ms_24h") is None) == (row["organization_id"] == mine)
    nothing = {
        "leased_count": 0, "stale_leases": 0, "succeeded_24h": 0, "retryable_24h": 0,
        "terminal_24h": 0, "panicked_24h": 0, "timeout_24h": 0, "lease_expired_24h": 0,
        "dead_lettered_24h": 0,
    }  # fmt: skip
    assert rows == [
        nothing | {
            "organization_id": None, "job_type": "test.job", "pending_count": 6,
            "leased_count": 1, "stale_leases": 1, "succeeded_24h": 1, "retryable_24h": 1,
            "terminal_24h": 1, "panicked_24h": 1, "timeout_24h": 1, "lease_expired_24h": 1,
            "dead_lettered_24h": 2,
        },
        nothing | {"organization_id": mine, "job_type": "other.job", "pending_count": 2},
    ]  # fmt: skip
