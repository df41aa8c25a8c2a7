"""A large queue in every state of its statistics, and a connection that tells its plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from runledger_core import JobLease
from runledger_postgres.lifecycle import claim_jobs
from runledger_test_support.databases import temporary_database

from .plan_reader import Plan
from .plan_recorder import PlanMode, PlanRecorder
from .population import (
    SMALL_TABLES,
    TYPES,
    Sizes,
    Statistics,
    bring_about,
    define,
    fill,
    maintain,
)

FULL = Sizes(
    terminal=1_000_000, ready=100_000, future=1_000_000, foreign=100_000, due=100, leased=60
)
# Large enough that a sequential scan, or the wrong index, is the worse plan by far.
CI = Sizes(terminal=10_000, ready=1_000, future=10_000, foreign=1_000, due=100, leased=60)
FEW = Sizes(terminal=100, ready=200)  # Its statistics know of no lease, as those of a calm queue.


@dataclass(frozen=True, slots=True)
class LargeQueue:
    """A filled database, seen over one connection; what a test changes is rolled back."""

    connection: psycopg.Connection[Any]
    recorder: PlanRecorder

    def plans_of(
        self, act: Callable[[psycopg.Connection[Any]], object], mode: PlanMode
    ) -> list[Plan]:
        with self.recorder.recording(mode) as plans:
            act(self.connection)
        return plans

    def leases(self, count: int, *, worker_id: str = "worker-1") -> list[JobLease]:
        """Claim jobs in the open transaction."""
        return [
            job.lease
            for job in claim_jobs(
                self.connection,
                worker_id=worker_id,
                limit=count,
                lease_ttl_seconds=60,
                job_types=TYPES,
            )
        ]

    def execute(self, statement: str, *parameters: object) -> None:
        self.connection.execute(statement.encode(), parameters)

    def ids(self, condition: str, count: int) -> list[UUID]:
        found = self.connection.execute(
            f"SELECT id FROM runledger.job_queue WHERE {condition} LIMIT {count}".encode()
        ).fetchall()
        assert len(found) == count, f"only {len(found)} jobs with {condition}"
        return [job_id for (job_id,) in found]


@pytest.fixture(scope="session", params=list(Statistics), ids=lambda kind: kind.name.lower())
def statistics(request: pytest.FixtureRequest) -> Statistics:
    return request.param


@pytest.fixture(scope="session")
def sizes() -> Sizes:
    return FULL if os.environ.get("RUNLEDGER_TEST_SIZE", "ci") == "full" else CI


@pytest.fixture(scope="session")
def defined(runledger_server, runledger_template) -> Generator[str]:
    """The name of an empty database whose statistics say so."""
    with temporary_database(
        runledger_server, prefix="plans_empty", template=runledger_template
    ) as database:
        with database.connect(autocommit=True) as connection:
            define(connection)
        yield database.name


@pytest.fixture(scope="session")
def filled(runledger_server, defined, sizes) -> Generator[str]:
    """The same, filled."""
    with temporary_database(runledger_server, prefix="plans_full", template=defined) as database:
        with database.connect(autocommit=True) as connection:
            fill(connection, sizes)
        yield database.name


@pytest.fixture(scope="session")
def analyzed(runledger_server, filled) -> Generator[str]:
    """The same with statistics of what it holds."""
    with temporary_database(runledger_server, prefix="plans_known", template=filled) as database:
        with database.connect(autocommit=True) as connection:
            maintain(connection, "VACUUM ANALYZE")
        yield database.name


@pytest.fixture(scope="session")
def populated(request: pytest.FixtureRequest, runledger_server, statistics, sizes):
    """A clone for each state of statistics, which are copied with a database; no two at a time."""
    match statistics:
        case Statistics.WHEN_SMALL:
            template = "defined"
        case Statistics.NEVER | Statistics.WHEN_EMPTY:
            template = "filled"
        case _:
            template = "analyzed"
    with temporary_database(
        runledger_server, prefix="plans", template=request.getfixturevalue(template)
    ) as database:
        with database.connect(autocommit=True) as connection:
            bring_about(connection, statistics, sizes, few=FEW)
        yield database


@pytest.fixture(scope="session")
def recorder(populated) -> Generator[PlanRecorder]:
    with psycopg.connect(populated.dsn) as connection:
        recorder = PlanRecorder(connection)
        # Succeeded jobs have no index; a scan for some begins where they are, not where the last
        # scan of a large table was.
        connection.execute("SET synchronize_seqscans = off")
        connection.commit()
        yield recorder


@pytest.fixture
def large_queue(recorder: PlanRecorder) -> Generator[LargeQueue]:
    yield LargeQueue(recorder.connection, recorder)
    recorder.connection.rollback()


@pytest.fixture(params=list(PlanMode), ids=lambda mode: mode.name.lower())
def mode(request: pytest.FixtureRequest) -> PlanMode:
    return request.param


# Of these databases there are none in a workflow; what ends in runs is `test_settle_plans`.
_EMPTY_TABLES: Final = frozenset({"workflow_runs"})


def problems_of(plans: list[Plan], *, rows: int) -> list[str]:
    """Return what is not as good as promised, for work on `rows` rows (limit times types)."""
    problems: list[str] = []
    for place, plan in enumerate(plans, 1):
        ignored = SMALL_TABLES | _EMPTY_TABLES
        found = [f"reads all of {relation}" for relation in plan.sequential_scans(ignored=ignored)]
        figures = (
            ("rows of tables", plan.heap_rows(ignored=SMALL_TABLES), 4 * rows),
            ("rows to sort", plan.sorted_rows(), rows),
        )
        found += [
            f"takes {taken:g} {what}, not {most}" for what, taken, most in figures if taken > most
        ]
        if found:
            problems += [f"statement {place} {problem}" for problem in found]
            problems += [f"  {scan}" for scan in plan.scans() if scan.rows]
    return problems
