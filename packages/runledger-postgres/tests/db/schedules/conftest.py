"""Schedules as their tests speak of them, and a plan that needs no cron."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from runledger_core import JobDefinitionSpec, JobScheduleUpsert
from runledger_postgres import (
    DueSchedule,
    ScheduleFire,
    SchedulePass,
    fire_due_schedules,
    upsert_job_definition,
    upsert_job_schedule,
)
from runledger_postgres.schedules import PlanFire
from runledger_test_support import TemporaryDatabase

MINUTE = timedelta(minutes=1)


def plan_minutely(due: DueSchedule) -> ScheduleFire:
    """The next whole minute of the future, without those that were missed."""
    latest = max(due.scheduled_for, due.now)
    return ScheduleFire(latest.replace(second=0, microsecond=0) + MINUTE, due.scheduled_for)


class Schedules:
    """The schedules of one database."""

    def __init__(self, database: TemporaryDatabase) -> None:
        self.database = database
        self.connection = database.connect(autocommit=True)

    def define(self, job_type: str = "test.job", **fields: Any) -> None:
        upsert_job_definition(self.connection, JobDefinitionSpec(job_type, **fields))

    def store(self, name: str = "nightly", job_type: str = "test.job", **fields: Any) -> Any:
        """Upsert a schedule; as Any, since a test knows which fields are set."""
        fields = {"cron_expr": "* * * * *"} | fields
        return upsert_job_schedule(self.connection, JobScheduleUpsert(name, job_type, **fields))

    def fire(self, plan: PlanFire = plan_minutely, *, limit: int = 100) -> SchedulePass:
        return fire_due_schedules(self.connection, plan, limit=limit)

    def execute(self, query: str, *params: object) -> None:
        self.connection.execute(query.encode(), params or None)

    def fetch(self, query: str, *params: object) -> list[dict[str, Any]]:
        cursor = self.connection.cursor(row_factory=dict_row)
        return cursor.execute(query.encode(), params or None).fetchall()

    def value(self, query: str, *params: object) -> Any:
        (row,) = self.fetch(query, *params)
        (value,) = row.values()
        return value

    def row(self, name: str = "nightly") -> dict[str, Any]:
        (row,) = self.fetch("SELECT * FROM runledger.job_schedules WHERE name = %s", name)
        return row

    def tuples(self) -> list[dict[str, Any]]:
        """Where every row is, and who wrote or locked it: the least touch shows."""
        return self.fetch(
            "SELECT name, ctid::text, xmin::text, xmax::text FROM runledger.job_schedules"
            " ORDER BY name"
        )

    def jobs(self) -> list[dict[str, Any]]:
        return self.fetch("SELECT * FROM runledger.job_queue ORDER BY scheduled_for, id")

    def ticks(self, name: str = "nightly") -> list[datetime]:
        """The fires of a schedule that have a job, in their order."""
        return [job["scheduled_for"] for job in self.jobs() if job["schedule_id"] == self.id(name)]

    def id(self, name: str = "nightly") -> Any:
        return self.row(name)["id"]

    def now(self) -> datetime:
        return self.value("SELECT clock_timestamp()")

    def until(self, query: str, *params: object) -> None:
        """Return as soon as the query says so, seen from a connection of its own."""
        deadline = time.monotonic() + 60
        with self.database.connect(autocommit=True) as observer:
            while observer.execute(query.encode(), params).fetchone() != (True,):
                assert time.monotonic() < deadline, query

    def be_due(self, name: str = "nightly", *, seconds_ago: float = 1) -> datetime:
        """Let a schedule be due since so many seconds, and return that fire."""
        self.execute(
            "UPDATE runledger.job_schedules SET retry_at = NULL,"
            " next_fire_at = clock_timestamp() - make_interval(secs => %s) WHERE name = %s",
            seconds_ago,
            name,
        )
        return self.row(name)["next_fire_at"]

    @contextmanager
    def held(self, name: str = "nightly") -> Iterator[psycopg.Connection[Any]]:
        """Let a host's transaction hold the row of a schedule for a block."""
        with self.database.connect() as connection:
            connection.execute(
                "SELECT FROM runledger.job_schedules WHERE name = %s FOR UPDATE", [name]
            )
            yield connection
            connection.rollback()


@pytest.fixture
def schedules(runledger_database: TemporaryDatabase) -> Schedules:
    """A database that knows the type `test.job`."""
    schedules = Schedules(runledger_database)
    schedules.define()
    return schedules
