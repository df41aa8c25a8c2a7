"""Success: end an attempt with a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, LiteralString

from runledger_core import JobCompletion, JobLease

from .._arguments import check_kind, check_kinds, check_lock_timeout
from .._database import Database
from .._rows import Statement
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..workflows import end_jobs
from ._index_walk import THEN_WALK_IN_ORDER
from ._lease import (
    ENDING_ENTRIES,
    ENTRY_OF_ROW,
    LIVE_ENTRIES,
    SKIP_LOCKED,
    WAIT_FOR_LOCK,
    lease_parameters,
    require_distinct,
)
from ._misses import Judge, JudgedRow, Miss, judge_misses, with_misses
from ._verdict import WriteVerdict, verdict_refusal


@dataclass(frozen=True, slots=True)
class SuccessEntry:
    """One finished attempt and its result."""

    lease: JobLease
    completion: JobCompletion

    def __post_init__(self) -> None:
        """Check the class of every field.

        Raises:
            ValidationError: `input.wrong_type`.
        """
        check_kind(self.lease, JobLease, field="lease")
        check_kind(self.completion, JobCompletion, field="completion")


@dataclass(frozen=True, slots=True)
class SuccessOutcome:
    """What became of one success; unless the verdict is STORED, this call changed nothing."""

    verdict: WriteVerdict
    _: KW_ONLY
    progress_done: int | None = None
    progress_total: int | None = None


@dataclass(frozen=True, slots=True)
class SucceededRow:
    """One entry whose lease was live, with its merged progress.

    Attributes:
        entry: Its place in the batch, from 1.
    """

    entry: int
    is_valid: bool
    _: KW_ONLY
    progress_done: int | None
    progress_total: int | None


# What an entry gives, merged with what is stored.
_DONE: Final = "coalesce((%(progress_done)s::int8[])[e.entry], q.progress_done)"
_TOTAL: Final = "coalesce((%(progress_total)s::int8[])[e.entry], q.progress_total)"


def _succeed(locking: LiteralString) -> LiteralString:
    return f"""
    WITH locked AS MATERIALIZED (
        SELECT
            e.entry, q.id AS job_id, q.claim_number, q.run_number, q.attempt, q.worker_id,
            q.leased_at, q.lease_expires_at,
            {_DONE} AS progress_done,
            {_TOTAL} AS progress_total,
            coalesce({_DONE} <= {_TOTAL}, true) AS is_valid
        {ENDING_ENTRIES}
        {locking}
    ), {LIVE_ENTRIES}, succeeded AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'SUCCEEDED',
            is_ready = false,
            finished_at = c.at,
            stage = 'completed',
            (progress_done, progress_total, checkpoint, output) = (
                SELECT
                    {_DONE}, {_TOTAL},
                    -- Only this entry is cast: a generic plan would parse all of them for each row.
                    coalesce(((%(checkpoints)s::text[])[e.entry])::jsonb, q.checkpoint),
                    ((%(outputs)s::text[])[e.entry])::jsonb
                FROM {ENTRY_OF_ROW}
            ),
            lease_expires_at = NULL,
            last_heartbeat_at = NULL,
            leased_at = NULL,
            worker_id = NULL,
            status_reason = NULL,
            last_error_code = NULL,
            last_error_message = NULL,
            updated_at = c.at
        FROM clock AS c
        WHERE q.id = ANY (ARRAY(SELECT l.job_id FROM live AS l WHERE l.is_valid))
        RETURNING q.id
    ), attempts AS (
        INSERT INTO runledger.job_attempts (
            job_id, claim_number, run_number, attempt, worker_id, outcome, leased_at, finished_at
        )
        SELECT
            l.job_id, l.claim_number, l.run_number, l.attempt, l.worker_id, 'SUCCEEDED',
            l.leased_at, l.at
        FROM live AS l
        WHERE l.job_id = ANY (ARRAY(SELECT s.id FROM succeeded AS s))
    )
    SELECT l.entry, l.is_valid, l.progress_done, l.progress_total
    FROM live AS l
    WHERE NOT l.is_valid OR l.job_id = ANY (ARRAY(SELECT s.id FROM succeeded AS s))
    ORDER BY l.entry
