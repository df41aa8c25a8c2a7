from datetime import timedelta

import pytest

from runledger_core import JobStatus, Scope
from runledger_postgres import enqueue_job, get_job, upsert_job_definition
from runledger_postgres.lifecycle import claim_jobs
from runledger_postgres.workers import WorkerReport, list_workers, record_worker
from runledger_runtime import loop_link
from runledger_runtime.config import JobsConfig
from runledger_runtime.reaper import run_reaper_loop
from runledger_test_support.ageing import age_worker, expire_lease
from runledger_test_support.factories import make_definition, make_enqueue

from ._watched_loop import RARELY, WatchedLoop

OFTEN = JobsConfig("test", reaper_interval_seconds=1)
HOLD_BATCHES_UP = """
    CREATE FUNCTION public.hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT count(*) FROM ended) > 2 THEN
            PERFORM pg_sleep(60);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER hold_up AFTER UPDATE ON runledger.job_queue REFERENCING NEW TABLE AS ended
        FOR EACH STATEMENT EXECUTE FUNCTION public.hold_up();
"""


def running_reaper(pool, config=RARELY):
    return WatchedLoop("reaper", run_reaper_loop).running(pool, config)


def reap_once(pool, config=RARELY):
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


def test_batch_that_takes_too_long_is_ended_in_smaller_ones(
    runledger_pool, runledger_database, monkeypatch
):
    # Half of it is for the answer to the cancel.
    monkeypatch.setattr(loop_link, "_PASS_SECONDS", 1.0)
    jobs = expired_jobs(runledger_pool, 4)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute(HOLD_BATCHES_UP)
    config = JobsConfig("test", reaper_interval_seconds=3_600, claim_batch_size=4)

    with running_reaper(runledger_pool, config) as running:
        while running.next_pass() is None:
            pass

    assert running.next_error().code == "db.statement_timeout"
    assert states(runledger_pool, jobs) == [JobStatus.PENDING] * 4


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
