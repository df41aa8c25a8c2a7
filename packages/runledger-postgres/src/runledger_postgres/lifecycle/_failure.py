"""Failure: end an attempt with a retry or a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, LiteralString

from runledger_core import (
    UNSET,
    JobDeadLetterReason,
    JobFailure,
    JobFailureKind,
    JobLease,
    JsonValue,
    Unset,
    current_limits,
    sanitize_text,
)
from runledger_core.limits import INT32_MAX

from .._arguments import check_kind, check_kinds, check_lock_timeout, check_whole
from .._database import Database
from .._rows import Statement
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..workflows import end_jobs
from ._ending import (
    ENDED_COLUMNS,
    EndedRow,
    FailureDisposition,
    dead_letter_reason,
    decode_or_unset,
    end_failed_attempts,
)
from ._lease import (
    ENDING_ENTRIES,
    SKIP_LOCKED,
    WAIT_FOR_LOCK,
    lease_parameters,
    require_distinct,
)
from ._misses import Judge, JudgedRow, Miss, judge_misses, with_misses
from ._verdict import WriteVerdict, verdict_refusal


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """One failed attempt.

    Attributes:
        retry_delay_ms: Milliseconds until the retry is due, if the job gets one.
        traceback: Stored in the job's log beside the failure; None for none.
    """

    lease: JobLease
    failure: JobFailure
    _: KW_ONLY
    retry_delay_ms: int | None = None
    traceback: str | None = None

    def __post_init__(self) -> None:
        """Check the class of every field.

        Raises:
            ValidationError: `input.wrong_type`.
        """
        check_kind(self.lease, JobLease, field="lease")
        check_kind(self.failure, JobFailure, field="failure")
        if self.retry_delay_ms is not None:
            # Its range is the statement's to judge: a dead letter needs no delay.
            delay = check_whole(self.retry_delay_ms, field="retry_delay_ms")
            object.__setattr__(self, "retry_delay_ms", delay)
        if self.traceback is not None:
            check_kind(self.traceback, str, field="traceback")


@dataclass(frozen=True, slots=True)
class FailureOutcome:
    """What became of one failure; unless the verdict is STORED, this call changed nothing."""

    verdict: WriteVerdict
    disposition: FailureDisposition | None = None
    _: KW_ONLY
    dead_letter_reason: JobDeadLetterReason | None = None
    next_run_at: datetime | None = None
    retry_delay_ms: int | None = None
    max_attempts: int | None = None
    checkpoint: JsonValue | Unset = UNSET


def _fail(locking: LiteralString) -> LiteralString:
    locked: LiteralString = f"""locked AS MATERIALIZED (
        SELECT
            e.entry, {ENDED_COLUMNS},
            ((%(kinds)s::text[])[e.entry])::runledger.job_failure_kind AS kind,
            (%(codes)s::text[])[e.entry] AS code,
            (%(messages)s::text[])[e.entry] AS message,
            (%(tracebacks)s::text[])[e.entry] AS traceback,
            (%(retry_delays_ms)s::int4[])[e.entry] AS retry_delay_ms,
            CASE
                WHEN q.attempt >= q.max_attempts
                    OR (%(kinds)s::text[])[e.entry] IN ('TERMINAL', 'PANICKED')
                    THEN 'DEAD_LETTERED'
                ELSE 'RETRY_SCHEDULED'
            END AS disposition
        {ENDING_ENTRIES}
        {locking}
    )"""
    return end_failed_attempts(locked=locked, guard="t.lease_expires_at > t.at")


FAIL_JOBS: Final = Statement(_fail(SKIP_LOCKED), EndedRow)
FAIL_JOB: Final = Statement(_fail(WAIT_FOR_LOCK), EndedRow)


def complete_job_failure(
    db: Database,
    lease: JobLease,
    failure: JobFailure,
    *,
    retry_delay_ms: int | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> FailureOutcome:
    """End a leased attempt in failure: a retry, or a dead letter.

    A TERMINAL or PANICKED failure, and any failure of the last attempt, makes a dead letter.

    Args:
        retry_delay_ms: Milliseconds until the retry is due, 1 or more; ignored by a dead letter.
        lock_timeout_ms: Longest wait for the row of the job, or of its run, in milliseconds.

    Returns:
        What was stored; a repeated identical call by the same claim answers as stored.

    Raises:
        ForbiddenError: `job.lease_owner_mismatch` unless `lease` is live; nothing is changed.
        ValidationError: `job.invalid_retry_delay` if a retry is due and has no positive delay;
            `workflow.terminal_completion_unsupported_isolation` if the job is a workflow's and
            the transaction is stronger than READ COMMITTED.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    entry = FailureEntry(lease, failure, retry_delay_ms=retry_delay_ms)
    rows = end_jobs(
        db,
        Bound(FAIL_JOB, failure_parameters([entry])),
        [lease.job_id],
        lock_timeout_ms=check_lock_timeout(lock_timeout_ms),
    )
    outcome = failure_outcomes(db, [entry], rows)[0]
    if not outcome.verdict.is_stored:
        raise verdict_refusal(outcome.verdict)
    return outcome


