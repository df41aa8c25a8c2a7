import logging
import threading
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobStatus, Scope
from runledger_postgres import enqueue_job, get_job, upsert_job_definition
from runledger_postgres.lifecycle import claim_jobs
from runledger_postgres.workers import WorkerReport, list_workers, record_worker
from runledger_runtime import reaper
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import LoopExit
from runledger_runtime.health import LoopHealth, LoopState
from runledger_runtime.reaper import run_reaper_loop
from runledger_runtime.shutdown import StopToken
from runledger_test_support.ageing import age_worker, expire_lease
from runledger_test_support.factories import make_definition, make_enqueue
from runledger_test_support.proxy import FaultProxy, ProxyMode

CONFIG = JobsConfig("test", reaper_interval_seconds=3_600)
OFTEN = JobsConfig("test", reaper_interval_seconds=1)
WAITING = "the reaper waits for the database"


class WatchedHealth(LoopHealth):
    """Lets a test wait for passes and errors."""

    def __init__(self):
        super().__init__("reaper")
        self.passes = SimpleQueue()
        self.errors = SimpleQueue()

    def passed(self, *, backlog=None):
        super().passed(backlog=backlog)
        self.passes.put(backlog)

    def failed(self, error):
        super().failed(error)
        self.errors.put(error)


class Running:
    def __init__(self):
        self.health = WatchedHealth()
        self.stop = StopToken()
        self.exits = []

    def next_pass(self):
        return self.health.passes.get(timeout=30)

    def next_error(self):
        return self.health.errors.get(timeout=30)

    @property
    def status(self):
        return self.health.status(LoopState.RUNNING)


@contextmanager
def running_reaper(pool, config=CONFIG):
    running = Running()

    def run():
        running.exits.append(run_reaper_loop(pool, config, running.stop, health=running.health))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield running
    finally:
        running.stop.request()
        thread.join(10)
        assert running.exits == [LoopExit.SHUTDOWN]


def reap_once(pool, config=CONFIG):
    with running_reaper(pool, config) as running:
        running.next_pass()


def leased_jobs(pool, count=1, *, max_attempts=3):
    upsert_job_definition(pool, make_definition(max_attempts=max_attempts))
    jobs = [enqueue_job(pool, make_enqueue()).id for _ in range(count)]
    claimed = claim_jobs(pool, worker_id="gone", limit=count, lease_ttl_seconds=60)
    assert len(claimed) == count
    return jobs


def expired_jobs(pool, count=1, *, max_attempts=3):
    jobs = leased_jobs(pool, count, max_attempts=max_attempts)
    for job_id in jobs:
        expire_lease(pool, job_id)
    return jobs


def stored(pool, job_id):
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job


def states(pool, jobs):
    return [stored(pool, job_id).status for job_id in jobs]


def test_an_expired_lease_is_tried_again_after_the_reapers_delay(runledger_pool):
    (job_id,) = expired_jobs(runledger_pool)

    reap_once(runledger_pool)

    job = stored(runledger_pool, job_id)
    assert job.status is JobStatus.PENDING
    assert job.attempt == 1
    assert job.last_error_code == "job.lease_expired"
    assert timedelta(seconds=29) < job.next_run_at - job.updated_at < timedelta(seconds=31)


def test_the_delay_is_the_backoff_of_the_attempt_where_that_is_longer(runledger_pool):
    (job_id,) = expired_jobs(runledger_pool)

    reap_once(
        runledger_pool,
        JobsConfig("test", reaper_interval_seconds=3_600, reaper_retry_delay_ms=1_000),
    )

    job = stored(runledger_pool, job_id)
    assert timedelta(seconds=8.9) < job.next_run_at - job.updated_at < timedelta(seconds=11.1)


def test_the_last_attempt_is_dead_lettered(runledger_pool):
    jobs = expired_jobs(runledger_pool, max_attempts=1)

    reap_once(runledger_pool)

    assert states(runledger_pool, jobs) == [JobStatus.DEAD_LETTERED]


def test_a_live_lease_is_left_alone(runledger_pool):
    jobs = leased_jobs(runledger_pool)

    reap_once(runledger_pool)

    assert states(runledger_pool, jobs) == [JobStatus.LEASED]


def test_full_batches_follow_each_other_without_a_pause(runledger_pool):
    jobs = expired_jobs(runledger_pool, 5)
    config = JobsConfig("test", reaper_interval_seconds=3_600, claim_batch_size=2)

    with running_reaper(runledger_pool, config) as running:
        backlogs = [running.next_pass() for _ in range(3)]

    assert backlogs == [None, None, 0]
    assert states(runledger_pool, jobs) == [JobStatus.PENDING] * 5


def test_counts_are_logged(runledger_pool, caplog):
    expired_jobs(runledger_pool, 2, max_attempts=1)

    reap_once(runledger_pool)

    (record,) = [each for each in caplog.records if "lease ran out" in each.getMessage()]
    assert (record.retried, record.dead_lettered) == (0, 2)


def test_a_row_that_cannot_be_ended_is_logged_and_does_not_stop_others(
    runledger_pool, runledger_database, caplog
):
    poisoned, healthy = expired_jobs(runledger_pool, 2)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE runledger.job_attempts"
            f" ADD CONSTRAINT poison CHECK (job_id <> '{poisoned}')"
        )

    reap_once(runledger_pool)

    assert states(runledger_pool, [poisoned, healthy]) == [JobStatus.LEASED, JobStatus.PENDING]
    (record,) = [each for each in caplog.records if hasattr(each, "job_id")]
    assert record.job_id == str(poisoned)
    assert record.error_code == "db.business_rule_violation"


