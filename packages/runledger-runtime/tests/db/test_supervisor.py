import threading
import time
from dataclasses import replace
from queue import SimpleQueue

import pytest

from runledger_core import CancelReason, JobStatus, Scope
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.lifecycle import claim_jobs
from runledger_postgres.workers import list_workers
from runledger_runtime.catalog import JobCatalog
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import ShutdownTimeoutError, TaskFailedError
from runledger_runtime.health import LoopHealth, LoopState
from runledger_runtime.supervisor import Supervisor
from runledger_test_support.ageing import expire_lease

CONFIG = JobsConfig("test", poll_interval_ms=50, max_global_concurrency=2)
ENGINE_CONNECTIONS = """
SELECT array_agg(application_name ORDER BY application_name) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runledger %'
"""
OF_THE_WORKER = ["runledger lease keeper", "runledger pump"]
FOR_WAKEUPS = ["runledger listener", "runledger sleep marks"]


def status_of(pool, job_id):
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job.status


def wait_until(condition, *, seen=lambda: ""):
    deadline = time.monotonic() + 30
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, seen()
        pause.wait(0.01)


def test_a_supervisor_runs_jobs_until_it_is_asked_to_stop(runledger_pool):
    catalog, stop, seen = JobCatalog(), threading.Event(), []

    @catalog.job("jobs.one")
    def run(context, payload):
        seen.append((context.worker_id, payload))
        stop.set()

    catalog.sync_definitions(runledger_pool)
    job_id = enqueue_job(runledger_pool, catalog.job_enqueue("jobs.one", {"n": 1})).id

    supervisor = Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog).build()
    supervisor.run_until_shutdown(stop, timeout=30)

    assert seen == [(supervisor.worker_id, {"n": 1})]
    assert status_of(runledger_pool, job_id) is JobStatus.SUCCEEDED
    assert [loop.state for loop in supervisor.health().loops] == [LoopState.STOPPED] * 3
    assert supervisor.health().is_healthy
    assert list_workers(runledger_pool) == []


def test_a_supervisor_with_a_reaper_alone_frees_expired_leases(runledger_pool, monkeypatch):
    freed = threading.Event()
    monkeypatch.setattr(LoopHealth, "passed", lambda self, *, backlog: freed.set())
    catalog = JobCatalog().job("jobs.one", lambda context, payload: None)
    catalog.sync_definitions(runledger_pool)
    job_id = enqueue_job(runledger_pool, catalog.job_enqueue("jobs.one", {})).id
    claim_jobs(runledger_pool, worker_id="gone", limit=1, lease_ttl_seconds=60)
    expire_lease(runledger_pool, job_id)

    builder = Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog)
    with builder.disable_worker().disable_scheduler().build():
        assert freed.wait(30)

    assert status_of(runledger_pool, job_id) is JobStatus.PENDING


def test_a_loop_that_breaks_is_fatal_and_named(runledger_pool, monkeypatch):
    # Not an error of the database: only a mistake of ours ends a loop.
    def broken(*_, **__):
        raise AssertionError("a bug")

    monkeypatch.setattr("runledger_runtime.supervisor.run_reaper_loop", broken)
    catalog = JobCatalog().job("jobs.one", lambda context, payload: None)
    supervisor = Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog).build()

    with pytest.raises(TaskFailedError) as caught:
        supervisor.run_until_shutdown(threading.Event(), timeout=30)

    assert caught.value.task == "reaper"


@pytest.mark.parametrize(
    ("disabled", "wakeups", "expected"),
    [
        ([], True, [*OF_THE_WORKER, *FOR_WAKEUPS, "runledger reaper", "runledger scheduler"]),
        ([], False, [*OF_THE_WORKER, "runledger reaper", "runledger scheduler"]),
        (["scheduler", "reaper"], True, [*OF_THE_WORKER, *FOR_WAKEUPS]),
        (["worker"], True, ["runledger reaper", "runledger scheduler"]),
    ],
)
def test_each_enabled_loop_holds_connections_of_its_own(
    runledger_database, runledger_pool, disabled, wakeups, expected
):
    catalog = JobCatalog().job("jobs.one", lambda context, payload: None)
    config = replace(CONFIG, wakeups=wakeups, direct_database_url=runledger_database.direct_dsn)
    builder = Supervisor.builder(runledger_pool, config).with_catalog(catalog)
    for name in disabled:
        getattr(builder, f"disable_{name}")()
    outside = runledger_database.connect_directly(autocommit=True)

    def held():
        row = outside.execute(ENGINE_CONNECTIONS).fetchone()
        return (row and row[0]) or []

    with builder.build():
        wait_until(lambda: held() == sorted(expected), seen=held)

    wait_until(lambda: held() == [], seen=held)


