"""Enqueue: one statement for any number of jobs, keyed ones idempotent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import EnqueueDisposition, ErrorCategory, JobEnqueue

from .._arguments import check_list, is_checked
from .._database import Database
from .._rows import Statement
from .._session import Bound, run
from .._whole import whole_or_error
from ..errors import QueryError, refusal
from ..wakeup import COUNT_WOKEN
from ._enqueue_keyed import enqueue_keyed_jobs
from ._requested import JOB_COLUMNS, JOB_VALUES, REQUESTED, enqueue_parameters, undefined_type
from .rows import EnqueuedJob

# PostgreSQL ends the connection at a parameter of 1 GiB; a character may take four bytes.
_BATCH_CHARACTERS: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class EnqueuedRow:
    """One inserted job, or the first entry whose type cannot be enqueued."""

    id: UUID
    undefined_entry: int | None
    woken: int
    is_whole: bool


# A trigger of the host may have kept a job from its row.
_IS_WHOLE: Final = """
    (SELECT count(*) FROM made_due) = (SELECT count(*) FROM requested)
    OR (SELECT u.entry FROM undefined AS u) IS NOT NULL
"""

ENQUEUE_JOBS: Final = Statement(
    f"""
    WITH requested AS MATERIALIZED ({REQUESTED}), undefined AS (
        SELECT min(r.entry) AS entry
        FROM requested AS r
        LEFT JOIN runledger.job_definitions AS d ON d.job_type = r.job_type AND d.is_enabled
        WHERE d.job_type IS NULL
    ), made_due AS (
        INSERT INTO runledger.job_queue ({JOB_COLUMNS})
        SELECT {JOB_VALUES}, NULL, NULL
        FROM requested AS r
        JOIN runledger.job_definitions AS d ON d.job_type = r.job_type AND d.is_enabled
        WHERE (SELECT u.entry FROM undefined AS u) IS NULL
        ORDER BY r.entry
        RETURNING job_type, is_ready
    )
    SELECT
        r.id,
        (SELECT u.entry FROM undefined AS u) AS undefined_entry,
        ({COUNT_WOKEN}) AS woken,
        {whole_or_error(_IS_WHOLE)} AS is_whole
    FROM requested AS r
    ORDER BY r.entry
    """,
    EnqueuedRow,
)


def enqueue_job(db: Database, request: JobEnqueue) -> EnqueuedJob:
    """Enqueue one job.

    Returns:
        The job's id; EXISTING if its idempotency key was enqueued before with an equal request.

    Raises:
        ValidationError: `job.definition_not_found_or_disabled` for an unknown or disabled type;
            `job.enqueue_idempotency_unsupported_isolation` for a key outside READ COMMITTED;
            `db.unsupported_connection` and its like for a connection that cannot be used.
        ConflictError: `job.idempotency_conflict` if the key belongs to a different request;
            `job.legacy_idempotency_snapshot_missing` if that row predates snapshots.
        InternalError: `db.rows_kept_back` if a trigger of the host keeps the job from its row.
        UnavailableError: `db.outcome_unknown` if the connection died while committing. An unkeyed
            enqueue must not be repeated blindly then; a keyed one may be.

    Transaction: joins the caller's, or opens one on a pool and on an idle autocommit connection.
        The job is claimable when that transaction commits. A keyed enqueue waits for another
        transaction that has inserted the same key, as long as the `lock_timeout` in force allows.
    """
    try:
        return enqueue_jobs(db, [request])[0]
    except QueryError as error:
        # There was no batch.
        error.entry_index = None
        raise


def enqueue_jobs(db: Database, requests: Sequence[JobEnqueue]) -> list[EnqueuedJob]:
    """Enqueue many jobs, all or none, in one statement.

    Args:
        requests: Any number, tens of thousands included; types and keys may repeat.

    Returns:
        One result per request, in input order; empty for no requests, without SQL.

    Raises:
        ValidationError: As `enqueue_job`; `entry_index` tells which request was refused. Also
            `job.enqueue_batch_too_large` if the payloads are too large for one statement, and
            `input.wrong_type` for what is no list.
        ConflictError: As `enqueue_job`, also between two requests of the same call.
        UnavailableError: As `enqueue_job`.

    Transaction: joins the caller's, or opens one on a pool and on an idle autocommit connection.
    """
    requests = check_list(requests, field="requests")
    _require_sendable(requests)
    if not requests:
        return []
    if all(request.idempotency_key is None for request in requests):
        return _enqueue_unkeyed(db, requests)
    return enqueue_keyed_jobs(db, requests)


def _enqueue_unkeyed(db: Database, requests: Sequence[JobEnqueue]) -> list[EnqueuedJob]:
    rows = run(db, Bound(ENQUEUE_JOBS, enqueue_parameters(requests)))
    undefined = rows[0].undefined_entry
    if undefined is not None:
        raise undefined_type(undefined - 1)
    return [EnqueuedJob(row.id, EnqueueDisposition.INSERTED) for row in rows]


def _require_sendable(requests: Sequence[JobEnqueue]) -> None:
    characters = 0
    for index, request in enumerate(requests):
        if not is_checked(request, JobEnqueue):
            raise refusal(
                ErrorCategory.VALIDATION,
                "input.wrong_type",
                "a request must be a JobEnqueue",
                field="request",
                entry_index=index,
            )
        characters += len(request.payload_json)
    if characters > _BATCH_CHARACTERS:
        raise refusal(
            ErrorCategory.VALIDATION,
            "job.enqueue_batch_too_large",
            f"the payloads of one call have more than {_BATCH_CHARACTERS} characters together",
            field="requests",
        )
