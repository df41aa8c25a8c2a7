"""How many jobs there are: exactly, or no further than somebody wants to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

from sqlalchemy import literal, select, union_all

from runledger_core import JobStatus, Scope

from .._arguments import check_kind
from .._database import Database
from .._rows import Statement, column
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ._arms import arms_of
from ._counting import (
    BoundedCount,
    bounded,
    check_cap,
    count_all,
    count_up_to,
    in_scope_up_to_cap,
)
from .filters import JobFilter, job_conditions
from .tables import job_queue


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


def _jobs(condition: LiteralString, *, order: LiteralString | None = None) -> LiteralString:
    return in_scope_up_to_cap("job_queue", condition, order=order)


def _rare_jobs(status: LiteralString) -> LiteralString:
    # A status that is a range and no constant keeps the planner from walking the primary key for
    # the order by id.
    is_rare = "q.status IN ('DEAD_LETTERED', 'CANCELED')"
    return _jobs(
        f"{is_rare} AND q.status BETWEEN '{status}' AND '{status}'", order="q.status, q.id"
    )


_READY: Final = _jobs(
    "q.status = 'PENDING' AND q.is_ready",
    order="q.job_type, ~q.priority, q.next_run_at, q.id",
)
_NOT_READY: Final = _jobs("q.status = 'PENDING' AND NOT q.is_ready", order="q.next_run_at")

# One arm for each partial index, so that a rare status is not searched for among all rows.
# SUCCEEDED has no index: it is what most rows are.
COUNT_JOBS_BY_STATUS_BOUNDED: Final = Statement(
    f"""
    SELECT 'PENDING' AS status, count(*) AS count
    FROM ({_READY} UNION ALL {_NOT_READY}) AS pending
    UNION ALL
    SELECT 'LEASED', count(*) FROM {_jobs("q.status = 'LEASED'")} AS leased
    UNION ALL
    SELECT 'DEAD_LETTERED', count(*) FROM {_rare_jobs("DEAD_LETTERED")} AS dead_lettered
    UNION ALL
    SELECT 'CANCELED', count(*) FROM {_rare_jobs("CANCELED")} AS canceled
    UNION ALL
    SELECT 'SUCCEEDED', count(*) FROM {_jobs("q.status = 'SUCCEEDED'")} AS succeeded
    """,
    StatusCountRow,
)


def count_jobs(db: Database, chosen: JobFilter) -> int:
    """Return how many jobs a filter chooses, exactly; reads all of them.

    Raises:
        ValidationError: `input.wrong_type`.

    Transaction: joins the caller's or opens one.
    """
    check_kind(chosen, JobFilter, field="chosen")
    return count_all(db, job_queue, *job_conditions(chosen))


def count_jobs_bounded(db: Database, chosen: JobFilter, *, cap: int) -> BoundedCount:
    """Return how many jobs a filter chooses, but count no further than `cap`.

    Args:
        chosen: Which jobs.
        cap: Where counting stops, 1 or more.

    Raises:
        ValidationError: `input.out_of_range` or `input.wrong_type`.

    Transaction: joins the caller's or opens one.
    """
    check_kind(chosen, JobFilter, field="chosen")
    cap = check_cap(cap)
    ones = select(literal(1).label("one")).select_from(job_queue)
    # Jobs of a workflow run are few and have an index of their own.
    if chosen.statuses and chosen.workflow_run_id is None:
        arms = [
            ones.where(*arm.conditions).order_by(*arm.order).limit(cap + 1)
            for arm in arms_of(chosen)
        ]
        some = select(union_all(*arms).subquery()).limit(cap + 1)
    else:
        some = ones.where(*job_conditions(chosen)).limit(cap + 1)
    return count_up_to(db, some, cap)


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
    parameters = {"cap": check_cap(cap)} | scope_parameters(scope)
    rows = run(db, Bound(COUNT_JOBS_BY_STATUS_BOUNDED, parameters))
    counts = {row.status: row.count for row in rows}
    return {status: bounded(counts[status], cap) for status in JobStatus}
