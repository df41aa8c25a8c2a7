"""Reap: end attempts whose lease ran out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from runledger_core import (
    JobDeadLetterReason,
    JobFailure,
    JobLease,
    JsonValue,
    Unset,
    ValidationError,
    check_int,
)
from runledger_core.limits import INT32_MAX

from .._arguments import check_list
from .._database import Database
from .._rows import Row, Statement
from .._session import Bound, transaction
from ..errors import QueryError
from ..workflows import IS_RUN_LOCKED, TRY_RUNS_OF_EXPIRED_LEASES, reach_from_jobs, settle
from ._ending import (
    ENDED_COLUMNS,
    EndedRow,
    FailureDisposition,
    dead_letter_reason,
    decode_or_unset,
    end_failed_attempts,
)
from ._lease import require_retry_delay

_DEAD_LETTERED: Final = FailureDisposition.DEAD_LETTERED
MAX_REAP: Final = 1_000
# Jobs and runs that others hold are passed over; somebody may hold a row of a step, too.
_ROW_WAIT_MS: Final = 250
_LOCK_TIMEOUT: Final = "db.lock_timeout"
LEASE_EXPIRED_CODE: Final = "job.lease_expired"
_LEASE_EXPIRED_MESSAGE: Final = "the worker's lease ran out before the attempt ended"


@dataclass(frozen=True, slots=True)
class ReapedJob:
    """An attempt that the reaper ended, and what followed."""

    lease: JobLease
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    max_attempts: int
    failure: JobFailure
    disposition: FailureDisposition
    dead_letter_reason: JobDeadLetterReason | None
    next_run_at: datetime | None
    retry_delay_ms: int | None
    is_without_heartbeat: bool
    payload: JsonValue | Unset
    checkpoint: JsonValue | Unset


@dataclass(frozen=True, slots=True)
class ReapError:
    """A row that could not be reaped; its lease end was moved ahead if that was possible."""

    job_id: UUID
    error: QueryError


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The attempts that ended, oldest lease first, and the rows that were deferred."""

    reaped: list[ReapedJob]
    deferred: list[ReapError]


# A heartbeat or completion that committed after the candidates were read makes the recheck of
# FOR NO KEY UPDATE drop the row. The backoff is that of a failed attempt, by its number.
_LOCKED: Final = f"""locked AS MATERIALIZED (
        SELECT
            row_number() OVER () AS entry,
            {ENDED_COLUMNS},
            'LEASE_EXPIRED'::runledger.job_failure_kind AS kind,
            %(code)s::text AS code,
            %(message)s::text AS message,
            NULL::text AS traceback,
            CASE WHEN q.attempt >= q.max_attempts THEN 'DEAD_LETTERED' ELSE 'RETRY_SCHEDULED' END
                AS disposition,
            least(2147483647, greatest(
                %(retry_delay_ms)s::int4,
                (%(backoff_ms)s::int4[])[least(q.attempt, cardinality(%(backoff_ms)s::int4[]))]
                    * (0.9 + 0.2 * random())
            ))::int4 AS retry_delay_ms
        FROM (
            SELECT q.*
            FROM runledger.job_queue AS q
            WHERE q.status = 'LEASED'
                AND q.lease_expires_at <= clock_timestamp()
                AND (%(job_id)s::uuid IS NULL OR q.id = %(job_id)s::uuid)
                AND {IS_RUN_LOCKED}
            ORDER BY q.lease_expires_at, q.id
            LIMIT %(limit)s::int8
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS q
    )"""

REAP_EXPIRED_LEASES: Final = Statement(
    end_failed_attempts(locked=_LOCKED, guard="t.lease_expires_at <= t.at"),
    EndedRow,
)


@dataclass(frozen=True, slots=True)
class _ExpiredRow:
    job_id: UUID


LIST_EXPIRED_LEASES: Final = Statement(
    """
    SELECT q.id AS job_id
    FROM runledger.job_queue AS q
    WHERE q.status = 'LEASED' AND q.lease_expires_at <= clock_timestamp()
    ORDER BY q.lease_expires_at, q.id
    LIMIT %(limit)s::int8
    """,
    _ExpiredRow,
)

DEFER_EXPIRED_LEASE: Final = Statement(
    """
    UPDATE runledger.job_queue AS q
    SET lease_expires_at = clock_timestamp() + %(retry_delay_ms)s::int8 * interval '1 millisecond'
    WHERE q.id = %(job_id)s::uuid
        AND q.status = 'LEASED'
        AND q.lease_expires_at <= clock_timestamp()
    RETURNING q.id AS job_id
    """,
    _ExpiredRow,
)


