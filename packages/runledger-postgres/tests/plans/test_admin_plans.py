"""The first page of every list, and every bounded count, reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest

from runledger_core import JobStatus, Scope
from runledger_postgres.admin import (
    JobFilter,
    count_jobs_bounded,
    count_jobs_by_status_bounded,
    list_jobs,
    oldest_waiting_jobs,
)
from runledger_postgres.jobs import list_dead_letters

from .conftest import LargeQueue
from .plan_recorder import PlanMode
from .population import SMALL_TABLES, TYPES, Statistics

# Unlike the engine's statements these may be slow until statistics have been taken once.
pytestmark = [
    pytest.mark.plans,
    pytest.mark.timeout(1800),
    pytest.mark.parametrize(
        "statistics",
        [Statistics.FRESH, Statistics.PRUNED, Statistics.VACUUMED],
        ids=lambda kind: kind.name.lower(),
        indirect=True,
        scope="session",
    ),
]

Act = Callable[[psycopg.Connection[Any]], object]

PAGE: Final = 20
CAP: Final = 50


def jobs_of(*statuses: JobStatus, **conditions: Any) -> Act:
    chosen = JobFilter(Scope.ADMIN, status=statuses or None, **conditions)
    return lambda db: list_jobs(db, chosen, limit=PAGE)


def counted(*statuses: JobStatus, **conditions: Any) -> Act:
    chosen = JobFilter(Scope.ADMIN, status=statuses or None, **conditions)
    return lambda db: count_jobs_bounded(db, chosen, cap=CAP)


def every_status(db: psycopg.Connection[Any]) -> object:
    return count_jobs_by_status_bounded(db, scope=Scope.ADMIN, cap=CAP)


RARE: Final = (JobStatus.DEAD_LETTERED, JobStatus.CANCELED)

# Not here: pages of SUCCEEDED, which has no index, so that nothing bounds them where all newer rows
# are of other states.
READS: Final[dict[str, tuple[Act, int]]] = {
    "jobs": (jobs_of(), 2 * PAGE),
    "pending jobs": (jobs_of(JobStatus.PENDING), 4 * PAGE),
    "leased jobs": (jobs_of(JobStatus.LEASED), 4 * PAGE),
    "dead-lettered jobs": (jobs_of(JobStatus.DEAD_LETTERED), 2 * PAGE),
    "canceled jobs": (jobs_of(JobStatus.CANCELED), 2 * PAGE),
    "jobs of both rare states": (jobs_of(*RARE), 4 * PAGE),
    "jobs of a type": (jobs_of(job_type=TYPES[0]), 16 * PAGE),
    "jobs of a worker": (jobs_of(worker_id="other"), 4 * PAGE),
    "dead letters": (lambda db: list_dead_letters(db, scope=Scope.ADMIN, limit=PAGE), 2 * PAGE),
    "oldest waiting": (lambda db: oldest_waiting_jobs(db, scope=Scope.ADMIN), 1_000),
    "number of leased": (counted(JobStatus.LEASED), 2 * CAP),
    "number of pending": (counted(JobStatus.PENDING), 3 * CAP),
    "number of dead-lettered": (counted(JobStatus.DEAD_LETTERED), 2 * CAP),
    "number of two states": (counted(JobStatus.PENDING, JobStatus.CANCELED), 4 * CAP),
    "number of jobs": (counted(), 2 * CAP),
    "numbers of every status": (every_status, 6 * 4 * CAP),
}


@pytest.mark.parametrize(("act", "most"), READS.values(), ids=READS)
def test_first_page_reads_a_bounded_number_of_rows(
    large_queue: LargeQueue, mode: PlanMode, act: Act, most: int
):
    (plan,) = large_queue.plans_of(act, mode)

    rows = plan.heap_rows(ignored=SMALL_TABLES)
    assert rows <= most, "\n".join(str(scan) for scan in plan.scans() if scan.rows)
