"""What the tests of the scheduler share: schedules, one pass, and a database whose clock is set."""

from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

from psycopg import sql

from runledger_core import JobScheduleUpsert, Scope
from runledger_postgres import JobFilter, get_job, list_jobs, upsert_job_definition
from runledger_postgres.schedules import (
    JobScheduleRecord,
    get_job_schedule_by_name,
    upsert_job_schedule,
)
from runledger_runtime.config import JobsConfig
from runledger_runtime.scheduler import run_scheduler_loop
from runledger_runtime.shutdown import StopToken
from runledger_test_support.factories import make_definition

from .._watched_loop import RARELY, WatchedLoop

OFTEN = JobsConfig("test", schedule_poll_interval_seconds=1)
PAST = datetime(2026, 2, 27, 10, 0, tzinfo=UTC)
# A schedule of this expression does not fire by the clock while a test runs.
LEAP_DAYS = "0 0 29 2 *"

# Found before those of PostgreSQL, since the path names them first.
SET_CLOCK = """
CREATE SCHEMA fake;
CREATE TABLE fake.clock (at timestamptz);
INSERT INTO fake.clock VALUES ('2026-01-01 00:00:00+00');
CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS 'SELECT at FROM fake.clock';
CREATE FUNCTION fake.statement_timestamp() RETURNS timestamptz LANGUAGE sql
    AS 'SELECT at FROM fake.clock';
"""


class WatchedStop(StopToken):
    """Tells for how long the loop wanted to sleep."""

    def __init__(self):
        super().__init__()
        self.sleeps = SimpleQueue()

    def wait(self, timeout=None):
        self.sleeps.put(timeout)
        return super().wait(timeout)


class WatchedScheduler(WatchedLoop):
    """A scheduler that also tells for how long it wanted to sleep."""

    def __init__(self):
        stop = WatchedStop()
        super().__init__("scheduler", run_scheduler_loop, stop=stop)
        self._sleeps = stop.sleeps

    def next_sleep(self):
        return self._sleeps.get(timeout=30)


def running_scheduler(pool, config=RARELY):
    return WatchedScheduler().running(pool, config)


def schedule_once(pool, config=RARELY):
    """Start a scheduler, let it sleep, stop it, and return for how long it would have slept."""
    with running_scheduler(pool, config) as running:
        slept = running.next_sleep()
        while slept == 0:
            slept = running.next_sleep()
    return slept


def make_schedule(pool, name="nightly", cron_expr=LEAP_DAYS, *, next_fire_at=PAST, **fields):
    upsert_job_definition(pool, make_definition())
    schedule = JobScheduleUpsert(
        name, "test.job", cron_expr=cron_expr, next_fire_at=next_fire_at, **fields
    )
    return upsert_job_schedule(pool, schedule)


def stored(pool, name="nightly") -> JobScheduleRecord:
    schedule = get_job_schedule_by_name(pool, name)
    assert schedule is not None
    return schedule


def jobs_of(pool) -> list[Any]:
    """Return all jobs, oldest first; as Any, since a test knows what their payloads hold."""
    found = [
        get_job(pool, job.id, scope=Scope.ADMIN)
        for job in list_jobs(pool, JobFilter(Scope.ADMIN), limit=1_000)
    ]
    return [job for job in reversed(found) if job is not None]


def fires_of(pool):
    """Return the fires that have a job, as the jobs tell."""
    return [job.payload["_schedule"]["scheduled_for"] for job in jobs_of(pool)]


class DatabaseClock:
    """The clock of a database that stands still until it is set."""

    def __init__(self, database):
        self._connection = database.connect_directly(autocommit=True)
        self._connection.execute(SET_CLOCK)
        self._connection.execute(
            sql.SQL("ALTER DATABASE {} SET search_path = fake, pg_catalog, public").format(
                sql.Identifier(database.name)
            )
        )

    def set(self, at):
        self._connection.execute("UPDATE fake.clock SET at = %s", [at])