"""


COMPLETE_JOBS: Final = Statement(_succeed(SKIP_LOCKED), SucceededRow)
# In front of a claim, which then needs no statement of its own for the planner's settings.
COMPLETE_JOBS_BEFORE_CLAIM: Final = Statement(
    f"{COMPLETE_JOBS.sql} {THEN_WALK_IN_ORDER}", SucceededRow
)
COMPLETE_JOB_SUCCESS: Final = Statement(_succeed(WAIT_FOR_LOCK), SucceededRow)


def complete_job_success(
    db: Database,
    lease: JobLease,
    completion: JobCompletion | None = None,
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> SuccessOutcome:
    """End a leased attempt in success and store its output.

    Args:
        completion: Output, checkpoint and progress; None for none. What is not given stays.
        lock_timeout_ms: Longest wait for the row of the job, or of its run, in milliseconds.

    Returns:
        The stored progress; a repeated identical call by the same claim answers as stored.

    Raises:
        ForbiddenError: `job.lease_owner_mismatch` unless `lease` is live; nothing is changed.
        ValidationError: `job.invalid_completion_progress` if progress, merged with what is stored,
            is beyond its total;
            `workflow.terminal_completion_unsupported_isolation` if the job is a workflow's and
            the transaction is stronger than READ COMMITTED.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    entry = SuccessEntry(lease, JobCompletion.success() if completion is None else completion)
    bound = Bound(COMPLETE_JOB_SUCCESS, success_parameters([entry]))
    rows = end_jobs(db, bound, [lease.job_id], lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
    outcome = success_outcomes(db, [entry], rows)[0]
    if not outcome.verdict.is_stored:
        raise verdict_refusal(outcome.verdict)
    return outcome


def complete_jobs(db: Database, entries: Sequence[SuccessEntry]) -> list[SuccessOutcome]:
    """End leased attempts in success, in one statement, with a verdict for each.

    Returns:
        One outcome per entry, in input order; rows that others hold are BUSY and not waited for.

    Raises:
        ValidationError: `input.duplicate_entry` if a job is named twice;
            `workflow.terminal_completion_unsupported_isolation` if one is a workflow's and the
            transaction is stronger than READ COMMITTED. Nothing is changed.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    entries = check_kinds(entries, SuccessEntry, field="entries")
    if not entries:
        return []
    require_distinct([entry.lease for entry in entries])
    job_ids = [entry.lease.job_id for entry in entries]
    rows = end_jobs(db, Bound(COMPLETE_JOBS, success_parameters(entries)), job_ids)
    return success_outcomes(db, entries, rows)


def success_parameters(entries: Sequence[SuccessEntry]) -> dict[str, object]:
    """Return the arrays of a batch of successes."""
    return lease_parameters([entry.lease for entry in entries]) | {
        "outputs": [entry.completion.output_json for entry in entries],
        "checkpoints": [entry.completion.checkpoint_json for entry in entries],
        "progress_done": [entry.completion.progress_done for entry in entries],
        "progress_total": [entry.completion.progress_total for entry in entries],
    }


def success_outcomes(
    db: Database,
    entries: Sequence[SuccessEntry],
    rows: Sequence[SucceededRow],
    *,
    judge: Judge = judge_misses,
) -> list[SuccessOutcome]:
    """Turn the rows of a batch into one outcome per entry, judging the misses."""

    def judge_missed(missed: list[int]) -> list[SuccessOutcome]:
        misses = [
            Miss(
                entries[index].lease,
                outcome="SUCCEEDED",
                output_json=entries[index].completion.output_json,
            )
            for index in missed
        ]
        return [_judged(row) for row in judge(db, misses)]

    return with_misses({row.entry - 1: _outcome(row) for row in rows}, len(entries), judge_missed)


def _outcome(row: SucceededRow) -> SuccessOutcome:
    if not row.is_valid:
        return SuccessOutcome(WriteVerdict.INVALID_PROGRESS)
    return SuccessOutcome(
        WriteVerdict.STORED, progress_done=row.progress_done, progress_total=row.progress_total
    )


def _judged(row: JudgedRow) -> SuccessOutcome:
    if row.verdict is not WriteVerdict.REPEATED:
        return SuccessOutcome(row.verdict)
    return SuccessOutcome(
        WriteVerdict.REPEATED, progress_done=row.progress_done, progress_total=row.progress_total
    )