def reap_expired_leases(
    db: Database, *, limit: int, retry_delay_ms: int, backoff_ms: Sequence[int] = ()
) -> ReapResult:
    """End attempts whose lease ran out: a retry, or a dead letter after the last attempt.

    Needs nothing but the job's row: no worker row, no handler, no definition.

    Args:
        limit: Most leases to end, 1 to 1,000, oldest first; rows held by others are skipped.
        retry_delay_ms: Least delay of a retry, in milliseconds, 1 or more.
        backoff_ms: Delay by attempt number, the last for all beyond, spread by a tenth each way;
            empty for `retry_delay_ms` always.

    Returns:
        What ended. If the statement fails for a reason of one row, the rows are ended one by one;
        one that still fails is moved ahead by `retry_delay_ms` and reported.

    Raises:
        ValidationError: `job.invalid_retry_delay`, or an `input.*` code naming the argument.
        UnavailableError: `db.unavailable` or `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one; one per row after a failure.
        Jobs of workflows are left to others while their run is held, and outside READ COMMITTED.
    """
    parameters: dict[str, object] = {
        "limit": check_int(limit, field="limit", minimum=1, maximum=MAX_REAP),
        "retry_delay_ms": require_retry_delay(retry_delay_ms),
        "backoff_ms": [
            check_int(delay, field=f"backoff_ms[{index}]", minimum=1, maximum=INT32_MAX)
            for index, delay in enumerate(check_list(backoff_ms, field="backoff_ms"))
        ],
        "code": LEASE_EXPIRED_CODE,
        "message": _LEASE_EXPIRED_MESSAGE,
        "job_id": None,
    }
    try:
        rows = _reap(db, parameters)
    except QueryError as error:
        if error.is_transient and error.code != _LOCK_TIMEOUT:
            raise
        return _reap_one_by_one(db, parameters)
    return ReapResult(_reaped(rows), [])


def _reap_one_by_one(db: Database, parameters: dict[str, object]) -> ReapResult:
    result = ReapResult([], [])
    for expired in _fetch(db, Bound(LIST_EXPIRED_LEASES, {"limit": parameters["limit"]})):
        one = parameters | {"job_id": expired.job_id}
        try:
            result.reaped.extend(_reaped(_reap(db, one)))
        except QueryError as error:
            if error.is_transient and error.code != _LOCK_TIMEOUT:
                raise
            _defer(db, one)
            result.deferred.append(ReapError(expired.job_id, error))
    return result


def _defer(db: Database, parameters: dict[str, object]) -> None:
    try:
        _fetch(db, Bound(DEFER_EXPIRED_LEASE, parameters))
    except QueryError as error:
        # A row that takes no write at all must not stop the healthy ones behind it.
        if error.is_transient:
            raise


def _reap(db: Database, parameters: dict[str, object]) -> list[EndedRow]:
    locking = Bound(
        TRY_RUNS_OF_EXPIRED_LEASES, {name: parameters[name] for name in ("limit", "job_id")}
    )
    with transaction(db, lock_timeout_ms=_ROW_WAIT_MS) as work:
        _, rows = work.fetch_all([locking, Bound(REAP_EXPIRED_LEASES, parameters)])
        dead = [row.job_id for row in rows if row.disposition is _DEAD_LETTERED]
        if dead:
            work.finish(settle(work, work.fetch(reach_from_jobs(dead))))
    return rows


def _fetch(db: Database, bound: Bound[Row]) -> list[Row]:
    # In a savepoint, so that one failing row costs a caller's transaction nothing else.
    with transaction(db, savepoint=True) as work:
        return work.fetch(bound)


def _reaped(rows: Sequence[EndedRow]) -> list[ReapedJob]:
    reaped: list[ReapedJob] = []
    for row in rows:
        # Leased by hand, with numbers that no claim gives: ended as the others, but told to nobody.
        with suppress(ValidationError):
            reaped.append(_reaped_job(row))
    return reaped


def _reaped_job(row: EndedRow) -> ReapedJob:
    lease = JobLease(
        row.job_id,
        row.run_number,
        attempt=row.attempt,
        claim_number=row.claim_number,
        worker_id=row.worker_id,
    )
    is_dead = row.disposition is _DEAD_LETTERED
    return ReapedJob(
        lease,
        row.job_type,
        organization_id=row.organization_id,
        max_attempts=row.max_attempts,
        failure=JobFailure(row.kind, row.code, row.message),
        disposition=row.disposition,
        dead_letter_reason=dead_letter_reason(row.kind) if is_dead else None,
        next_run_at=row.next_run_at,
        retry_delay_ms=row.retry_delay_ms,
        is_without_heartbeat=row.is_without_heartbeat,
        payload=decode_or_unset(row.payload_json),
        checkpoint=decode_or_unset(row.checkpoint_json),
    )
