"""Single writes and operators' batches wait for a row: not for ever, not at a caller's cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import (
    JobCompletion,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    RunledgerError,
    Scope,
)
from runledger_postgres.lifecycle import (
    cancel_job,
    cancel_jobs,
    complete_job_failure,
    complete_job_success,
    heartbeat_job,
    release_job,
    requeue_job,
    requeue_jobs,
    update_job_progress,
)

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
FATAL = JobFailure.terminal("a", "b")
PROGRESS = JobProgressUpdate(done=1)

OF_OWNERS: dict[str, Callable[..., object]] = {
    "heartbeat": lambda db, lease, **wait: heartbeat_job(db, lease, lease_ttl_seconds=60, **wait),
    "progress": lambda db, lease, **wait: update_job_progress(db, lease, PROGRESS, **wait),
    "success": lambda db, lease, **wait: complete_job_success(db, lease, JobCompletion(1), **wait),
    "failure": lambda db, lease, **wait: complete_job_failure(db, lease, FATAL, **wait),
    "release": lambda db, lease, **wait: release_job(db, lease, reason="test", **wait),
}
OF_OPERATORS: dict[str, Callable[..., object]] = {
    "cancel": lambda db, lease, **wait: cancel_job(db, lease.job_id, scope=ADMIN, **wait),
    "cancel batch": lambda db, lease, **wait: cancel_jobs(db, [lease.job_id], scope=ADMIN, **wait),
    "requeue": lambda db, lease, **wait: requeue_job(db, lease.job_id, scope=ADMIN, **wait),
    "requeue batch": lambda db, lease, **wait: requeue_jobs(
        db, [lease.job_id], scope=ADMIN, **wait
    ),
}
WRITES = OF_OWNERS | OF_OPERATORS


def target(queue: Queue, write: str) -> JobLease:
    """Return the lease of a job that the write can change."""
    lease = queue.started()
    if write.startswith("requeue"):
        complete_job_success(queue.pool, lease)
    return lease


@pytest.mark.parametrize("write", WRITES)
def test_waiting_ends_with_a_code_and_changes_nothing(queue: Queue, write):
    lease = target(queue, write)
    before = queue.image()

    with queue.held(lease.job_id), pytest.raises(RunledgerError) as refused:
        WRITES[write](queue.pool, lease, lock_timeout_ms=1)

    assert refused.value.code == "db.lock_timeout"
    assert queue.image() == before
    assert queue.value("SHOW lock_timeout") == "0"


@pytest.mark.parametrize("callers", ["0", "7s"])
@pytest.mark.parametrize("write", WRITES)
def test_callers_transaction_and_his_setting_survive_the_refusal(queue: Queue, write, callers):
    lease = target(queue, write)
    connection = queue.database.connect()
    connection.execute("SELECT set_config('lock_timeout', %s, true)", [callers])
    connection.execute("CREATE TABLE public.mine AS SELECT 1 AS n")
    before = queue.image()

    with queue.held(lease.job_id), pytest.raises(RunledgerError) as refused:
        WRITES[write](connection, lease, lock_timeout_ms=1)

    assert refused.value.code == "db.lock_timeout"
    assert connection.execute("SHOW lock_timeout").fetchone() == (callers,)
    connection.commit()
    assert queue.value("SELECT n FROM public.mine") == 1
    assert queue.image() == before


@pytest.mark.parametrize("write", WRITES)
def test_callers_shorter_setting_counts(queue: Queue, write):
    lease = target(queue, write)
    connection = queue.database.connect()
    connection.execute("SET LOCAL lock_timeout = '1ms'")

    with queue.held(lease.job_id), pytest.raises(RunledgerError) as refused:
        WRITES[write](connection, lease, lock_timeout_ms=60_000)

    assert refused.value.code == "db.lock_timeout"
    assert connection.execute("SHOW lock_timeout").fetchone() == ("1ms",)


@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "pool"])
@pytest.mark.parametrize("write", WRITES)
def test_waiting_ends_with_the_row(queue: Queue, background, write, is_joined):
    lease = target(queue, write)
    connection: Any = queue.database.connect() if is_joined else queue.pool

    with queue.held(lease.job_id) as host:
        waiting = background.submit(WRITES[write], connection, lease, lock_timeout_ms=60_000)
        queue.until_waiting()
        host.rollback()
        waiting.result()

    if is_joined:
        assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
        connection.commit()
    assert queue.value("SELECT updated_at > created_at FROM runledger.job_queue")


@pytest.mark.parametrize("milliseconds", [0, -1, 2**31, 1.5])
def test_wait_is_checked_before_sql(queue: Queue, milliseconds):
    lease = queue.started()

    with pytest.raises(RunledgerError) as refused:
        heartbeat_job(queue.pool, lease, lease_ttl_seconds=60, lock_timeout_ms=milliseconds)

    assert refused.value.field == "lock_timeout_ms"
