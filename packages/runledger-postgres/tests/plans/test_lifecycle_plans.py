"""Every statement of a job's life reads its own rows: no table, no sort, no index is walked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from runledger_core import (
    JobCompletion,
    JobEnqueue,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    JobStage,
    Scope,
)
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres._session import Bound, run, run_all
from runledger_postgres.lifecycle import (
    ClaimRequest,
    FailureEntry,
    SuccessEntry,
    cancel_job,
    cancel_jobs,
    claim_jobs,
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
    requeue_jobs,
    update_job_progress,
)
from runledger_postgres.lifecycle._claim import claim_results, claim_statements
from runledger_postgres.lifecycle._find_claims import FIND_CLAIMS
from runledger_postgres.lifecycle._reap import DEFER_EXPIRED_LEASE, LIST_EXPIRED_LEASES
from runledger_postgres.lifecycle._round import WAIT_FOR_JOB

from .conftest import LargeQueue, problems_of
from .plan_recorder import PlanMode
from .population import ORGANIZATION, TYPES, Statistics

pytestmark = [pytest.mark.plans, pytest.mark.timeout(1800)]

BATCH: Final = 32
FAILURE: Final = JobFailure.retryable("plans.failed", "failed")


@dataclass(frozen=True, slots=True)
class Work:
    """What is recorded, and how many rows it is for: its limit times the types it looks at."""

    act: Callable[[psycopg.Connection[Any]], object]
    rows: int


def claim_a_batch(queue: LargeQueue) -> Work:
    request = ClaimRequest("worker-1", TYPES, limit=BATCH, window=BATCH, lease_ttl_seconds=60)
    # The flip before it readies all that came due, which are not more.
    return Work(lambda db: run_all(db, claim_statements(request)), BATCH * len(TYPES))


def claim_one_when_nothing_is_due(queue: LargeQueue) -> Work:
    request = ClaimRequest("worker-1", TYPES, limit=1, window=1, lease_ttl_seconds=60)
    run_all(queue.connection, claim_statements(request))
    return Work(lambda db: run_all(db, claim_statements(request)), len(TYPES))


def claim_in_a_wider_window(queue: LargeQueue) -> Work:
    request = ClaimRequest("worker-1", TYPES, limit=4, window=BATCH, lease_ttl_seconds=60)
    return Work(lambda db: run_all(db, claim_statements(request)), BATCH * len(TYPES))


def claim_from_its_marks(queue: LargeQueue) -> Work:
    request = ClaimRequest("worker-1", TYPES, limit=BATCH, window=BATCH, lease_ttl_seconds=60)
    _, backlog = claim_results(request, run_all(queue.connection, claim_statements(request)))
    assert backlog is not None
    marked = replace(request, marks=backlog.best, waiting_from=backlog.next_due_at)
    return Work(lambda db: run_all(db, claim_statements(marked)), BATCH * len(TYPES))


def claim_of_every_defined_type(queue: LargeQueue) -> Work:
    def act(db):
        return claim_jobs(db, worker_id="worker-1", limit=BATCH, lease_ttl_seconds=60)

    return Work(act, BATCH * (len(TYPES) + 1))


def claim_of_types_without_jobs(queue: LargeQueue) -> Work:
    absent = ["plans.absent-0", "plans.absent-1"]
    queue.leases(1)
    request = ClaimRequest("worker-1", absent, limit=BATCH, window=BATCH, lease_ttl_seconds=60)
    return Work(lambda db: run_all(db, claim_statements(request)), BATCH * len(absent))


def find_claims_after_an_unknown_commit(queue: LargeQueue) -> Work:
    queue.leases(BATCH)
    return Work(lambda db: run(db, Bound(FIND_CLAIMS, {"worker_id": "worker-1"})), BATCH)


def wait_for_a_row(queue: LargeQueue) -> Work:
    (lease,) = queue.leases(1)
    return Work(lambda db: run(db, Bound(WAIT_FOR_JOB, {"job_id": lease.job_id})), 1)


def heartbeat_of_a_batch(queue: LargeQueue) -> Work:
    leases = with_a_miss(queue.leases(BATCH))
    return Work(lambda db: heartbeat_jobs(db, leases, lease_ttl_seconds=60), BATCH)


def heartbeat_of_one(queue: LargeQueue) -> Work:
    (lease,) = queue.leases(1)
    return Work(lambda db: heartbeat_job(db, lease, lease_ttl_seconds=60), 1)


def progress(queue: LargeQueue) -> Work:
    (lease,) = queue.leases(1)
    update = JobProgressUpdate(stage=JobStage.RUNNING, done=1, total=2, checkpoint={"at": 1})
    return Work(lambda db: update_job_progress(db, lease, update), 1)


def success_of_a_batch(queue: LargeQueue) -> Work:
    entries = [
        SuccessEntry(lease, JobCompletion.success().with_output({"done": True}))
        for lease in with_a_miss(queue.leases(BATCH))
    ]
    return Work(lambda db: complete_jobs(db, entries), BATCH)


def success_of_one(queue: LargeQueue) -> Work:
    (lease,) = queue.leases(1)
    return Work(lambda db: complete_job_success(db, lease), 1)


def success_that_is_repeated(queue: LargeQueue) -> Work:
    entries = [SuccessEntry(lease, JobCompletion.success()) for lease in queue.leases(BATCH)]
    complete_jobs(queue.connection, entries)
    return Work(lambda db: complete_jobs(db, entries), BATCH)


def failure_of_a_batch(queue: LargeQueue) -> Work:
    entries = [
        FailureEntry(lease, failure, retry_delay_ms=1_000, traceback="a traceback")
        for failure, lease in zip(
            [FAILURE, JobFailure.terminal("plans.failed", "failed")] * (BATCH // 2),
            with_a_miss(queue.leases(BATCH)),
            strict=True,
        )
    ]
    return Work(lambda db: fail_jobs(db, entries), BATCH)


def failure_of_one(queue: LargeQueue) -> Work:
    (lease,) = queue.leases(1)
    return Work(lambda db: complete_job_failure(db, lease, FAILURE, retry_delay_ms=1_000), 1)


def release_of_a_batch(queue: LargeQueue) -> Work:
    leases = with_a_miss(queue.leases(BATCH))
    return Work(lambda db: release_jobs(db, leases, reason="stop"), BATCH)


def release_of_one(queue: LargeQueue) -> Work:
    (lease,) = queue.leases(1)
    return Work(lambda db: release_job(db, lease, reason="stop"), 1)


def reap_of_a_batch(queue: LargeQueue) -> Work:
    queue.leases(BATCH)
    expire_leases(queue, BATCH)
    return Work(lambda db: reap_expired_leases(db, limit=BATCH, retry_delay_ms=1_000), BATCH)


def reap_when_no_lease_has_expired(queue: LargeQueue) -> Work:
    queue.leases(BATCH)
    return Work(lambda db: reap_expired_leases(db, limit=BATCH, retry_delay_ms=1_000), BATCH)


def reap_one_by_one(queue: LargeQueue) -> Work:
    leases = queue.leases(BATCH)
    expire_leases(queue, BATCH)
    deferred = {"job_id": leases[0].job_id, "retry_delay_ms": 1_000}

    def act(db):
        run(db, Bound(LIST_EXPIRED_LEASES, {"limit": BATCH}))
        run(db, Bound(DEFER_EXPIRED_LEASE, deferred))

    return Work(act, BATCH)


def cancel_of_a_batch(queue: LargeQueue) -> Work:
    half = BATCH // 2
    targets = [
        *(lease.job_id for lease in queue.leases(half - 1)),
        *queue.ids("status = 'PENDING' AND NOT is_ready", half),
        UUID(int=0),
    ]
    return Work(lambda db: cancel_jobs(db, targets, scope=Scope.ADMIN), BATCH)


def cancel_of_one_in_an_organization(queue: LargeQueue) -> Work:
    (target,) = queue.ids(f"status = 'PENDING' AND organization_id = '{ORGANIZATION}'", 1)
    scope = Scope.organization(ORGANIZATION)
    return Work(lambda db: cancel_job(db, target, scope=scope), 1)


def requeue_of_a_batch(queue: LargeQueue) -> Work:
    targets = [*queue.ids("finished_at IS NOT NULL", BATCH - 1), UUID(int=0)]
    return Work(lambda db: requeue_jobs(db, targets, scope=Scope.ADMIN), BATCH)


def requeue_of_one(queue: LargeQueue) -> Work:
    (target,) = queue.ids("status = 'DEAD_LETTERED'", 1)
    return Work(lambda db: requeue_job(db, target, scope=Scope.ADMIN), 1)


def enqueue_of_a_batch(queue: LargeQueue) -> Work:
    later = datetime.now(UTC) + timedelta(hours=1)
    requests = [
        JobEnqueue(TYPES[number % 4], {"number": number}, next_run_at=later if number % 2 else None)
        for number in range(BATCH)
    ]
    return Work(lambda db: enqueue_jobs(db, requests), BATCH)


def enqueue_of_one(queue: LargeQueue) -> Work:
    return Work(lambda db: enqueue_job(db, JobEnqueue(TYPES[0], {})), 1)


def enqueue_of_new_keys(queue: LargeQueue) -> Work:
    requests = keyed_requests()
    return Work(lambda db: enqueue_jobs(db, requests), BATCH)


def enqueue_of_known_keys(queue: LargeQueue) -> Work:
    requests = keyed_requests()
    enqueue_jobs(queue.connection, requests)
    return Work(lambda db: enqueue_jobs(db, requests), BATCH)


def enqueue_of_one_key(queue: LargeQueue) -> Work:
    return Work(lambda db: enqueue_job(db, keyed_requests()[0]), 1)


WORKS: Final = [
    claim_a_batch,
    claim_one_when_nothing_is_due,
    claim_in_a_wider_window,
    claim_from_its_marks,
    claim_of_every_defined_type,
    claim_of_types_without_jobs,
    find_claims_after_an_unknown_commit,
    wait_for_a_row,
    heartbeat_of_a_batch,
    heartbeat_of_one,
    progress,
    success_of_a_batch,
    success_of_one,
    success_that_is_repeated,
    failure_of_a_batch,
    failure_of_one,
    release_of_a_batch,
    release_of_one,
    reap_of_a_batch,
    reap_when_no_lease_has_expired,
    reap_one_by_one,
    cancel_of_a_batch,
    cancel_of_one_in_an_organization,
    requeue_of_a_batch,
    requeue_of_one,
    enqueue_of_a_batch,
    enqueue_of_one,
    enqueue_of_new_keys,
    enqueue_of_known_keys,
    enqueue_of_one_key,
]


@pytest.mark.parametrize("prepare", WORKS, ids=lambda prepare: prepare.__name__)
def test_statement_reads_and_sorts_only_what_it_is_for(
    large_queue: LargeQueue, mode: PlanMode, prepare: Callable[[LargeQueue], Work]
):
    work = prepare(large_queue)

    plans = large_queue.plans_of(work.act, mode)

    assert plans
    assert not (problems := problems_of(plans, rows=work.rows)), "\n".join(problems)


@pytest.mark.parametrize("statistics", [Statistics.FRESH], indirect=True, scope="session")
@pytest.mark.parametrize(
    ("index", "prepare"),
    [
        ("idx_job_queue_ready", claim_a_batch),
        ("idx_job_queue_waiting", claim_a_batch),
        ("idx_job_queue_leased", reap_of_a_batch),
        ("uq_job_queue_type_idempotency_global", enqueue_of_known_keys),
        ("uq_job_queue_type_idempotency_org", enqueue_of_known_keys),
    ],
)
def test_index_that_is_missing_is_found(
    large_queue: LargeQueue, mode: PlanMode, index: str, prepare: Callable[[LargeQueue], Work]
):
    work = prepare(large_queue)
    # Not dropped, since statements ask for figures of some by name.
    large_queue.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
        f"runledger.{index}",
    )

    plans = large_queue.plans_of(work.act, mode)

    assert problems_of(plans, rows=work.rows)


def with_a_miss(leases: list[JobLease]) -> list[JobLease]:
    """Spoil the last lease, so that its miss is judged too."""
    return [*leases[:-1], replace(leases[-1], claim_number=leases[-1].claim_number + 1)]


def expire_leases(queue: LargeQueue, count: int) -> None:
    queue.execute(
        """
        UPDATE runledger.job_queue
        SET lease_expires_at = clock_timestamp() - interval '1 second'
        WHERE id = ANY (
            ARRAY(SELECT id FROM runledger.job_queue WHERE worker_id = 'worker-1' LIMIT %s)
        )
        """,
        count,
    )


def keyed_requests() -> list[JobEnqueue]:
    return [
        JobEnqueue(
            TYPES[number % 4],
            {"number": number},
            idempotency_key=f"plans-{number}",
            organization_id=ORGANIZATION if number % 2 else None,
        )
        for number in range(BATCH)
    ]
