"""Lists of jobs."""

from __future__ import annotations

from dataclasses import fields
from typing import Final
from uuid import UUID

from sqlalchemy import select

from runledger_core import check_uuid

from .._database import Database
from .._paging import require_page
from ..jobs import JobSummary
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
    page = select(*_COLUMNS).where(*job_conditions(chosen)).limit(limit)
    if before is not None:
        newer = job_queue.c.id > check_uuid(before, field="before")
        return fetch(db, page.where(newer).order_by(job_queue.c.id), JobSummary)[::-1]
    if after is not None:
        page = page.where(job_queue.c.id < check_uuid(after, field="after"))
    return fetch(db, page.order_by(job_queue.c.id.desc()), JobSummary)