def test_health_tells_of_each_loop_when_it_last_passed(runledger_pool):
    catalog = JobCatalog().job("jobs.one", lambda context, payload: None)

    with Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog).build() as supervisor:
        wait_until(
            lambda: all(loop.last_pass_at is not None for loop in supervisor.health().loops),
            seen=supervisor.health,
        )
        health = supervisor.health()

    assert [loop.name for loop in health.loops] == ["worker", "scheduler", "reaper"]
    assert health.is_healthy
    for loop in health.loops:
        assert (loop.state, loop.last_error, loop.consecutive_errors) == (
            LoopState.RUNNING,
            None,
            0,
        )
        assert (loop.backlog, loop.stuck_handlers) == (0, 0)


def test_a_handler_may_stop_the_supervisor_that_runs_it(runledger_pool):
    catalog, handles = JobCatalog(), SimpleQueue()

    @catalog.job("jobs.last")
    def stop_all(context, payload):
        handles.get(timeout=30).request_shutdown()

    catalog.sync_definitions(runledger_pool)
    job_id = enqueue_job(runledger_pool, catalog.job_enqueue("jobs.last", {})).id
    supervisor = Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog).build()
    handles.put(supervisor.shutdown_handle())

    supervisor.run_until_shutdown(threading.Event(), timeout=30)

    assert status_of(runledger_pool, job_id) is JobStatus.SUCCEEDED
    assert supervisor.is_shutdown_requested


def test_a_handler_is_told_of_the_deadline_and_may_end_before_the_process(runledger_pool):
    catalog, started, reasons = JobCatalog(), threading.Event(), SimpleQueue()

    @catalog.job("jobs.patient")
    def wait(context, payload):
        started.set()
        context.wait(60)
        reasons.put(context.cancel_reason)

    catalog.sync_definitions(runledger_pool)
    job_id = enqueue_job(runledger_pool, catalog.job_enqueue("jobs.patient", {})).id
    supervisor = Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog).build()
    assert started.wait(30)

    with pytest.raises(ShutdownTimeoutError) as caught:
        supervisor.shutdown_with_timeout(1)

    assert caught.value.tasks == ("worker",)
    assert reasons.get(timeout=30) is CancelReason.SHUTDOWN
    wait_until(lambda: status_of(runledger_pool, job_id) is JobStatus.SUCCEEDED)


def test_supervisors_that_are_stopped_as_they_start_leave_nothing_leased(
    runledger_database, runledger_pool
):
    catalog, ran = JobCatalog(), SimpleQueue()
    catalog.job("jobs.one", lambda context, payload: ran.put(context.job_id))
    catalog.sync_definitions(runledger_pool)
    enqueue_jobs(runledger_pool, [catalog.job_enqueue("jobs.one", {}) for _ in range(50)])
    outside = runledger_database.connect_directly(autocommit=True)
    stopped = threading.Event()
    stopped.set()

    for _ in range(10):
        supervisor = Supervisor.builder(runledger_pool, CONFIG).with_catalog(catalog).build()
        supervisor.run_until_shutdown(stopped, timeout=30)

    counts = dict(
        outside.execute(
            "SELECT status::text, count(*) FROM runledger.job_queue GROUP BY 1"
        ).fetchall()
    )
    assert set(counts) <= {"PENDING", "SUCCEEDED"}
    assert ran.qsize() == counts.get("SUCCEEDED", 0)
    assert list_workers(runledger_pool) == []
