"""What happened to a job: its timeline, its attempts and its log."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from runledger_core import Scope, check_int, check_uuid
from runledger_core.limits import INT64_MAX

from .._database import Database
from .._paging import require_cursor, require_page
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from .rows import JobAttemptRecord, JobEventCursor, JobEventRecord, JobLogRecord

LOG_END: Final = INT64_MAX
"""Behind every line: `before=LOG_END` is the last page of a job's log."""

# The view has no organization; the job's row tells whose the timeline is.
_JOB_IN_SCOPE: Final = f"""
    EXISTS (SELECT FROM runledger.job_queue AS q WHERE q.id = %(job_id)s::uuid AND {IN_SCOPE})
"""

_EVENT_COLUMNS: Final = """
    t.job_id, t.event_type, t.claim_number, t.rank, t.event_id, t.run_number, t.attempt, t.stage,
    t.progress_done, t.progress_total, t.payload, t.occurred_at
"""
_CURSOR: Final = "(%(claim_number)s::int8, %(rank)s::int8, %(event_id)s::int8)"

LIST_JOB_EVENTS: Final = Statement(
    f"""
    SELECT {_EVENT_COLUMNS}
    FROM runledger.job_timeline AS t
    WHERE t.job_id = %(job_id)s::uuid
        AND {_JOB_IN_SCOPE}
        AND (t.claim_number, t.rank, t.event_id) > {_CURSOR}
    ORDER BY t.claim_number, t.rank, t.event_id
    LIMIT %(limit)s::int8
    """,
    JobEventRecord,
)
LIST_JOB_EVENTS_BEFORE: Final = Statement(
    f"""
    SELECT {_EVENT_COLUMNS}
    FROM runledger.job_timeline AS t
    WHERE t.job_id = %(job_id)s::uuid
        AND {_JOB_IN_SCOPE}
        AND (t.claim_number, t.rank, t.event_id) < {_CURSOR}
    ORDER BY t.claim_number DESC, t.rank DESC, t.event_id DESC
    LIMIT %(limit)s::int8
    """,
    JobEventRecord,
)

_ATTEMPT_COLUMNS: Final = """
    a.job_id, a.claim_number, a.run_number, a.attempt, a.worker_id, a.outcome, a.error_code,
    a.error_message, a.retry_delay_ms, a.leased_at, a.finished_at
"""

LIST_JOB_ATTEMPTS: Final = Statement(
    f"""
    SELECT {_ATTEMPT_COLUMNS}
    FROM runledger.job_attempts AS a
    WHERE a.job_id = %(job_id)s::uuid AND {_JOB_IN_SCOPE} AND a.claim_number > %(after)s::int8
    ORDER BY a.claim_number
    LIMIT %(limit)s::int8
    """,
    JobAttemptRecord,
)
LIST_JOB_ATTEMPTS_BEFORE: Final = Statement(
    f"""
    SELECT {_ATTEMPT_COLUMNS}
    FROM runledger.job_attempts AS a
    WHERE a.job_id = %(job_id)s::uuid AND {_JOB_IN_SCOPE} AND a.claim_number < %(before)s::int8
    ORDER BY a.claim_number DESC
    LIMIT %(limit)s::int8
    """,
    JobAttemptRecord,
)

_LOG_COLUMNS: Final = """
    g.job_id, g.id, g.claim_number, g.run_number, g.attempt, g.level, g.message, g.payload,
    g.occurred_at
"""

LIST_JOB_LOGS: Final = Statement(
    f"""
    SELECT {_LOG_COLUMNS}
    FROM runledger.job_logs AS g
    WHERE g.job_id = %(job_id)s::uuid AND {_JOB_IN_SCOPE} AND g.id > %(after)s::int8
    ORDER BY g.id
    LIMIT %(limit)s::int8
    """,
    JobLogRecord,
)
LIST_JOB_LOGS_BEFORE: Final = Statement(
    f"""
    SELECT {_LOG_COLUMNS}
    FROM runledger.job_logs AS g
    WHERE g.job_id = %(job_id)s::uuid AND {_JOB_IN_SCOPE} AND g.id < %(before)s::int8
    ORDER BY g.id DESC
    LIMIT %(limit)s::int8
    """,
    JobLogRecord,
)


