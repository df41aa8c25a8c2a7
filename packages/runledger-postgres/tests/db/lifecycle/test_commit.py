"""A COMMIT that fails leaves everything as it was, and the caller hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runledger_core import JobFailure, Scope
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    ClaimRequest,
    cancel_job,
    complete_job_failure,
    complete_job_success,
    heartbeat_job,
    reap_expired_leases,
    release_job,
    requeue_job,
    run_worker_round,
)
from runledger_test_support import expire_lease

if TYPE_CHECKING:
    from conftest import Queue

FATAL = JobFailure.terminal("a", "b")
FAIL_AT_COMMIT = """
    CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'refused by the test'; END $$;
    CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON runledger.job_queue
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail();
"""
WRITES = {
    "heartbeat": lambda db, lease: heartbeat_job(db, lease, lease_ttl_seconds=60),
    "success": complete_job_success,
    "failure": lambda db, lease: complete_job_failure(db, lease, FATAL),
    "release": lambda db, lease: release_job(db, lease, reason="test"),
    "cancel": lambda db, lease: cancel_job(db, lease.job_id, scope=Scope.ADMIN),
    "requeue": lambda db, lease: requeue_job(db, lease.job_id, scope=Scope.ADMIN),
}


@pytest.mark.parametrize("write", WRITES)
def test_failing_commit_changes_nothing(queue: Queue, write):
    lease = queue.started()
    if write == "requeue":
        complete_job_success(queue.pool, lease)
    queue.execute(FAIL_AT_COMMIT)
    before = queue.image()

    with pytest.raises(QueryError) as refused:
        WRITES[write](queue.pool, lease)

    assert refused.value.code == "db.query_failed"
    assert queue.image() == before


def test_failing_commit_of_a_claim_leases_nothing(queue: Queue):
    queue.enqueue(2)
    queue.execute(FAIL_AT_COMMIT)
    before = queue.image()
    connection = queue.database.connect(autocommit=True)
    claim = ClaimRequest("w", ["test.job"], limit=2, window=2, lease_ttl_seconds=60)

    with pytest.raises(QueryError):
        queue.claim(2)
    with pytest.raises(QueryError):
        run_worker_round(connection, claim=claim)

    assert queue.image() == before


def test_failing_commit_of_a_reaper_is_found_row_by_row(queue: Queue):
    lease = queue.started()
    expire_lease(queue.pool, lease.job_id)
    queue.execute(FAIL_AT_COMMIT)
    before = queue.image()

    result = reap_expired_leases(queue.pool, limit=10, retry_delay_ms=1_000)

    assert (result.reaped, [error.job_id for error in result.deferred]) == ([], [lease.job_id])
    assert queue.image() == before
