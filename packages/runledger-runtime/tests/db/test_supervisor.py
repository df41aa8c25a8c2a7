import threading

import pytest

from runledger_core import JobStatus, Scope
from runledger_postgres import enqueue_job, get_job
from runledger_postgres.lifecycle import claim_jobs
from runledger_postgres.workers import list_workers
from runledger_runtime.catalog import JobCatalog
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import TaskFailedError
from runledger_runtime.health import LoopHealth, LoopState
from runledger_runtime.supervisor import Supervisor
from runledger_test_support.ageing import expire_lease

CONFIG = JobsConfig("test", poll_interval_ms=50, max_global_concurrency=2)


def status_of(pool, job_id):
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job.status


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
    assert [loop.state for loop in supervisor.health().loops] == [LoopState.STOPPED] * 2
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
    with builder.disable_worker().build():
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
