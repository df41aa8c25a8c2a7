from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from runledger_core import JobLease, RunledgerError, Scope
from runledger_postgres.lifecycle import (
    HeartbeatVerdict,
    cancel_job,
    heartbeat_job,
    heartbeat_jobs,
    reap_expired_leases,
    requeue_job,
)
from runledger_test_support import age_lease, expire_lease

pytestmark = pytest.mark.core

if TYPE_CHECKING:
    from conftest import Queue

RENEWED, BUSY = HeartbeatVerdict.RENEWED, HeartbeatVerdict.BUSY
CANCELED, LOST = HeartbeatVerdict.CANCELED, HeartbeatVerdict.LOST
BEATEN_COLUMNS = {"lease_expires_at", "last_heartbeat_at", "updated_at", "ctid"}


def test_heartbeat_renews_the_lease_from_now(queue: Queue):
    lease = queue.started()
    age_lease(queue.pool, lease.job_id, 50)
    before = queue.job(lease.job_id)

    heartbeat_job(queue.pool, lease, lease_ttl_seconds=30)

    after = queue.job(lease.job_id)
    assert after.lease_expires_at - after.last_heartbeat_at == timedelta(seconds=30)
    assert after.last_heartbeat_at == after.updated_at > before.updated_at
    assert after.lease_expires_at > before.lease_expires_at


def test_shorter_ttl_shortens_the_lease(queue: Queue):
    lease = queue.started()
    before = queue.job(lease.job_id)

    heartbeat_job(queue.pool, lease, lease_ttl_seconds=1)

    assert queue.job(lease.job_id).lease_expires_at < before.lease_expires_at


def test_heartbeat_changes_three_columns_and_writes_no_history(queue: Queue):
    lease = queue.started()
    before = queue.image()

    heartbeat_jobs(queue.pool, [lease], lease_ttl_seconds=30)

    after = queue.image()
    (old,), (new,) = before.pop("job_queue"), after.pop("job_queue")
    assert {column for column in new if new[column] != old[column]} == BEATEN_COLUMNS
    assert after == before
    assert queue.timeline(lease.job_id) == ["ENQUEUED", "LEASED"]


@pytest.mark.parametrize("ttl", [0, -1, 2**31])
def test_impossible_lease_length_is_refused_without_change(queue: Queue, ttl):
    lease = queue.started()
    before = queue.image()

    for beat in (
        lambda: heartbeat_job(queue.pool, lease, lease_ttl_seconds=ttl),
        lambda: heartbeat_jobs(queue.pool, [lease], lease_ttl_seconds=ttl),
        lambda: heartbeat_jobs(queue.pool, [], lease_ttl_seconds=ttl),
    ):
        with pytest.raises(RunledgerError) as refused:
            beat()
        assert refused.value.code == "job.invalid_lease_duration"

    assert queue.image() == before


def test_batch_answers_in_input_order_for_each_lease_by_itself(queue: Queue):
    queue.enqueue(6)
    live, busy, canceled, expired, reaped, other = queue.leases(6)
    cancel_job(queue.pool, canceled.job_id, scope=Scope.ADMIN)
    expire_lease(queue.pool, reaped.job_id)
    reap_expired_leases(queue.pool, limit=1, retry_delay_ms=1)
    expire_lease(queue.pool, expired.job_id)
    unknown = JobLease(uuid4(), 1, attempt=1, claim_number=1, worker_id="worker-1")
    stranger = JobLease(other.job_id, 1, attempt=1, claim_number=1, worker_id="worker-2")

    with queue.held(busy.job_id):
        verdicts = heartbeat_jobs(
            queue.pool,
            [unknown, reaped, live, stranger, busy, expired, canceled],
            lease_ttl_seconds=60,
        )

    assert verdicts == [LOST, LOST, RENEWED, LOST, BUSY, LOST, CANCELED]
    assert queue.job(other.job_id).last_heartbeat_at == queue.job(other.job_id).leased_at


def test_handler_of_a_canceled_claim_is_told_so_after_the_job_runs_again(queue: Queue):
    old = queue.started()
    cancel_job(queue.pool, old.job_id, scope=Scope.ADMIN)
    requeue_job(queue.pool, old.job_id, scope=Scope.ADMIN)
    new = queue.lease()

    assert heartbeat_jobs(queue.pool, [old], lease_ttl_seconds=60) == [CANCELED]
    assert heartbeat_jobs(queue.pool, [new], lease_ttl_seconds=60) == [RENEWED]


def test_job_canceled_while_it_waited_for_its_retry_is_lost_and_not_canceled(queue: Queue):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)
    reap_expired_leases(queue.pool, limit=1, retry_delay_ms=1)
    cancel_job(queue.pool, lease.job_id, scope=Scope.ADMIN)

    assert heartbeat_jobs(queue.pool, [lease], lease_ttl_seconds=60) == [LOST]


def test_row_held_by_a_host_transaction_costs_no_other_lease(queue: Queue):
    queue.enqueue(100)
    leases = queue.leases(100)

    with queue.held(leases[40].job_id):
        verdicts = heartbeat_jobs(queue.pool, leases, lease_ttl_seconds=60)

    assert verdicts == [*[RENEWED] * 40, BUSY, *[RENEWED] * 59]


def test_no_leases_need_no_sql():
    assert heartbeat_jobs(None, [], lease_ttl_seconds=60) == []  # pyright: ignore[reportArgumentType]  # never used


def test_same_job_twice_is_refused(queue: Queue):
    lease = queue.started()
    other = JobLease(lease.job_id, 1, attempt=1, claim_number=2, worker_id="worker-1")

    with pytest.raises(RunledgerError) as refused:
        heartbeat_jobs(queue.pool, [lease, other], lease_ttl_seconds=60)

    assert (refused.value.code, refused.value.entry_index) == ("input.duplicate_entry", 1)


def test_thousand_heartbeats_stay_on_their_pages(queue: Queue):
    queue.enqueue(10)
    leases = queue.leases(10)
    connection = queue.database.connect(autocommit=True)
    counters = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_queue'"
    )
    connection.execute("SELECT pg_stat_force_next_flush()")
    updates, hot = connection.execute(counters).fetchall()[0]

    for _ in range(100):
        heartbeat_jobs(connection, leases, lease_ttl_seconds=60)

    connection.execute("SELECT pg_stat_force_next_flush()")
    updates_now, hot_now = connection.execute(counters).fetchall()[0]
    assert updates_now - updates == 1_000
    assert hot_now - hot >= 990


def test_no_index_knows_a_column_that_heartbeats_write(queue: Queue):
    definitions = " ".join(
        row["indexdef"]
        for row in queue.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'job_queue'")
    )

    for column in ("lease_expires_at", "last_heartbeat_at", "updated_at", "progress", "checkpoint"):
        assert column not in definitions
