import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobStage, JobStatus
from runledger_postgres import upsert_job_definition
from runledger_postgres.schedules import fire_due_schedules, set_job_schedule_active
from runledger_runtime.config import JobsConfig
from runledger_runtime.cron import jitter_seconds, plan_fire
from runledger_runtime.errors import InvalidConfig
from runledger_runtime.scheduler import run_scheduler_loop
from runledger_runtime.shutdown import StopToken
from runledger_test_support.factories import make_definition

from ._scheduling import (
    LEAP_DAYS,
    OFTEN,
    PAST,
    fires_of,
    jobs_of,
    make_schedule,
    running_scheduler,
    schedule_once,
    stored,
)

FAILING = "a schedule cannot be fired; it is tried again"
WAITING_PASSES = """
SELECT count(*)
FROM pg_locks AS l
JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation = 'runledger.job_schedules'::regclass AND NOT l.granted
    AND a.datname = current_database() AND a.wait_event_type = 'Lock'
"""


def now_of(pool):
    with pool.connection() as connection:
        return connection.execute("SELECT clock_timestamp()").fetchone()[0]


def break_expression(database, name, cron_expr="not a cron"):
    with database.connect(autocommit=True) as connection:
        connection.execute(
            "UPDATE runledger.job_schedules SET cron_expr = %s WHERE name = %s", [cron_expr, name]
        )


def test_a_due_fire_becomes_one_job_and_the_schedule_moves_on(runledger_pool):
    template = {"kind": "full"}
    schedule = make_schedule(runledger_pool, cron_expr="0 * * * *", payload_template=template)
    before = now_of(runledger_pool)

    schedule_once(runledger_pool)

    (job,) = jobs_of(runledger_pool)
    assert job.payload == {
        "kind": "full",
        "_schedule": {
            "schedule_id": str(schedule.id),
            "schedule_name": "nightly",
            "scheduled_for": "2026-02-27T10:00:00Z",
        },
    }
    assert (job.status, job.stage) == (JobStatus.PENDING, JobStage.SCHEDULED)
    assert job.next_run_at == PAST
    after = stored(runledger_pool)
    assert after.last_fired_at is not None
    assert after.next_fire_at > before
    assert after.next_fire_at - timedelta(hours=1) <= now_of(runledger_pool)
    assert (after.next_fire_at.minute, after.next_fire_at.second) == (0, 0)


def test_jitter_delays_the_job_and_not_the_schedule(runledger_pool):
    schedule = make_schedule(runledger_pool, max_jitter_seconds=86_400)
    delay = timedelta(seconds=jitter_seconds(schedule.id, PAST, 86_400))

    schedule_once(runledger_pool)

    (job,) = jobs_of(runledger_pool)
    assert job.payload["_schedule"]["scheduled_for"] == "2026-02-27T10:00:00Z"
    assert job.next_run_at == PAST + delay
    assert stored(runledger_pool).next_fire_at.minute == 0


def test_it_sleeps_until_the_next_fire_by_the_clock_of_the_database(runledger_pool):
    make_schedule(runledger_pool, "soon", next_fire_at=now_of(runledger_pool) + timedelta(hours=1))
    make_schedule(runledger_pool, "sooner", next_fire_at=now_of(runledger_pool) + timedelta(0, 900))
    make_schedule(runledger_pool, "paused", is_active=False)

    slept = schedule_once(runledger_pool)

    assert 600 < slept <= 900
    assert jobs_of(runledger_pool) == []


@pytest.mark.parametrize("is_far_away", [False, True])
def test_it_looks_again_after_the_poll_interval_at_the_latest(runledger_pool, is_far_away):
    if is_far_away:
        next_fire_at = now_of(runledger_pool) + timedelta(days=400)
        make_schedule(runledger_pool, next_fire_at=next_fire_at)

    slept = schedule_once(runledger_pool, JobsConfig("test", schedule_poll_interval_seconds=17))

    assert slept == 17


def test_a_schedule_stored_while_it_sleeps_fires_at_the_next_look(runledger_pool):
    with running_scheduler(runledger_pool, OFTEN) as running:
        running.next_pass()
        make_schedule(runledger_pool)
        while not jobs_of(runledger_pool):
            running.next_pass()

    assert fires_of(runledger_pool) == ["2026-02-27T10:00:00Z"]


