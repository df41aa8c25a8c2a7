"""Release: give a claim back, so that no attempt is used up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from runledger_core import JobLease, check_int, check_text, current_limits, sanitize_text
from runledger_core.limits import INT32_MAX

from .._arguments import check_kind, check_lock_timeout
from .._database import Database
from .._rows import Statement, column
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run
from ..wakeup import COUNT_WOKEN
from ._lease import (
    LEASED_ENTRIES,
    LIVE_ENTRIES,
    SKIP_LOCKED,
    WAIT_FOR_LOCK,
    checked_leases,
    lease_parameters,
)
from ._misses import Miss, judge_misses, with_misses
from ._verdict import WriteVerdict, verdict_refusal


@dataclass(frozen=True, slots=True)
class ReleasedRow:
    """One claim of a live lease: given back, or found to be started."""

    entry: int
    verdict: WriteVerdict = column(WriteVerdict)
    woken: int = 0


_IS_STARTED: Final = """
    q.progressed_claim_number = q.claim_number OR EXISTS (
        SELECT
        FROM runledger.job_logs AS g
        WHERE g.job_id = q.id AND g.claim_number = q.claim_number
    )
"""


def _release(locking: LiteralString, *, is_refused: LiteralString) -> LiteralString:
    return f"""
    WITH locked AS MATERIALIZED (
        SELECT
            e.entry, q.id AS job_id, q.claim_number, q.run_number, q.attempt, q.worker_id,
            q.leased_at, q.lease_expires_at, {is_refused} AS is_refused
        {LEASED_ENTRIES}
        {locking}
    ), {LIVE_ENTRIES}, released AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'PENDING',
            is_ready = %(retry_delay_ms)s::int8 = 0,
            -- This number comes again with the next claim; the fence, claim_number, does not.
            attempt = q.attempt - 1,
            started_at = CASE WHEN q.attempt > 1 THEN q.started_at END,
            next_run_at = c.at + %(retry_delay_ms)s::int8 * interval '1 millisecond',
            stage = 'queued',
            lease_expires_at = NULL,
            last_heartbeat_at = NULL,
            leased_at = NULL,
            worker_id = NULL,
            output = NULL,
            status_reason = %(reason)s::text,
            last_error_code = NULL,
            last_error_message = NULL,
            updated_at = c.at
        FROM clock AS c
        WHERE q.id = ANY (ARRAY(SELECT l.job_id FROM live AS l WHERE NOT l.is_refused))
        RETURNING q.id, q.job_type, q.is_ready
    ), events AS (
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, payload, occurred_at
        )
        SELECT
            l.job_id, l.claim_number, l.run_number, l.attempt, 'REQUEUED',
            jsonb_build_object(
                'kind', 'RELEASE', 'reason', %(reason)s::text, 'worker_id', l.worker_id,
                'leased_at', l.leased_at
            ),
            l.at
        FROM live AS l
        WHERE l.job_id = ANY (ARRAY(SELECT r.id FROM released AS r))
    ), made_due AS (
        SELECT r.job_type, r.is_ready FROM released AS r
    )
    SELECT
        l.entry,
        CASE WHEN l.is_refused THEN 'NOT_APPLICABLE' ELSE 'STORED' END AS verdict,
        ({COUNT_WOKEN}) AS woken
    FROM live AS l
    WHERE l.is_refused OR l.job_id = ANY (ARRAY(SELECT r.id FROM released AS r))
    ORDER BY l.entry
"""


RELEASE_JOBS: Final = Statement(_release(SKIP_LOCKED, is_refused=_IS_STARTED), ReleasedRow)
RELEASE_JOB: Final = Statement(_release(WAIT_FOR_LOCK, is_refused=_IS_STARTED), ReleasedRow)
GIVE_BACK_JOBS: Final = Statement(_release(SKIP_LOCKED, is_refused="false"), ReleasedRow)


def release_job(
    db: Database,
    lease: JobLease,
    *,
    reason: str,
    retry_delay_ms: int = 0,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> None:
    """Give back a claim whose handler was not entered; no attempt is used up.

    Args:
        reason: Why, for the job's events; cut to 8 KiB.
        retry_delay_ms: Milliseconds until the job is due again, 0 or more.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Raises:
        ForbiddenError: `job.lease_owner_mismatch` if the lease is not live; nothing is changed.
        ValidationError: `job.unstarted_claim_release_not_applicable` once the claim stored
            progress, a checkpoint or a log.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    check_kind(lease, JobLease, field="lease")
    bound = Bound(RELEASE_JOB, _release_parameters([lease], reason, retry_delay_ms))
    rows = run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
    verdict = _release_verdicts(db, [lease], rows)[0]
    if not verdict.is_stored:
        raise verdict_refusal(verdict)


def release_jobs(
    db: Database, leases: Sequence[JobLease], *, reason: str, retry_delay_ms: int = 0
) -> list[WriteVerdict]:
    """Give back claims whose handlers were not entered, in one statement.

    Returns:
        One verdict per lease, in input order; rows that others hold are BUSY and not waited for.

    Raises:
        ValidationError: `input.duplicate_entry`, or an `input.*` code naming the argument.

    Transaction: joins the caller's or opens one.
    """
    return _release_all(db, RELEASE_JOBS, leases, reason=reason, retry_delay_ms=retry_delay_ms)


def give_back_jobs(
    db: Database, leases: Sequence[JobLease], *, reason: str, retry_delay_ms: int = 0
) -> list[WriteVerdict]:
    """Give back claims that their own worker has ended, whatever they have stored so far.

    Progress and checkpoint stay for the next claim, which has the same attempt number.

    Returns:
        As `release_jobs`, but for no lease `NOT_APPLICABLE`.

    Raises:
        ValidationError: As `release_jobs`.

    Transaction: joins the caller's or opens one.
    """
    return _release_all(db, GIVE_BACK_JOBS, leases, reason=reason, retry_delay_ms=retry_delay_ms)


def _release_all(
    db: Database,
    statement: Statement[ReleasedRow],
    leases: Sequence[JobLease],
    *,
    reason: str,
    retry_delay_ms: int,
) -> list[WriteVerdict]:
    leases = checked_leases(leases)
    if not leases:
        return []
    rows = run(db, Bound(statement, _release_parameters(leases, reason, retry_delay_ms)))
    return _release_verdicts(db, leases, rows)


def _release_parameters(
    leases: Sequence[JobLease], reason: str, retry_delay_ms: int
) -> dict[str, object]:
    """Return the checked parameters of a batch of releases."""
    check_text(reason, field="reason")
    check_int(retry_delay_ms, field="retry_delay_ms", minimum=0, maximum=INT32_MAX)
    limit = current_limits().error_message_bytes
    return lease_parameters(leases) | {
        "reason": sanitize_text(reason, max_bytes=limit),
        "retry_delay_ms": retry_delay_ms,
    }


def _release_verdicts(
    db: Database, leases: Sequence[JobLease], rows: Sequence[ReleasedRow]
) -> list[WriteVerdict]:
    """Turn the rows of a batch into one verdict per lease, judging the misses."""

    def judge_missed(missed: list[int]) -> list[WriteVerdict]:
        misses = [Miss(leases[index], outcome=None) for index in missed]
        return [row.verdict for row in judge_misses(db, misses)]

    return with_misses({row.entry - 1: row.verdict for row in rows}, len(leases), judge_missed)
