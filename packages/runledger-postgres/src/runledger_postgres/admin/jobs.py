"""Lists of jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, SelectBase, asc, desc, select, union_all

from runledger_core import check_uuid

from .._database import Database
from .._paging import require_page
from ..jobs import JobSummary
from ._arms import RARE, arms_of
from ._select import fetch
from .filters import JobFilter, job_conditions
from .tables import job_queue

_COLUMNS: Final = [job_queue.c[field.name] for field in fields(JobSummary)]


def list_jobs(
    db: Database,
    chosen: JobFilter,
    *,
    limit: int = 100,
    after: UUID | None = None,
    before: UUID | None = None,
) -> list[JobSummary]:
    """Return one page of jobs without their bodies, newest first.

    Args:
        chosen: Which jobs.
        limit: Most jobs, 1 to 1,000.
        after: Id of the job before the page, for older ones; None for the first page.
        before: Id of the job behind the page, for newer ones.

    Returns:
        At most `limit` jobs, those next to the cursor, by descending id; ids are time-ordered.

    Raises:
        ValidationError: `job.invalid_pagination`, or an `input.*` code for a cursor.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    is_newer = before is not None
    bounds: list[ColumnElement[bool]] = []
    if before is not None:
        bounds.append(job_queue.c.id > check_uuid(before, field="before"))
    if after is not None:
        bounds.append(job_queue.c.id < check_uuid(after, field="after"))
    page = _page(chosen, bounds, limit=limit, is_newer=is_newer)
    found = fetch(db, page, JobSummary)
    return found[::-1] if is_newer else found


def _page(
    chosen: JobFilter, bounds: list[ColumnElement[bool]], *, limit: int, is_newer: bool
) -> SelectBase:
    turn: Callable[[ColumnElement[Any]], ColumnElement[Any]] = asc if is_newer else desc
    columns = select(*_COLUMNS).where(*bounds).limit(limit)
    # Rare rows have an index with the order of a page; the planner prefers to look for them among
    # all rows. Jobs of a workflow run are few and have an index of their own.
    if not chosen.statuses or set(chosen.statuses) - RARE or chosen.workflow_run_id is not None:
        return columns.where(*job_conditions(chosen)).order_by(turn(job_queue.c.id))
    arms = [
        columns.where(*arm.conditions).order_by(*map(turn, arm.order)) for arm in arms_of(chosen)
    ]
    rare = union_all(*arms).subquery()
    return select(*rare.c).order_by(turn(rare.c.id)).limit(limit)
