"""Timeouts, cancellation and lost leases reach a running handler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import CancelReason, JobCancelled, JobEnqueue, JobStatus, Scope
from runledger_postgres import WorkerState, enqueue_job, get_job, list_workers
from runledger_postgres.lifecycle import cancel_job, claim_jobs, complete_job_success
from runledger_runtime.errors import TooManyStuckHandlers
from runledger_runtime.health import LoopState
from runledger_test_support.ageing import expire_lease

pytestmark = pytest.mark.core

Eventually = Callable[[Callable[[], bool]], None]


def test_timeout_sets_the_token_and_schedules_a_retry(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    reasons: list[CancelReason | None] = []

    def handler(context: Any, _payload: Any) -> None:
        context.wait(30)
        reasons.append(context.cancel_reason)
        context.raise_if_cancelled()

    start_worker({"jobs.slow": handler})
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.slow", {}, timeout_seconds=1)).id

    eventually(lambda: bool(reasons))
    eventually(lambda: _status(runledger_pool, job_id) is JobStatus.PENDING)
    job = get_job(runledger_pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    assert reasons == [CancelReason.TIMEOUT]
    assert (job.last_error_code, job.status_reason) == ("job.timeout_exceeded", "TIMEOUT")


def test_handler_that_swallows_the_timeout_keeps_no_slot(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    release = threading.Event()
    ran = threading.Event()

    def stuck(_context: Any, _payload: Any) -> str:
        release.wait(30)
        return "too late"

    worker = start_worker(
        {"jobs.stuck": stuck, "jobs.next": lambda *_: ran.set()},
        max_global_concurrency=1,
        handler_grace_seconds=0,
    )
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}, timeout_seconds=1)).id
    enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}))

    assert ran.wait(30)
    assert _status(runledger_pool, job_id) is JobStatus.PENDING
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 1)
    release.set()
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 0)
    job = get_job(runledger_pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    assert job.last_error_code == "job.timeout_exceeded"


def test_too_many_stuck_handlers_end_the_worker_and_are_told(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    worker = start_worker(
        {"jobs.stuck": lambda *_: release.wait(60)}, handler_grace_seconds=0, max_stuck_handlers=1
    )
    for _ in range(2):
        enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}, timeout_seconds=1))

    eventually(lambda: bool(worker.exits))

    release.set()
    assert worker.exits == [TooManyStuckHandlers(2, 1)]
    told = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert [vars(record)["stuck"] for record in told] == [2]


def test_worker_with_too_many_stuck_handlers_says_so_while_it_drains(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    release = threading.Event()
    worker = start_worker(
        {"jobs.stuck": lambda *_: release.wait(60)},
        handler_grace_seconds=0,
        max_stuck_handlers=0,
        lease_ttl_seconds=1,
    )
    enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}, timeout_seconds=60))
    enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}, timeout_seconds=1))

    eventually(
        lambda: [row.state for row in list_workers(runledger_pool)] == [WorkerState.UNHEALTHY]
    )

    assert not worker.exits
    release.set()


def test_timeout_cancels_a_statement_on_a_lent_connection(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    errors: list[str] = []

    def handler(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            try:
                connection.execute("SELECT pg_sleep(60)")
            except Exception as error:
                errors.append(type(error).__name__)
                raise

    start_worker({"jobs.sql": handler})
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.sql", {}, timeout_seconds=1)).id

    eventually(lambda: bool(errors))
    eventually(lambda: _status(runledger_pool, job_id) is JobStatus.PENDING)
    assert errors == ["QueryCanceled"]


def test_cancel_reaches_a_running_handler_at_once(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    started = threading.Event()
    reasons: list[CancelReason] = []

    def handler(context: Any, _payload: Any) -> None:
        started.set()
        context.wait(60)
        try:
            context.raise_if_cancelled()
        except JobCancelled as told:
            reasons.append(told.reason)
            raise

    # A beat comes every 200 s here, so only the notification can tell.
    start_worker({"jobs.long": handler}, lease_ttl_seconds=600)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
    assert started.wait(30)

    cancel_job(runledger_pool, job_id, scope=Scope.ADMIN, reason="not needed")

    eventually(lambda: bool(reasons))
    assert reasons == [CancelReason.CANCELED]
    assert _status(runledger_pool, job_id) is JobStatus.CANCELED


def test_cancel_reaches_a_running_handler_by_heartbeat_without_notifications(
    runledger_pool: ConnectionPool[Any], start_worker: Any
) -> None:
    started, told = threading.Event(), threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        started.set()
        if context.wait(60):
            told.set()

    start_worker({"jobs.long": handler}, lease_ttl_seconds=1, wakeups=False)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
    assert started.wait(30)

    cancel_job(runledger_pool, job_id, scope=Scope.ADMIN)

    assert told.wait(30)


def test_lost_lease_is_told_and_the_second_workers_result_stands(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    runledger_database: Any,
) -> None:
    started, told = threading.Event(), threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        started.set()
        if context.wait(60):
            told.set()

    start_worker({"jobs.long": handler}, lease_ttl_seconds=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
    assert started.wait(30)
    outside = runledger_database.connect(autocommit=True)
    with outside.transaction():
        # Expired and taken by another worker before the next beat can see it.
        expire_lease(outside, job_id)
        outside.execute(
            "UPDATE runledger.job_queue SET worker_id = 'other', claim_number = claim_number + 1,"
            " attempt = attempt + 1, lease_expires_at = now() + interval '1 minute' WHERE id = %s",
            [job_id],
        )

    assert told.wait(30)
    assert look("SELECT worker_id FROM runledger.job_queue") == "other"
    eventually(lambda: look("SELECT count(*) FROM runledger.job_attempts") == 0)


def test_handler_of_three_lease_ttls_runs_once(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    runs: list[int] = []

    def handler(context: Any, _payload: Any) -> None:
        runs.append(context.attempt)
        context.wait(3.0)

    start_worker({"jobs.long": handler}, lease_ttl_seconds=1)
    start_worker({"jobs.long": handler}, lease_ttl_seconds=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id

    eventually(lambda: _status(runledger_pool, job_id) is JobStatus.SUCCEEDED)
    assert runs == [1]
    assert look("SELECT claim_number FROM runledger.job_queue") == 1


def test_job_deleted_while_it_runs_is_let_go(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    started, release, ran = threading.Event(), threading.Event(), threading.Event()

    def handler(_context: Any, _payload: Any) -> None:
        started.set()
        release.wait(30)

    start_worker(
        {"jobs.long": handler, "jobs.next": lambda *_: ran.set()}, max_global_concurrency=1
    )
    enqueue_job(runledger_pool, JobEnqueue("jobs.long", {}))
    assert started.wait(30)

    look("DELETE FROM runledger.job_queue RETURNING 1")
    release.set()
    enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}))

    assert ran.wait(30)


def test_thread_of_a_handler_that_reports_after_success_is_refused_quietly(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    release = threading.Event()
    refusals: list[str] = []

    def handler(context: Any, _payload: Any) -> None:
        def report() -> None:
            release.wait(30)
            for service in (lambda: context.progress(done=1), lambda: context.log("INFO", "late")):
                try:
                    service()
                except JobCancelled as refused:
                    refusals.append(str(refused))

        threading.Thread(target=report, daemon=True).start()

    start_worker({"jobs.forks": handler})
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.forks", {})).id
    eventually(lambda: _status(runledger_pool, job_id) is JobStatus.SUCCEEDED)

    release.set()

    eventually(lambda: len(refusals) == 2)
    assert look("SELECT count(*) FROM runledger.job_logs") == 0


def test_first_worker_that_ignores_its_lost_lease_changes_nothing(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    runledger_database: Any,
) -> None:
    started, release = threading.Event(), threading.Event()

    def handler(_context: Any, _payload: Any) -> None:
        started.set()
        release.wait(60)

    # One slot, so that the first worker cannot take the job again.
    worker = start_worker({"jobs.deaf": handler}, lease_ttl_seconds=600, max_global_concurrency=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.deaf", {})).id
    assert started.wait(30)
    outside = runledger_database.connect(autocommit=True)
    outside.execute(
        "UPDATE runledger.job_queue SET status = 'PENDING', worker_id = NULL,"
        " lease_expires_at = NULL WHERE id = %s",
        [job_id],
    )
    (second,) = claim_jobs(
        runledger_pool, worker_id="second", limit=1, lease_ttl_seconds=60, job_types=["jobs.deaf"]
    )
    complete_job_success(runledger_pool, second.lease)

    release.set()

    eventually(lambda: len(_attempts(outside)) == 1)
    worker.end()
    assert _attempts(outside) == [("second", "SUCCEEDED")]


def _attempts(connection: Any) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT worker_id, outcome::text FROM runledger.job_attempts"
    ).fetchall()


def _status(pool: ConnectionPool[Any], job_id: Any) -> JobStatus | None:
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    return job.status if job else None
