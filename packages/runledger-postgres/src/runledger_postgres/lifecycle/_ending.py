"""Ending failed attempts: the write that failures and the reaper share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, LiteralString
from uuid import UUID

from runledger_core import (
    UNSET,
    JobDeadLetterReason,
    JobFailureKind,
    JsonValue,
    RunledgerError,
    Unset,
    decode_json,
)

from .._arguments import check_kind
from .._rows import column
from ._lease import CLOCK_AFTER_LOCKS


class FailureDisposition(StrEnum):
    """What a stored failure led to."""

    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    DEAD_LETTERED = "DEAD_LETTERED"


@dataclass(frozen=True, slots=True)
class EndedRow:
    """One attempt that ended in failure, or that cannot: its retry lacks a delay (not valid)."""

    entry: int
    job_id: UUID
    _: KW_ONLY
    is_valid: bool
    job_type: str
    organization_id: UUID | None
    run_number: int
    attempt: int
    claim_number: int
    worker_id: str
    max_attempts: int
    kind: JobFailureKind = column(JobFailureKind)
    code: str
    message: str
    disposition: FailureDisposition = column(FailureDisposition)
    next_run_at: datetime | None
    retry_delay_ms: int | None
    is_without_heartbeat: bool
    payload_json: str | None
    checkpoint_json: str | None


# What the end of an attempt takes from the job's row, aliased q.
ENDED_COLUMNS: Final = """
            q.id AS job_id, q.job_type, q.organization_id, q.run_number, q.attempt, q.max_attempts,
            q.claim_number, q.worker_id, q.leased_at, q.last_heartbeat_at, q.lease_expires_at,
            q.payload, q.checkpoint"""


def _ending(guard: LiteralString) -> LiteralString:
    return f"""{CLOCK_AFTER_LOCKS}, ending AS MATERIALIZED (
        SELECT
            t.*,
            t.disposition = 'DEAD_LETTERED' AS is_dead,
            t.disposition = 'DEAD_LETTERED' OR coalesce(t.retry_delay_ms, 0) > 0 AS is_valid,
            CASE t.disposition
                WHEN 'RETRY_SCHEDULED' THEN t.at + t.retry_delay_ms * interval '1 millisecond'
            END AS retry_at
        FROM (SELECT l.*, c.at FROM locked AS l CROSS JOIN clock AS c) AS t
        WHERE {guard}
    )"""


# Arrays instead of a join: see LEASED_ENTRIES. `batch` is in the order of the ids, so that a search
# by halves finds the place of the row `q`.
_PLACE: Final = "width_bucket(q.id, b.job_ids)"
_RETRY_AT: Final = f"b.retry_ats[{_PLACE}]"

_WRITE: Final = f"""batch AS (
        SELECT
            array_agg(o.job_id) AS job_ids, array_agg(o.kind) AS kinds,
            array_agg(o.code) AS codes, array_agg(o.message) AS messages,
            -- Of a dead letter NULL.
            array_agg(o.retry_at) AS retry_ats
        FROM (SELECT n.* FROM ending AS n WHERE n.is_valid ORDER BY n.job_id) AS o
    ), ended AS (
        UPDATE runledger.job_queue AS q
        SET
            status = (CASE WHEN {_RETRY_AT} IS NULL THEN 'DEAD_LETTERED' ELSE 'PENDING' END)
                ::runledger.job_status,
            is_ready = false,
            next_run_at = coalesce({_RETRY_AT}, q.next_run_at),
            finished_at = CASE WHEN {_RETRY_AT} IS NULL THEN c.at END,
            stage = CASE WHEN {_RETRY_AT} IS NULL THEN q.stage ELSE 'queued' END,
            lease_expires_at = NULL,
            last_heartbeat_at = NULL,
            leased_at = NULL,
            worker_id = NULL,
            output = NULL,
            status_reason = b.kinds[{_PLACE}]::text,
            last_error_code = b.codes[{_PLACE}],
            last_error_message = b.messages[{_PLACE}],
            updated_at = c.at
        FROM batch AS b
        CROSS JOIN clock AS c
        WHERE q.id = ANY (b.job_ids)
        RETURNING q.id
    ), written AS MATERIALIZED (
        SELECT n.* FROM ending AS n WHERE n.job_id = ANY (ARRAY(SELECT e.id FROM ended AS e))
    ), attempts AS (
        INSERT INTO runledger.job_attempts (
            job_id, claim_number, run_number, attempt, worker_id, outcome, error_code,
            error_message, retry_delay_ms, leased_at, finished_at
        )
        SELECT
            n.job_id, n.claim_number, n.run_number, n.attempt, n.worker_id,
            n.kind::text::runledger.job_outcome, n.code, n.message,
            CASE WHEN NOT n.is_dead THEN n.retry_delay_ms END,
            n.leased_at, n.at
        FROM written AS n
    ), events AS (
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, payload, occurred_at
        )
        SELECT
            n.job_id, n.claim_number, n.run_number, n.attempt,
            n.disposition::runledger.job_event_type,
            CASE
                WHEN n.is_dead THEN jsonb_build_object('kind', n.kind, 'error_code', n.code)
                ELSE jsonb_build_object(
                    'retry_delay_ms', n.retry_delay_ms, 'next_run_at', n.retry_at
                )
            END,
            n.at
        FROM written AS n
    ), logs AS (
        INSERT INTO runledger.job_logs (
            job_id, claim_number, run_number, attempt, level, message, payload, occurred_at
        )
        SELECT
            n.job_id, n.claim_number, n.run_number, n.attempt, 'ERROR',
            -- Many an exception has no text.
            coalesce(nullif(n.message, ''), n.code),
            jsonb_build_object('traceback', n.traceback), n.at
        FROM written AS n
        WHERE n.traceback IS NOT NULL
    ), dead_letters AS (
        INSERT INTO runledger.job_dead_letters AS d (
            job_id, job_type, organization_id, run_number, attempt, error_code, error_message,
            payload_snapshot, checkpoint_snapshot, failed_at, created_at
        )
        SELECT
            n.job_id, n.job_type, n.organization_id, n.run_number, n.attempt, n.code, n.message,
            n.payload, n.checkpoint, n.at, n.at
        FROM written AS n
        WHERE n.is_dead
        ON CONFLICT (job_id) DO UPDATE
        SET
            run_number = excluded.run_number,
            attempt = excluded.attempt,
            error_code = excluded.error_code,
            error_message = excluded.error_message,
            payload_snapshot = excluded.payload_snapshot,
            checkpoint_snapshot = excluded.checkpoint_snapshot,
            failed_at = excluded.failed_at
    )
    SELECT
        n.entry::int4 AS entry, n.job_id, n.is_valid, n.job_type, n.organization_id, n.run_number,
        n.attempt, n.claim_number, n.worker_id, n.max_attempts, n.kind::text AS kind, n.code,
        n.message, n.disposition, n.retry_at AS next_run_at,
        CASE WHEN NOT n.is_dead THEN n.retry_delay_ms END AS retry_delay_ms,
        coalesce(n.last_heartbeat_at <= n.leased_at, true) AS is_without_heartbeat,
        CASE WHEN n.is_dead THEN n.payload::text END AS payload_json,
        CASE WHEN n.is_dead THEN n.checkpoint::text END AS checkpoint_json
    FROM ending AS n
    WHERE NOT n.is_valid OR n.job_id = ANY (ARRAY(SELECT w.job_id FROM written AS w))
    ORDER BY n.entry
"""


def end_failed_attempts(*, locked: LiteralString, guard: LiteralString) -> LiteralString:
    """Return the statement that writes the failures of the rows that `locked` holds.

    Args:
        locked: CTEs of which the last, `locked`, is still open. It has the columns `entry, kind,
            code, message, traceback, retry_delay_ms, disposition` and ENDED_COLUMNS.
        guard: Condition on `t`, a locked row with `at`, the clock after any wait for it.
    """
    return f"WITH {locked}, {_ending(guard)}, {_WRITE}"


def dead_letter_reason(kind: JobFailureKind) -> JobDeadLetterReason:
    """Return why a failure of this kind became a dead letter.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    if not check_kind(kind, JobFailureKind, field="kind").is_retryable:
        return JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE
    if kind is JobFailureKind.LEASE_EXPIRED:
        return JobDeadLetterReason.LEASE_EXPIRED
    return JobDeadLetterReason.ATTEMPTS_EXHAUSTED


def decode_or_unset(text: str | None) -> JsonValue | Unset:
    """Decode stored JSON; what is absent, or what Python cannot read, is UNSET."""
    if text is None:
        return UNSET
    try:
        return decode_json(text)
    except RunledgerError:
        return UNSET