def fail_jobs(db: Database, entries: Sequence[FailureEntry]) -> list[FailureOutcome]:
    """End leased attempts in failure, in one statement, with a verdict for each.

    Returns:
        One outcome per entry, in input order; rows that others hold are BUSY and not waited for.

    Raises:
        ValidationError: `input.duplicate_entry` if a job is named twice;
            `workflow.terminal_completion_unsupported_isolation` if one is a workflow's and the
            transaction is stronger than READ COMMITTED. Nothing is changed.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    entries = check_kinds(entries, FailureEntry, field="entries")
    if not entries:
        return []
    require_distinct([entry.lease for entry in entries])
    job_ids = [entry.lease.job_id for entry in entries]
    rows = end_jobs(db, Bound(FAIL_JOBS, failure_parameters(entries)), job_ids)
    return failure_outcomes(db, entries, rows)


def failure_parameters(entries: Sequence[FailureEntry]) -> dict[str, object]:
    """Return the arrays of a batch; texts are cut and cleaned, so content cannot refuse them."""
    limits = current_limits()
    return lease_parameters([entry.lease for entry in entries]) | {
        "kinds": [entry.failure.kind for entry in entries],
        "codes": [_stored_text(entry.failure.code) for entry in entries],
        "messages": [_stored_text(entry.failure.message) for entry in entries],
        "tracebacks": [
            entry.traceback and sanitize_text(entry.traceback, max_bytes=limits.log_payload_bytes)
            for entry in entries
        ],
        "retry_delays_ms": [_storable_delay(entry.retry_delay_ms) for entry in entries],
    }


def failure_outcomes(
    db: Database,
    entries: Sequence[FailureEntry],
    rows: Sequence[EndedRow],
    *,
    judge: Judge = judge_misses,
) -> list[FailureOutcome]:
    """Turn the rows of a batch into one outcome per entry, judging the misses."""

    def judge_missed(missed: list[int]) -> list[FailureOutcome]:
        failures = [entries[index].failure for index in missed]
        misses = [
            Miss(entries[index].lease, outcome=failure.kind, error_code=_stored_text(failure.code))
            for index, failure in zip(missed, failures, strict=True)
        ]
        return [
            _judged(failure.kind, row)
            for failure, row in zip(failures, judge(db, misses), strict=True)
        ]

    return with_misses({row.entry - 1: _outcome(row) for row in rows}, len(entries), judge_missed)


def _stored_text(text: str) -> str:
    # A failure cleans its texts when it is made, but a subclass may have changed them since.
    return sanitize_text(text, max_bytes=current_limits().error_message_bytes)


def _storable_delay(retry_delay_ms: int | None) -> int | None:
    # Not refused here: a dead letter needs no delay and ignores a bad one.
    return None if retry_delay_ms is None else min(max(retry_delay_ms, 0), INT32_MAX)


def _outcome(row: EndedRow) -> FailureOutcome:
    if not row.is_valid:
        return FailureOutcome(WriteVerdict.INVALID_RETRY_DELAY)
    is_dead = row.disposition is FailureDisposition.DEAD_LETTERED
    return FailureOutcome(
        WriteVerdict.STORED,
        row.disposition,
        dead_letter_reason=dead_letter_reason(row.kind) if is_dead else None,
        next_run_at=row.next_run_at,
        retry_delay_ms=row.retry_delay_ms,
        max_attempts=row.max_attempts,
        checkpoint=decode_or_unset(row.checkpoint_json),
    )


def _judged(kind: JobFailureKind, row: JudgedRow) -> FailureOutcome:
    if row.verdict is not WriteVerdict.REPEATED:
        return FailureOutcome(row.verdict)
    is_dead = row.retry_delay_ms is None
    return FailureOutcome(
        WriteVerdict.REPEATED,
        FailureDisposition.DEAD_LETTERED if is_dead else FailureDisposition.RETRY_SCHEDULED,
        dead_letter_reason=dead_letter_reason(kind) if is_dead else None,
        next_run_at=row.next_run_at,
        retry_delay_ms=row.retry_delay_ms,
        max_attempts=row.max_attempts,
        checkpoint=decode_or_unset(row.checkpoint_json) if is_dead else UNSET,
    )
