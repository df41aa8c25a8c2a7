"""Dead letters: one by its job, and the list."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from runledger_core import Scope, check_uuid

from .._database import Database
from .._paging import require_cursor, require_page
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from .rows import DeadLetterCursor, JobDeadLetterRecord, JobDeadLetterSummary

_SUMMARY_COLUMNS: Final = """
    q.job_id, q.job_type, q.organization_id, q.run_number, q.attempt, q.error_code,
    q.error_message, q.failed_at, q.created_at
"""

GET_DEAD_LETTER: Final = Statement(
    f"""
    SELECT {_SUMMARY_COLUMNS}, q.payload_snapshot, q.checkpoint_snapshot
    FROM runledger.job_dead_letters AS q
    WHERE q.job_id = %(job_id)s::uuid AND {IN_SCOPE}
    """,
    JobDeadLetterRecord,
)

# The directions differ, as in the index; so the place is no row comparison, but the first half of
# it bounds the index scan.
LIST_DEAD_LETTERS: Final = Statement(
    f"""
    SELECT {_SUMMARY_COLUMNS}
    FROM runledger.job_dead_letters AS q
    WHERE {IN_SCOPE}
        AND q.failed_at <= %(failed_at)s::timestamptz
        AND (q.failed_at < %(failed_at)s::timestamptz OR q.job_id > %(job_id)s::uuid)
    ORDER BY q.failed_at DESC, q.job_id
    LIMIT %(limit)s::int8
    """,
    JobDeadLetterSummary,
)
LIST_DEAD_LETTERS_BEFORE: Final = Statement(
    f"""
    SELECT {_SUMMARY_COLUMNS}
    FROM runledger.job_dead_letters AS q
    WHERE {IN_SCOPE}
        AND q.failed_at >= %(failed_at)s::timestamptz
        AND (q.failed_at > %(failed_at)s::timestamptz OR q.job_id < %(job_id)s::uuid)
    ORDER BY q.failed_at, q.job_id DESC
    LIMIT %(limit)s::int8
    """,
    JobDeadLetterSummary,
)

# Before every dead letter, also before one that another tool dated "infinity".
_NEWEST: Final[dict[str, object]] = {"failed_at": "infinity", "job_id": UUID(int=0)}


def get_dead_letter(db: Database, job_id: UUID, *, scope: Scope) -> JobDeadLetterRecord | None:
    """Return a job's dead letter with its bodies, or None if there is none in scope.

    A job has at most one: the latest run that was dead-lettered. It stays when the job is requeued.

    Args:
        scope: Whose job it may be.

    Raises:
        InternalError: `job.undecodable_row` if Python cannot read its JSON.

    Transaction: joins the caller's or opens one.
    """
    key = {"job_id": check_uuid(job_id, field="job_id")}
    rows = run(db, Bound(GET_DEAD_LETTER, key | scope_parameters(scope)))
    return rows[0] if rows else None


def list_dead_letters(
    db: Database,
    *,
    scope: Scope,
    limit: int = 100,
    after: DeadLetterCursor | None = None,
    before: DeadLetterCursor | None = None,
) -> list[JobDeadLetterSummary]:
    """Return one page of dead letters without their bodies, latest failure first.

    Args:
        scope: Whose jobs.
        limit: Most dead letters, 1 to 1,000.
        after: `cursor` of the dead letter before the page, for older ones; None for the first page.
        before: `cursor` of the dead letter behind the page, for newer ones.

    Returns:
        At most `limit` dead letters, those next to the cursor; empty if there are none.

    Raises:
        ValidationError: `job.invalid_pagination`.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    require_cursor(after, DeadLetterCursor, field="after")
    require_cursor(before, DeadLetterCursor, field="before")
    parameters: dict[str, object] = {"limit": limit} | scope_parameters(scope)
    if before is not None:
        return run(db, Bound(LIST_DEAD_LETTERS_BEFORE, parameters | _place(before)))[::-1]
    place = _NEWEST if after is None else _place(after)
    return run(db, Bound(LIST_DEAD_LETTERS, parameters | place))


def _place(cursor: DeadLetterCursor) -> dict[str, object]:
    return {"failed_at": cursor.failed_at, "job_id": cursor.job_id}