def test_it_uses_one_connection_of_its_own_and_closes_it(runledger_database):
    opened = []

    class Recorded(psycopg.Connection):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            opened.append(self)

    pool = ConnectionPool(runledger_database.dsn, connection_class=Recorded, open=False)
    with running_reaper(pool, OFTEN) as running:
        running.next_pass()
        running.next_pass()

    assert [connection.closed for connection in opened] == [True]


def test_it_outlives_the_loss_of_its_connection(runledger_pool, runledger_database):
    (job_id,) = leased_jobs(runledger_pool)

    with running_reaper(runledger_pool, OFTEN) as running:
        running.next_pass()
        with runledger_database.connect(autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            expire_lease(connection, job_id)
        running.next_error()
        running.next_pass()

        assert states(runledger_pool, [job_id]) == [JobStatus.PENDING]
        assert running.status.consecutive_errors == 0


def test_it_waits_for_a_server_that_is_away_and_logs_that_once(runledger_database, caplog):
    caplog.set_level(logging.INFO)
    with FaultProxy(runledger_database.dsn) as proxy:
        proxy.set_mode(ProxyMode.REFUSE)
        pool = ConnectionPool(proxy.dsn, open=False)
        with running_reaper(pool) as running:
            for _ in range(3):
                running.next_error()
            assert running.status.last_pass_at is None
            assert running.status.last_error == "OperationalError"

            proxy.set_mode(ProxyMode.PASS)
            running.next_pass()

    logged = [each for each in caplog.records if each.getMessage() == WAITING]
    assert [each.failures for each in logged] == [1]
    assert "refused" in logged[0].reason
    assert logged[0].exc_info is None
    (recovered,) = [each for each in caplog.records if each.getMessage() == "the reaper goes on"]
    assert recovered.failures >= 3


def test_a_frozen_link_is_noticed(runledger_database, monkeypatch):
    monkeypatch.setattr(reaper, "_PASS_SECONDS", 0.5)
    with FaultProxy(runledger_database.dsn) as proxy:
        pool = ConnectionPool(proxy.dsn, kwargs={"connect_timeout": 2}, open=False)
        with running_reaper(pool, OFTEN) as running:
            running.next_pass()
            running.next_pass()
            proxy.set_mode(ProxyMode.BLACKHOLE)
            running.next_error()
            proxy.set_mode(ProxyMode.PASS)

            running.next_pass()


def test_settings_of_the_pool_that_fail_are_asked_again(runledger_database, caplog):
    answers = [LookupError("no password today"), LookupError("no password today"), {}]

    def settings():
        answer = answers.pop(0)
        if isinstance(answer, LookupError):
            raise answer
        return answer

    pool = ConnectionPool(runledger_database.dsn, kwargs=settings, open=False)
    with running_reaper(pool) as running:
        running.next_pass()

    assert answers == []
    (record,) = [each for each in caplog.records if each.getMessage() == WAITING]
    assert record.exc_info is not None
    assert record.error == "LookupError"


@pytest.fixture
def workers(runledger_pool):
    for worker_id, hours in (("gone", 25), ("missed", 23)):
        record_worker(
            runledger_pool,
            WorkerReport(worker_id, "host", pid=1, version="1", job_types=[], concurrency=1),
        )
        age_worker(runledger_pool, worker_id, hours * 3_600)


def test_workers_not_seen_for_a_day_are_forgotten(runledger_pool, workers):
    reap_once(runledger_pool)

    assert [worker.worker_id for worker in list_workers(runledger_pool)] == ["missed"]


def test_workers_are_pruned_once_an_hour(runledger_pool, workers):
    with running_reaper(runledger_pool, OFTEN) as running:
        running.next_pass()
        running.next_pass()
        age_worker(runledger_pool, "missed", 7_200)
        running.next_pass()

        assert [worker.worker_id for worker in list_workers(runledger_pool)] == ["missed"]


def test_leases_are_reaped_though_workers_cannot_be_pruned(
    runledger_pool, runledger_database, caplog
):
    (job_id,) = leased_jobs(runledger_pool)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute("DROP TABLE runledger.job_workers")

    with running_reaper(runledger_pool, OFTEN) as running:
        running.next_pass()
        expire_lease(runledger_pool, job_id)
        running.next_pass()

        assert running.status.consecutive_errors == 0
    assert states(runledger_pool, [job_id]) == [JobStatus.PENDING]
    assert caplog.text.count("workers long gone could not be pruned") == 1


def test_a_pass_that_is_refused_is_tried_again(runledger_pool, runledger_database):
    (job_id,) = expired_jobs(runledger_pool)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute("ALTER TABLE runledger.job_queue RENAME TO elsewhere")
        with running_reaper(runledger_pool) as running:
            assert running.next_error().code == "schema.missing_migration_history"
            running.next_error()
            connection.execute("ALTER TABLE runledger.elsewhere RENAME TO job_queue")

            running.next_pass()

    assert states(runledger_pool, [job_id]) == [JobStatus.PENDING]
