"""Definitions by type, and lists of them."""

from __future__ import annotations

from typing import Final

from runledger_core import JobType, check_text

from .._database import Database
from .._paging import require_page
from .._rows import Statement
from .._session import Bound, run
from .rows import JobDefinitionRecord

DEFINITION_COLUMNS: Final = """
    d.job_type, d.version, d.max_attempts, d.default_timeout_seconds, d.default_priority,
    d.is_enabled, d.created_at, d.updated_at
"""

GET_JOB_DEFINITION: Final = Statement(
    f"""
    SELECT {DEFINITION_COLUMNS}
    FROM runledger.job_definitions AS d
    WHERE d.job_type = %(job_type)s
    """,
    JobDefinitionRecord,
)

# strpos: a substring is looked for as it is, without wildcards to escape.
LIST_JOB_DEFINITIONS: Final = Statement(
    f"""
    SELECT {DEFINITION_COLUMNS}
    FROM runledger.job_definitions AS d
    WHERE (%(after)s::text IS NULL OR d.job_type > %(after)s::text)
        AND (
            %(job_type_contains)s::text IS NULL
            OR strpos(lower(d.job_type), lower(%(job_type_contains)s::text)) > 0
        )
    ORDER BY d.job_type
    LIMIT %(limit)s::int8
    """,
    JobDefinitionRecord,
)


def get_job_definition(db: Database, job_type: str) -> JobDefinitionRecord | None:
    """Return the definition of a job type, or None if it has none.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(GET_JOB_DEFINITION, {"job_type": JobType(job_type)}))
    return rows[0] if rows else None


def list_job_definitions(
    db: Database,
    *,
    job_type_contains: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[JobDefinitionRecord]:
    """Return definitions in the order of their types.

    Args:
        job_type_contains: Only types with this text in them, upper or lower case.
        limit: Most definitions to return, 1 to 1,000.
        after: Only types behind this one, which was the last of the page before.

    Raises:
        ValidationError: `job.invalid_pagination` for such a limit, or an `input.*` code.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit)
    if job_type_contains is not None:
        check_text(job_type_contains, field="job_type_contains", allow_blank=True)
    if after is not None:
        check_text(after, field="after", allow_blank=True)
    params = {"job_type_contains": job_type_contains, "limit": limit, "after": after}
    return run(db, Bound(LIST_JOB_DEFINITIONS, params))
