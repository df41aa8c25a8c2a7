"""Time that a test sets: whatever the loop misses, each fire becomes one job."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import sql

from runledger_postgres.schedules import set_job_schedule_active, set_job_schedule_next_fire_at

from ._scheduling import DatabaseClock, fires_of, jobs_of, make_schedule, schedule_once, stored

PROGRAM = """
import sys
from psycopg_pool import ConnectionPool
from runledger_runtime.config import JobsConfig
from runledger_runtime.health import LoopHealth
from runledger_runtime.scheduler import run_scheduler_loop
from runledger_runtime.shutdown import StopToken

stop = StopToken()

class OnePass(LoopHealth):
    def passed(self, *, backlog=None):
        super().passed(backlog=backlog)
        stop.request()

pool = ConnectionPool(sys.argv[1], open=False)
run_scheduler_loop(pool, JobsConfig("test"), stop, health=OnePass("scheduler"))
"""
HOURLY = "0 * * * *"


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_an_hourly_schedule_fires_once_an_hour_though_it_restarts_every_ten_minutes(
    clock, runledger_pool
):
    start = at("2026-02-28T20:05:00")
    clock.set(start)
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-02-28T21:00:00"))

    for step in range(12 * 6):
        clock.set(start + timedelta(minutes=10 * step))
        schedule_once(runledger_pool)

    hours = [at("2026-02-28T21:00:00") + timedelta(hours=number) for number in range(11)]
    assert fires_of(runledger_pool) == [f"{hour:%Y-%m-%dT%H:%M:%SZ}" for hour in hours]


def test_a_fire_that_falls_on_a_restart_is_made_after_it(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-03-01T12:00:00"))
    clock.set(at("2026-03-01T11:59:59"))
    slept = schedule_once(runledger_pool)
    assert (slept, jobs_of(runledger_pool)) == (1, [])

    clock.set(at("2026-03-01T12:00:01"))
    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-03-01T12:00:00Z"]


def test_thirty_days_of_downtime_make_one_late_job_with_its_own_time(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-02-01T07:00:00"))
    clock.set(at("2026-03-03T09:30:00"))

    schedule_once(runledger_pool)

    (job,) = jobs_of(runledger_pool)
    assert job.payload["_schedule"]["scheduled_for"] == "2026-02-01T07:00:00Z"
    assert job.next_run_at == at("2026-02-01T07:00:00")
    assert stored(runledger_pool).next_fire_at == at("2026-03-03T10:00:00")


def test_a_one_second_schedule_that_is_a_year_late_makes_one_job(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr="* * * * * *", next_fire_at=at("2025-03-03T09:30:00"))
    clock.set(at("2026-03-03T09:30:00.250000"))

    slept = schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2025-03-03T09:30:00Z"]
    assert stored(runledger_pool).next_fire_at == at("2026-03-03T09:30:01")
    assert slept == 0.75


def test_a_fire_that_falls_on_now_is_made_and_the_next_is_later(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-03-03T09:00:00"))
    clock.set(at("2026-03-03T09:00:00"))

    schedule_once(runledger_pool)
    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-03-03T09:00:00Z"]
    assert stored(runledger_pool).next_fire_at == at("2026-03-03T10:00:00")


def test_a_sleep_that_ends_early_makes_no_fire_early(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-03-03T09:00:00"))
    clock.set(at("2026-03-03T08:59:59.997000"))

    slept = schedule_once(runledger_pool)

    assert jobs_of(runledger_pool) == []
    assert slept == 0.003


def test_a_clock_that_steps_back_makes_no_fire_twice(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr="* * * * *", next_fire_at=at("2026-03-03T09:00:00"))
    clock.set(at("2026-03-03T09:00:10"))
    schedule_once(runledger_pool)

    clock.set(at("2026-03-03T08:58:40"))
    schedule_once(runledger_pool)
    assert stored(runledger_pool).next_fire_at == at("2026-03-03T09:01:00")
    clock.set(at("2026-03-03T09:01:10"))
    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-03-03T09:00:00Z", "2026-03-03T09:01:00Z"]


def test_a_job_with_jitter_is_due_later_and_its_schedule_is_not(clock, runledger_pool):
    make_schedule(
        runledger_pool,
        cron_expr="* * * * *",
        next_fire_at=at("2026-03-03T09:00:00"),
        max_jitter_seconds=600,
    )
    for minute in range(5):
        clock.set(at(f"2026-03-03T09:0{minute}:00"))
        schedule_once(runledger_pool)

    jobs = jobs_of(runledger_pool)
    assert fires_of(runledger_pool) == [f"2026-03-03T09:0{minute}:00Z" for minute in range(5)]
    delays = [
        (job.next_run_at - at(f"2026-03-03T09:0{minute}:00")).total_seconds()
        for minute, job in enumerate(jobs)
    ]
    assert all(0 <= delay <= 600 for delay in delays)
    assert len(set(delays)) > 1


def test_a_schedule_resumed_after_its_fire_makes_it_once_late(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-03-03T09:00:00"))
    set_job_schedule_active(runledger_pool, "nightly", False)
    clock.set(at("2026-03-03T12:20:00"))
    schedule_once(runledger_pool)
    set_job_schedule_active(runledger_pool, "nightly", True)

    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-03-03T09:00:00Z"]
    assert stored(runledger_pool).next_fire_at == at("2026-03-03T13:00:00")


def test_a_next_fire_that_is_set_is_made_then_the_expression_goes_on(clock, runledger_pool):
    make_schedule(runledger_pool, cron_expr=HOURLY, next_fire_at=at("2026-03-03T09:00:00"))
    set_job_schedule_next_fire_at(runledger_pool, "nightly", at("2026-03-03T08:17:03"))
    clock.set(at("2026-03-03T08:17:03"))

    schedule_once(runledger_pool)

    assert fires_of(runledger_pool) == ["2026-03-03T08:17:03Z"]
    assert stored(runledger_pool).next_fire_at == at("2026-03-03T09:00:00")


@pytest.mark.parametrize("zone", ["America/Santiago", "Asia/Kathmandu"])
def test_zones_of_server_and_process_change_nothing(runledger_database, zone):
    clock = DatabaseClock(runledger_database)
    with runledger_database.connect(autocommit=True) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET timezone = {}").format(
                sql.Identifier(runledger_database.name), sql.Literal(zone)
            )
        )
    # Chile's clocks go back an hour in the night to 5 April 2026.
    with runledger_database.connect(autocommit=True) as connection:
        make_schedule(connection, cron_expr="30 3 * * SUN", next_fire_at=at("2026-04-05T03:30:00"))
        make_schedule(connection, "@daily", "@daily", next_fire_at=at("2026-04-05T00:00:00"))
        clock.set(at("2026-04-05T03:30:00"))

        subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, runledger_database.dsn],
            env=os.environ | {"TZ": zone},
            check=True,
            timeout=60,
        )

        assert fires_of(connection) == ["2026-04-05T00:00:00Z", "2026-04-05T03:30:00Z"]
        assert stored(connection).next_fire_at == at("2026-04-12T03:30:00")
        assert stored(connection, "@daily").next_fire_at == at("2026-04-06T00:00:00")