def list_job_events(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    limit: int = 100,
    after: JobEventCursor | None = None,
    before: JobEventCursor | None = None,
) -> list[JobEventRecord]:
    """Return one page of a job's timeline, in the order in which it happened.

    The order comes from claims and the job's row lock; `occurred_at` is for reading only.

    Args:
        scope: Whose job it may be.
        limit: Most entries, 1 to 1,000.
        after: `cursor` of the entry before the page; None for the first page.
        before: `cursor` of the entry behind the page; `JobEventCursor.END` for the last page.

    Returns:
        At most `limit` entries; empty if no job of that id is in scope.

    Raises:
        ValidationError: `job.invalid_pagination`.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    require_cursor(after, JobEventCursor, field="after")
    require_cursor(before, JobEventCursor, field="before")
    parameters = _page_parameters(job_id, scope, limit)
    if before is not None:
        return run(db, Bound(LIST_JOB_EVENTS_BEFORE, parameters | _place(before)))[::-1]
    # Claims count from 0, where the enqueue stands.
    place = {"claim_number": -1, "rank": 0, "event_id": 0} if after is None else _place(after)
    return run(db, Bound(LIST_JOB_EVENTS, parameters | place))


def list_job_attempts(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    limit: int = 100,
    after: int | None = None,
    before: int | None = None,
) -> list[JobAttemptRecord]:
    """Return one page of a job's ended attempts of all runs, oldest first.

    The attempt that runs is in the job's own row, released claims are in the timeline.

    Args:
        scope: Whose job it may be.
        limit: Most attempts, 1 to 1,000.
        after: Claim number of the attempt before the page; None for the first page.
        before: Claim number of the attempt behind the page.

    Returns:
        At most `limit` attempts; empty if no job of that id is in scope.

    Raises:
        ValidationError: `job.invalid_pagination`, or an `input.*` code for a cursor.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    parameters = _page_parameters(job_id, scope, limit)
    if before is not None:
        check_int(before, field="before", minimum=0, maximum=INT64_MAX)
        rows = run(db, Bound(LIST_JOB_ATTEMPTS_BEFORE, parameters | {"before": before}))
        return rows[::-1]
    if after is not None:
        check_int(after, field="after", minimum=0, maximum=INT64_MAX)
    return run(db, Bound(LIST_JOB_ATTEMPTS, parameters | {"after": after or 0}))


def list_job_logs(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    limit: int = 100,
    after: int | None = None,
    before: int | None = None,
) -> list[JobLogRecord]:
    """Return one page of a job's log, oldest line first.

    A transaction that commits late may add lines before those already seen: to follow a log, read
    its last page again instead of going on from the last line.

    Args:
        scope: Whose job it may be.
        limit: Most lines, 1 to 1,000.
        after: Id of the line before the page; None for the first page.
        before: Id of the line behind the page; `LOG_END` for the last page.

    Returns:
        At most `limit` lines; empty if there are none, or no job of that id is in scope.

    Raises:
        ValidationError: `job.invalid_pagination`, or an `input.*` code for a cursor.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    parameters = _page_parameters(job_id, scope, limit)
    if before is not None:
        check_int(before, field="before", minimum=0, maximum=INT64_MAX)
        rows = run(db, Bound(LIST_JOB_LOGS_BEFORE, parameters | {"before": before}))
        return rows[::-1]
    if after is not None:
        check_int(after, field="after", minimum=0, maximum=INT64_MAX)
    return run(db, Bound(LIST_JOB_LOGS, parameters | {"after": after or 0}))


def _page_parameters(job_id: UUID, scope: Scope, limit: int) -> dict[str, object]:
    key = check_uuid(job_id, field="job_id")
    return {"job_id": key, "limit": limit} | scope_parameters(scope)


def _place(cursor: JobEventCursor) -> dict[str, object]:
    return {
        "claim_number": cursor.claim_number,
        "rank": cursor.rank,
        "event_id": cursor.event_id,
    }
