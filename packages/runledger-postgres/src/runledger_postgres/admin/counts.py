"""How many jobs there are: exactly, or no further than somebody wants to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import func, literal, select, union_all

from runledger_core import JobStatus, Scope, check_int

from .._database import Database
from .._rows import Statement, column
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ._arms import arms_of
from ._select import fetch
from .filters import JobFilter, job_conditions
from .tables import job_queue

_INT32_MAX: Final = 2**31 - 1


class BoundedCount(NamedTuple):
    """A count that went no further than a cap."""

    total: int
    """At most the cap."""
    is_exact: bool
    """False if there are more."""


@dataclass(frozen=True, slots=True)
class CountRow:
    """A number of rows."""

    count: int


@dataclass(frozen=True, slots=True)
class StatusCountRow:
    """A number of jobs of one status."""

    status: JobStatus = column(JobStatus)
    count: int = 0


COUNT_JOBS_BY_STATUS: Final = Statement(
    f"""
    SELECT q.status, count(*) AS count
    FROM runledger.job_queue AS q
    WHERE {IN_SCOPE}
    GROUP BY q.status
    """,
    StatusCountRow,
)

# One arm for each partial index, so that a rare status is not searched for among all rows; each arm
# reads no further than one row beyond the cap. Each has the order of its index: without that the
# planner may look for a few rows in the whole table; a status that is a range and no constant keeps
# it from walking the primary key for that order. SUCCEEDED has no index: it is what most rows are.
COUNT_JOBS_BY_STATUS_BOUNDED: Final = Statement(
    f"""
    SELECT 'PENDING' AS status, count(*) AS count
    FROM (
        (
            SELECT FROM runledger.job_queue AS q
            WHERE q.status = 'PENDING' AND q.is_ready AND {IN_SCOPE}
            ORDER BY q.job_type, ~q.priority, q.next_run_at, q.id
            LIMIT %(cap)s::int8 + 1
        )
        UNION ALL
        (
            SELECT FROM runledger.job_queue AS q
            WHERE q.status = 'PENDING' AND NOT q.is_ready AND {IN_SCOPE}
            ORDER BY q.next_run_at
            LIMIT %(cap)s::int8 + 1
        )
    ) AS pending
    UNION ALL
    SELECT 'LEASED', count(*)
    FROM (
        SELECT FROM runledger.job_queue AS q
        WHERE q.status = 'LEASED' AND {IN_SCOPE}
        LIMIT %(cap)s::int8 + 1
    ) AS leased
    UNION ALL
    SELECT 'DEAD_LETTERED', count(*)
    FROM (
        SELECT FROM runledger.job_queue AS q
        WHERE q.status IN ('DEAD_LETTERED', 'CANCELED')
            AND q.status BETWEEN 'DEAD_LETTERED' AND 'DEAD_LETTERED' AND {IN_SCOPE}
        ORDER BY q.status, q.id
        LIMIT %(cap)s::int8 + 1
    ) AS dead_lettered
    UNION ALL
    SELECT 'CANCELED', count(*)
    FROM (
        SELECT FROM runledger.job_queue AS q
        WHERE q.status IN ('DEAD_LETTERED', 'CANCELED')
            AND q.status BETWEEN 'CANCELED' AND 'CANCELED' AND {IN_SCOPE}
        ORDER BY q.status, q.id
        LIMIT %(cap)s::int8 + 1
    ) AS canceled
    UNION ALL
    SELECT 'SUCCEEDED', count(*)
    FROM (
        SELECT FROM runledger.job_queue AS q
        WHERE q.status = 'SUCCEEDED' AND {IN_SCOPE}
        LIMIT %(cap)s::int8 + 1
    ) AS succeeded
    """,
    StatusCountRow,
)


def count_jobs(db: Database, chosen: JobFilter) -> int:
    """Return how many jobs a filter chooses, exactly; reads all of them.

    Transaction: joins the caller's or opens one.
    """
    counted = (
        select(func.count().label("count")).select_from(job_queue).where(*job_conditions(chosen))
    )
    return fetch(db, counted, CountRow)[0].count


def count_jobs_bounded(db: Database, chosen: JobFilter, *, cap: int) -> BoundedCount:
    """Return how many jobs a filter chooses, but count no further than `cap`.

    Args:
        chosen: Which jobs.
        cap: Where counting stops, 1 or more.

    Raises:
        ValidationError: `input.out_of_range`.

    Transaction: joins the caller's or opens one.
    """
    check_int(cap, field="cap", minimum=1, maximum=_INT32_MAX)
    ones = select(literal(1).label("one")).select_from(job_queue)
    # Jobs of a workflow run are few and have an index of their own.
    if chosen.statuses and chosen.workflow_run_id is None:
        arms = [
            ones.where(*arm.conditions).order_by(*arm.order).limit(cap + 1)
            for arm in arms_of(chosen)
        ]
        some = select(union_all(*arms).subquery()).limit(cap + 1).subquery()
    else:
        some = ones.where(*job_conditions(chosen)).limit(cap + 1).subquery()
    counted = select(func.count().label("count")).select_from(some)
    return _bounded(fetch(db, counted, CountRow)[0].count, cap)


def count_jobs_by_status(db: Database, *, scope: Scope) -> dict[JobStatus, int]:
    """Return how many jobs there are of each status, zeros included; reads all jobs.

    Args:
        scope: Whose jobs.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(COUNT_JOBS_BY_STATUS, scope_parameters(scope)))
    return dict.fromkeys(JobStatus, 0) | {row.status: row.count for row in rows}


def count_jobs_by_status_bounded(
    db: Database, *, scope: Scope, cap: int
) -> dict[JobStatus, BoundedCount]:
    """Return how many jobs there are of each status, but count none further than `cap`.

    Args:
        scope: Whose jobs.
        cap: Where counting stops, 1 or more.

    Raises:
        ValidationError: `input.out_of_range`.

    Transaction: joins the caller's or opens one.
    """
    check_int(cap, field="cap", minimum=1, maximum=_INT32_MAX)
    rows = run(db, Bound(COUNT_JOBS_BY_STATUS_BOUNDED, {"cap": cap} | scope_parameters(scope)))
    counts = {row.status: row.count for row in rows}
    return {status: _bounded(counts[status], cap) for status in JobStatus}


def _bounded(counted: int, cap: int) -> BoundedCount:
    return BoundedCount(min(counted, cap), is_exact=counted <= cap)
