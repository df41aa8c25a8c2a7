"""Lists of jobs."""

from __future__ import annotations

from dataclasses import fields
from typing import Final
from uuid import UUID

from sqlalchemy import SelectBase, select, union_all

from .._arguments import check_kind
from .._database import Database
from ..jobs import JobSummary
from ._arms import RARE, arms_of
from ._pages import IdPage
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
        ValidationError: `job.invalid_pagination`, or an `input.*` code for filter or cursor.

    Transaction: joins the caller's or opens one.
    """
    check_kind(chosen, JobFilter, field="chosen")
    page = IdPage(limit, after=after, before=before)
    return page.newest_first(fetch(db, _select_page(chosen, page), JobSummary))


def _select_page(chosen: JobFilter, page: IdPage) -> SelectBase:
    columns = select(*_COLUMNS).where(*page.bounds(job_queue.c.id)).limit(page.limit)
    # Rare rows have an index with the order of a page; the planner prefers to look for them among
    # all rows. Jobs of a workflow run are few and have an index of their own.
    if not chosen.statuses or set(chosen.statuses) - RARE or chosen.workflow_run_id is not None:
        return columns.where(*job_conditions(chosen)).order_by(page.turn(job_queue.c.id))
    arms = [
        columns.where(*arm.conditions).order_by(*map(page.turn, arm.order))
        for arm in arms_of(chosen)
    ]
    rare = union_all(*arms).subquery()
    return select(*rare.c).order_by(page.turn(rare.c.id)).limit(page.limit)