def test_full_batches_follow_each_other_without_a_pause(runledger_pool):
    for number in range(5):
        make_schedule(runledger_pool, f"nightly-{number}")
    config = JobsConfig("test", schedule_poll_interval_seconds=3_600, claim_batch_size=2)

    with running_scheduler(runledger_pool, config) as running:
        sleeps = [running.next_sleep() for _ in range(3)]
        backlogs = [running.next_pass() for _ in range(3)]

    assert sleeps[:2] == [0, 0]
    assert sleeps[2] > 0
    assert backlogs == [None, None, 0]
    assert len(jobs_of(runledger_pool)) == 5


def test_what_another_session_holds_is_skipped_and_looked_at_again(
    runledger_pool, runledger_database
):
    make_schedule(runledger_pool, "held")
    make_schedule(runledger_pool, "free")
    holder = runledger_database.connect()
    holder.execute("SELECT FROM runledger.job_schedules WHERE name = 'held' FOR NO KEY UPDATE")

    with running_scheduler(runledger_pool) as running:
        assert running.next_sleep() <= 1
        assert [job.payload["_schedule"]["schedule_name"] for job in jobs_of(runledger_pool)] == [
            "free"
        ]
        holder.rollback()
        while len(jobs_of(runledger_pool)) < 2:
            running.next_pass()


def test_eight_schedulers_make_one_job_of_each_of_sixty_fires(runledger_database, runledger_pool):
    make_schedule(runledger_pool)
    ticks = [PAST + timedelta(minutes=number) for number in range(60)]
    gate = threading.Barrier(9)
    failures = []

    def take_part():
        try:
            with runledger_database.connect(autocommit=True) as connection:
                for _ in ticks:
                    gate.wait(30)
                    fire_due_schedules(connection, plan_fire, limit=100)
                    gate.wait(30)
        except threading.BrokenBarrierError as error:
            failures.append(error)

    threads = [threading.Thread(target=take_part) for _ in range(8)]
    for thread in threads:
        thread.start()
    with runledger_database.connect(autocommit=True) as connection:
        for tick in ticks:
            connection.execute("UPDATE runledger.job_schedules SET next_fire_at = %s", [tick])
            gate.wait(30)
            gate.wait(30)
    for thread in threads:
        thread.join(30)

    assert failures == []
    assert fires_of(runledger_pool) == [f"{tick:%Y-%m-%dT%H:%M:%SZ}" for tick in ticks]


def test_a_fire_that_has_its_job_counts_as_fired(runledger_pool, runledger_database):
    make_schedule(runledger_pool)
    schedule_once(runledger_pool)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute("UPDATE runledger.job_schedules SET next_fire_at = %s", [PAST])

    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-02-27T10:00:00Z"]
    assert stored(runledger_pool).next_fire_at > now_of(runledger_pool)


def test_a_failing_schedule_is_seen_and_does_not_stop_others(
    runledger_pool, runledger_database, caplog
):
    make_schedule(runledger_pool, "broken")
    make_schedule(runledger_pool, "healthy")
    break_expression(runledger_database, "broken")

    with running_scheduler(runledger_pool) as running:
        error = running.next_error()
        running.next_pass()

    assert [job.payload["_schedule"]["schedule_name"] for job in jobs_of(runledger_pool)] == [
        "healthy"
    ]
    row = stored(runledger_pool, "broken")
    assert row.last_error_code == error.code == "job_schedule.invalid_cron"
    assert row.failure_count == 1
    assert row.next_fire_at == PAST
    assert row.retry_at is not None
    assert running.status.last_error is not None
    assert "schedule broken: cron_expr must have 5 fields" in running.status.last_error
    assert running.status.consecutive_errors == 0
    (record,) = [each for each in caplog.records if each.getMessage() == FAILING]
    assert (record.schedule, record.error_code) == ("broken", "job_schedule.invalid_cron")


