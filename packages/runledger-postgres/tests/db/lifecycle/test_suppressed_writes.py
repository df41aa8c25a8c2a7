"""A trigger of the host that keeps a write from its row: nothing of it is stored or reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import JobCompletion, JobFailure, JobLease, RunledgerError, Scope
from runledger_postgres.lifecycle import (
    FailureEntry,
    SuccessEntry,
    cancel_job,
    complete_jobs,
    fail_jobs,
    heartbeat_jobs,
    release_jobs,
    requeue_job,
)

if TYPE_CHECKING:
    from conftest import Queue

SUPPRESS = """
CREATE FUNCTION public.suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER suppress BEFORE UPDATE ON runledger.job_queue
    FOR EACH ROW EXECUTE FUNCTION public.suppress();
"""
HISTORY = """
SELECT
    (SELECT count(*) FROM runledger.job_attempts), (SELECT count(*) FROM runledger.job_events),
    (SELECT count(*) FROM runledger.job_dead_letters), (SELECT count(*) FROM runledger.job_logs)
"""
DEAD = JobFailure.terminal("test.broken", "broken")

OwnerWrite = Callable[[Any, JobLease], Any]
OWNER_WRITES: dict[str, OwnerWrite] = {
    "complete": lambda db, lease: (
        complete_jobs(db, [SuccessEntry(lease, JobCompletion())])[0].verdict
    ),
    "fail": lambda db, lease: (
        fail_jobs(db, [FailureEntry(lease, DEAD, traceback="line 1")])[0].verdict
    ),
    "release": lambda db, lease: release_jobs(db, [lease], reason="test")[0],
    "heartbeat": lambda db, lease: heartbeat_jobs(db, [lease], lease_ttl_seconds=60)[0],
}


@pytest.mark.parametrize("write", OWNER_WRITES.values(), ids=OWNER_WRITES.keys())
def test_suppressed_write_of_an_owner_is_busy(queue: Queue, write: OwnerWrite):
    queue.enqueue()
    lease = queue.lease()
    connection = queue.database.connect(autocommit=True)
    connection.execute(SUPPRESS)

    verdict = write(connection, lease)

    assert verdict.name == "BUSY"
    assert connection.execute(HISTORY).fetchone() == (0, 0, 0, 0)


def test_suppressed_cancel_is_refused(queue: Queue):
    queue.enqueue()
    lease = queue.lease()
    connection = queue.database.connect(autocommit=True)
    connection.execute(SUPPRESS)

    with pytest.raises(RunledgerError):
        cancel_job(connection, lease.job_id, scope=Scope.ADMIN)

    assert connection.execute(HISTORY).fetchone() == (0, 0, 0, 0)


def test_suppressed_requeue_is_refused(queue: Queue):
    queue.enqueue()
    lease = queue.lease()
    connection = queue.database.connect(autocommit=True)
    complete_jobs(connection, [SuccessEntry(lease, JobCompletion())])
    before = connection.execute(HISTORY).fetchone()
    connection.execute(SUPPRESS)

    with pytest.raises(RunledgerError):
        requeue_job(connection, lease.job_id, scope=Scope.ADMIN)

    assert connection.execute(HISTORY).fetchone() == before
