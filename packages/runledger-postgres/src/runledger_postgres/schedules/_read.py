"""Schedules by name, and lists of them."""

from __future__ import annotations

from typing import Final

from runledger_core import ScheduleName, check_bool, check_text

from .._database import Database
from .._paging import require_page
from .._rows import Statement
from .._session import Bound, run
from .rows import JobScheduleRecord, JobScheduleSummary

SUMMARY_COLUMNS: Final = """
    s.id, s.name, s.job_type, s.organization_id, s.cron_expr, s.is_active, s.max_jitter_seconds,
    s.next_fire_at, s.last_fired_at, s.retry_at, s.failure_count, s.last_error_code,
    s.last_error_message, s.created_at, s.updated_at
"""

GET_JOB_SCHEDULE_BY_NAME: Final = Statement(
    f"""
    SELECT {SUMMARY_COLUMNS}, s.payload_template
    FROM runledger.job_schedules AS s
    WHERE s.name = %(name)s
    """,
    JobScheduleRecord,
)

# No name is empty, so that the cursor always bounds the walk of the index. strpos: a substring is
# looked for as it is, without wildcards to escape.
LIST_JOB_SCHEDULES: Final = Statement(
    f"""
    SELECT {SUMMARY_COLUMNS}
    FROM runledger.job_schedules AS s
    WHERE s.name > coalesce(%(after)s::text, '')
        AND (
            %(name_contains)s::text IS NULL
            OR strpos(lower(s.name), lower(%(name_contains)s::text)) > 0
        )
        AND (%(is_active)s::bool IS NULL OR s.is_active = %(is_active)s::bool)
    ORDER BY s.name
    LIMIT %(limit)s::int8
    """,
    JobScheduleSummary,
)


def get_job_schedule_by_name(db: Database, name: str) -> JobScheduleRecord | None:
    """Return the schedule of this name, or None if there is none.

    Raises:
        ValidationError: An `input.*` code if no schedule can have this name.
        InternalError: `job.undecodable_row` if Python cannot read its template.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(GET_JOB_SCHEDULE_BY_NAME, {"name": ScheduleName(name)}))
    return rows[0] if rows else None


def list_job_schedules(
    db: Database,
    *,
    name_contains: str | None = None,
    is_active: bool | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[JobScheduleSummary]:
    """Return schedules in the order of their names.

    Args:
        name_contains: Only names with this text in them, upper or lower case.
        is_active: Only those that fire, or only those that do not.
        limit: Most schedules to return, 1 to 1,000.
        after: Only names behind this one, which was the last of the page before.

    Raises:
        ValidationError: `job.invalid_pagination` for such a limit, or an `input.*` code.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit)
    if name_contains is not None:
        check_text(name_contains, field="name_contains", allow_blank=True)
    if is_active is not None:
        check_bool(is_active, field="is_active")
    if after is not None:
        check_text(after, field="after", allow_blank=True)
    params = {
        "name_contains": name_contains,
        "is_active": is_active,
        "limit": limit,
        "after": after,
    }
    return run(db, Bound(LIST_JOB_SCHEDULES, params))