def test_a_failing_schedule_is_logged_once_and_when_it_fires_again(
    runledger_pool, runledger_database, caplog
):
    caplog.set_level(logging.INFO)
    make_schedule(runledger_pool)
    upsert_job_definition(runledger_pool, make_definition())
    break_expression(runledger_database, "nightly")

    def make_due(cron_expr):
        with runledger_database.connect(autocommit=True) as connection:
            connection.execute(
                "UPDATE runledger.job_schedules SET retry_at = NULL, cron_expr = %s", [cron_expr]
            )

    with running_scheduler(runledger_pool, OFTEN) as running:
        running.next_error()
        make_due("not a cron")
        running.next_error()
        make_due(LEAP_DAYS)
        while not jobs_of(runledger_pool):
            running.next_pass()

    messages = [each.getMessage() for each in caplog.records]
    assert messages.count(FAILING) == 1
    assert messages.count("a schedule fires again") == 1


def test_a_schedule_of_a_disabled_type_is_put_off_with_its_fire(runledger_pool, runledger_database):
    make_schedule(runledger_pool)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute("UPDATE runledger.job_definitions SET is_enabled = false")

    schedule_once(runledger_pool)

    row = stored(runledger_pool)
    assert row.last_error_code == "job_schedule.definition_not_found_or_disabled"
    assert (row.is_active, row.next_fire_at) == (True, PAST)
    assert jobs_of(runledger_pool) == []


def test_after_its_last_fire_a_schedule_is_switched_off_with_the_reason(
    runledger_pool, runledger_database, caplog
):
    last = datetime(2026, 1, 1, tzinfo=UTC)
    make_schedule(runledger_pool, next_fire_at=last)
    break_expression(runledger_database, "nightly", "0 0 0 1 1 ? 2025,2026")

    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-01-01T00:00:00Z"]
    row = stored(runledger_pool)
    assert (row.is_active, row.last_error_code) == (False, "job_schedule.exhausted")
    assert "a schedule has no further fire" in caplog.text


def test_a_paused_schedule_does_not_fire(runledger_pool):
    make_schedule(runledger_pool)
    set_job_schedule_active(runledger_pool, "nightly", False)

    slept = schedule_once(runledger_pool)

    assert slept == 3_600
    assert jobs_of(runledger_pool) == []


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (JobsConfig("t", schedule_poll_interval_seconds=0), "config.zero_schedule_poll_interval"),
        (JobsConfig("t", claim_batch_size=0), "config.invalid_claim_batch_size"),
    ],
)
def test_settings_it_uses_are_refused_before_a_connection_is_made(config, code):
    pool = ConnectionPool("host=/nowhere", open=False)

    refused = run_scheduler_loop(pool, config, StopToken())

    assert isinstance(refused, InvalidConfig)
    assert refused.error.code == code


def test_settings_of_other_loops_do_not_matter(runledger_pool):
    config = JobsConfig(" ", lease_ttl_seconds=0, schedule_poll_interval_seconds=5)

    assert schedule_once(runledger_pool, config) == 5


def test_an_exact_sync_that_holds_the_table_stops_neither_the_loop_nor_its_end(
    runledger_pool, runledger_database
):
    make_schedule(runledger_pool)
    sync = runledger_database.connect()
    sync.execute("LOCK TABLE runledger.job_schedules IN SHARE ROW EXCLUSIVE MODE")

    with running_scheduler(runledger_pool) as running:
        assert running.next_error().code == "db.lock_timeout"
        sync.rollback()
        running.next_pass()
        sync.execute("LOCK TABLE runledger.job_schedules IN SHARE ROW EXCLUSIVE MODE")
        # Leaving the block asks it to stop, and waits for its end.

    assert fires_of(runledger_pool) == ["2026-02-27T10:00:00Z"]
    sync.rollback()


def test_a_stop_while_a_pass_waits_for_the_table_ends_the_loop_within_three_seconds(
    runledger_pool, runledger_database, eventually
):
    make_schedule(runledger_pool)
    holder = runledger_database.connect()
    holder.execute("LOCK TABLE runledger.job_schedules IN ACCESS EXCLUSIVE MODE")
    observer = runledger_database.connect_directly(autocommit=True)

    with running_scheduler(runledger_pool) as running:
        eventually(lambda: observer.execute(WAITING_PASSES).fetchone() == (1,))
        running.stop.request("test")
        running.thread.join(3)
        has_ended = not running.thread.is_alive()
        holder.rollback()

    assert has_ended
    assert jobs_of(runledger_pool) == []
