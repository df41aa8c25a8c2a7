"""The roles of the operations guide: what each may do, and what it may not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from runledger_core import (
    ForbiddenError,
    JobCompletion,
    JobDefinitionSpec,
    JobEnqueue,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    JobScheduleUpsert,
    JobStatus,
    Scope,
    WorkflowDagBuilder,
)
from runledger_postgres import (
    JobFilter,
    ScheduleFire,
    WorkerReport,
    cancel_job,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    connect_pool,
    count_jobs_by_status,
    enqueue_job,
    enqueue_jobs,
    enqueue_workflow_run,
    ensure_schema_compatible,
    fire_due_schedules,
    get_job,
    get_job_metrics,
    heartbeat_job,
    insert_claim_log,
    list_dead_letters,
    list_job_attempts,
    list_job_events,
    list_job_logs,
    list_job_schedules,
    list_jobs,
    list_workers,
    oldest_waiting_jobs,
    reap_expired_leases,
    record_worker,
    release_job,
    remove_worker,
    requeue_job,
    sync_job_definitions,
    sync_job_schedules_exact,
    update_job_payload_uuid_array_field,
    update_job_progress,
    upsert_job_definition,
    upsert_job_runtime_config,
    upsert_job_schedule,
)
from runledger_test_support import expire_lease

pytestmark = pytest.mark.core

GUIDE = Path(__file__).resolve().parents[4] / "docs/guides/operations.md"
JOB_TYPE = "test.job"
NIGHTLY = JobScheduleUpsert("nightly", JOB_TYPE, cron_expr="@daily")

Pool = ConnectionPool[psycopg.Connection[Any]]


def grants(role: str) -> list[str]:
    """Return the statements of the guide about a role."""
    blocks = re.findall(r"```sql\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.endswith(f" {role};")]


@pytest.fixture
def pool_of(runledger_database, runledger_pool) -> Iterator[Callable[[str], Pool]]:
    """Gives a pool of a role that has what the guide grants."""
    upsert_job_definition(runledger_pool, JobDefinitionSpec(JOB_TYPE, max_attempts=2))
    made: list[sql.Identifier] = []
    pools: list[Pool] = []
    with runledger_database.connect(autocommit=True) as owner:

        def make(name: str) -> Pool:
            # Roles belong to the server, which other runs may use at the same time.
            actual = f"{name}_{os.getpid()}"
            made.append(sql.Identifier(actual))
            owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(made[-1]))
            statements = grants(name)
            assert statements
            for statement in statements:
                owner.execute(statement.replace(name, actual).encode())
            dsn = make_conninfo(runledger_database.dsn, user=actual, password="x")
            threshold = runledger_database.prepare_threshold
            pools.append(connect_pool(dsn, max_size=2, prepare_threshold=threshold))
            return pools[-1]

        try:
            yield make
        finally:
            for pool in pools:
                pool.close()
            for role in made:
                owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def claim_one(pool: Pool) -> JobLease:
    (job,) = claim_jobs(pool, worker_id="worker-1", limit=1, lease_ttl_seconds=60)
    return job.lease


def test_enqueue_role_enqueues_with_and_without_keys(pool_of):
    pool = pool_of("shop_enqueue")
    keyed = JobEnqueue(JOB_TYPE, {}, idempotency_key="order:17")

    ensure_schema_compatible(pool)
    enqueue_jobs(pool, [JobEnqueue(JOB_TYPE, {}), JobEnqueue(JOB_TYPE, {"more": True})])
    first = enqueue_job(pool, keyed)
    again = enqueue_job(pool, keyed)

    assert (first.disposition, again.disposition) == ("INSERTED", "EXISTING")
    assert again.id == first.id


def test_enqueue_role_enqueues_runs_with_and_without_keys(pool_of):
    pool = pool_of("shop_enqueue")
    graph = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).external("gate", {})
    plain = graph.job("b", JOB_TYPE, {}, after_success=["a", "gate"]).build()
    keyed = graph.idempotency_key("order:17").build()

    enqueue_workflow_run(pool, plain)
    first = enqueue_workflow_run(pool, keyed)
    again = enqueue_workflow_run(pool, keyed)

    assert (first.disposition, again.disposition) == ("INSERTED", "EXISTING")
    assert again.id == first.id


@pytest.mark.parametrize(
    "operation",
    [
        lambda pool: claim_jobs(pool, worker_id="worker-1", limit=1, lease_ttl_seconds=60),
        lambda pool: upsert_job_definition(pool, JobDefinitionSpec("other.job")),
        lambda pool: list_dead_letters(pool, scope=Scope.ADMIN),
        list_workers,
    ],
    ids=["claim", "define", "dead letters", "workers"],
)
def test_enqueue_role_may_do_nothing_else(pool_of, operation):
    pool = pool_of("shop_enqueue")

    with pytest.raises(ForbiddenError) as refused:
        operation(pool)

    assert refused.value.code == "db.permission_denied"


def test_worker_role_leads_jobs_through_their_lives(pool_of, runledger_pool):
    pool = pool_of("shop_worker")
    ensure_schema_compatible(pool)
    sync_job_definitions(pool, [JobDefinitionSpec(JOB_TYPE, max_attempts=1)])
    upsert_job_runtime_config(pool, JOB_TYPE, schema_version=1, config={})
    report = WorkerReport(
        "worker-1", host="h", pid=1, version="0", job_types=[JOB_TYPE], concurrency=1
    )
    record_worker(pool, report)
    succeeding = enqueue_job(pool, JobEnqueue(JOB_TYPE, {}, max_attempts=3)).id

    release_job(pool, claim_one(pool), reason="stopping")
    retried = claim_one(pool)
    insert_claim_log(pool, retried, level="INFO", message="begun")
    complete_job_failure(pool, retried, JobFailure.retryable("a.code", "text"), retry_delay_ms=1)
    with runledger_pool.connection() as connection:
        connection.execute("UPDATE runledger.job_queue SET next_run_at = now()")
    last = claim_one(pool)
    heartbeat_job(pool, last, lease_ttl_seconds=60)
    update_job_progress(pool, last, JobProgressUpdate(done=1, total=2))
    complete_job_success(pool, last, JobCompletion.with_output({"done": True}))
    reaped = enqueue_job(pool, JobEnqueue(JOB_TYPE, {})).id
    update_job_payload_uuid_array_field(
        pool, reaped, scope=Scope.ADMIN, job_type=JOB_TYPE, field="ids", values=[reaped]
    )
    claim_one(pool)
    expire_lease(runledger_pool, reaped)
    reap_expired_leases(pool, limit=10, retry_delay_ms=1)

    assert statuses(runledger_pool, succeeding, reaped) == ["SUCCEEDED", "DEAD_LETTERED"]
    requeue_job(pool, reaped, scope=Scope.ADMIN)
    cancel_job(pool, reaped, scope=Scope.ADMIN)
    remove_worker(pool, "worker-1")
    assert statuses(runledger_pool, reaped) == ["CANCELED"]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM runledger.runledger_migration_history",
        "DROP TABLE runledger.job_logs",
        "TRUNCATE runledger.job_queue",
        "CREATE TABLE runledger.mine ()",
    ],
)
def test_worker_role_may_not_change_the_schema(pool_of, statement):
    with (
        pool_of("shop_worker").connection() as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_worker_role_stores_syncs_and_fires_schedules(pool_of):
    pool = pool_of("shop_worker")

    upsert_job_schedule(pool, NIGHTLY)
    result = fire_due_schedules(pool, lambda due: ScheduleFire(None, due.now), limit=1)
    synced = sync_job_schedules_exact(pool, [NIGHTLY], scope=["nightly"])

    assert [fire.name for fire in result.fired] == ["nightly"]
    assert synced.synced == ("nightly",)


def test_reader_role_reads_everything(pool_of, runledger_pool):
    job = enqueue_job(runledger_pool, JobEnqueue(JOB_TYPE, {})).id
    pool = pool_of("shop_reader")

    ensure_schema_compatible(pool)

    assert get_job(pool, job, scope=Scope.ADMIN) is not None
    assert [row.id for row in list_jobs(pool, JobFilter(Scope.ADMIN))] == [job]
    assert count_jobs_by_status(pool, scope=Scope.ADMIN)[JobStatus.PENDING] == 1
    assert [row.job_type for row in get_job_metrics(pool, scope=Scope.ADMIN)] == [JOB_TYPE]
    assert [row.job_type for row in oldest_waiting_jobs(pool, scope=Scope.ADMIN)] == [JOB_TYPE]
    assert [row.event_type for row in list_job_events(pool, job, scope=Scope.ADMIN)] == ["ENQUEUED"]
    assert list_job_attempts(pool, job, scope=Scope.ADMIN) == []
    assert list_job_logs(pool, job, scope=Scope.ADMIN) == []
    assert list_dead_letters(pool, scope=Scope.ADMIN) == []
    assert list_workers(pool) == []
    assert list_job_schedules(pool) == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda pool: enqueue_job(pool, JobEnqueue(JOB_TYPE, {})),
        lambda pool: claim_jobs(pool, worker_id="worker-1", limit=1, lease_ttl_seconds=60),
        lambda pool: upsert_job_definition(pool, JobDefinitionSpec("other.job")),
        lambda pool: remove_worker(pool, "worker-1"),
        lambda pool: upsert_job_schedule(pool, NIGHTLY),
    ],
    ids=["enqueue", "claim", "define", "forget a worker", "schedule"],
)
def test_reader_role_changes_nothing(pool_of, operation):
    pool = pool_of("shop_reader")

    with pytest.raises(ForbiddenError) as refused:
        operation(pool)

    assert refused.value.code == "db.permission_denied"


def statuses(pool: Pool, *jobs) -> list[str]:
    rows = [get_job(pool, job, scope=Scope.ADMIN) for job in jobs]
    return [row.status for row in rows if row is not None]
