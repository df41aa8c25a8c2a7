"""Fire one schedule, or defer it; each in a savepoint of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from runledger_core import ErrorCategory, RunledgerError, current_limits, sanitize_text

from .._rows import NoRow, Row, Statement
from .._session import Bound, Transaction
from ..errors import QueryError, refusal
from ..wakeup import COUNT_WOKEN
from ._due import ClaimedSchedule
from ._store import not_enabled_refusal
from .rows import DeferredSchedule, FiredSchedule, ScheduleFire

CLAIMED_SCHEDULE_MISSING: Final = "job_schedule.claimed_schedule_missing"
EXHAUSTED: Final = "job_schedule.exhausted"

# A trigger of the host's waited for a row, or took too long: this schedule's trouble, no outage.
SLOW: Final = frozenset({"db.lock_timeout", "db.statement_timeout"})

_EXHAUSTED_MESSAGE: Final = "the cron expression has no further fire"
_CODE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class FiredRow:
    """What became of one fire.

    Attributes:
        is_claimed: Whether the schedule still is as it was claimed.
        is_enabled: Whether its job type can be enqueued.
        job_id: The job made; None if the fire had one already.
        has_job: False also if a trigger kept the job from its row.
        is_advanced: False also if a trigger kept the schedule's change from its row.
    """

    is_claimed: bool
    is_enabled: bool
    job_id: UUID | None
    has_job: bool
    is_advanced: bool
    woken: int


@dataclass(frozen=True, slots=True)
class DeferredRow:
    """When a failed schedule is tried again."""

    retry_at: datetime
    failure_count: int


# Whole seconds, as fires of cron are, without a fraction.
_SCHEDULED_FOR_TEXT: Final = """
    to_char(c.next_fire_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
    || CASE
        WHEN date_trunc('second', c.next_fire_at) = c.next_fire_at THEN ''
        ELSE to_char(c.next_fire_at AT TIME ZONE 'UTC', '.US')
    END
    || 'Z'
"""

_PAYLOAD: Final = f"""
    CASE jsonb_typeof(c.payload_template)
        WHEN 'object' THEN c.payload_template
        ELSE jsonb_build_object('payload', c.payload_template)
    END || jsonb_build_object('_schedule', jsonb_build_object(
        'schedule_id', c.id,
        'schedule_name', c.name,
        'scheduled_for', {_SCHEDULED_FOR_TEXT}
    ))
"""

# A fire that was made already counts as fired: somebody moved the schedule back, or switched on one
# that had made its last. The row remembers its latest, whose job may be pruned. The definition
# is read without a lock, as by any enqueue.
FIRE_SCHEDULE: Final = Statement(
    f"""
    WITH claimed AS MATERIALIZED (
        SELECT
            s.id, s.name, s.job_type, s.organization_id, s.payload_template, s.next_fire_at,
            s.next_fire_at IS NOT DISTINCT FROM s.last_fired_for AS is_repeated,
            d.job_type IS NOT NULL AS is_enabled,
            d.default_priority, d.max_attempts, d.default_timeout_seconds
        FROM runledger.job_schedules AS s
        LEFT JOIN runledger.job_definitions AS d ON d.job_type = s.job_type AND d.is_enabled
        WHERE s.id = %(id)s::uuid
            AND s.is_active
            AND s.next_fire_at = %(scheduled_for)s::timestamptz
    ), made_due AS (
        INSERT INTO runledger.job_queue (
            id, job_type, organization_id, payload, priority, max_attempts, timeout_seconds,
            next_run_at, is_ready, stage, created_at, updated_at, schedule_id, scheduled_for
        )
        SELECT
            runledger.uuidv7(), c.job_type, c.organization_id, {_PAYLOAD},
            c.default_priority, c.max_attempts, c.default_timeout_seconds,
            %(run_at)s::timestamptz, %(run_at)s::timestamptz <= statement_timestamp(), 'scheduled',
            statement_timestamp(), statement_timestamp(), c.id, c.next_fire_at
        FROM claimed AS c
        WHERE c.is_enabled AND NOT c.is_repeated
        ON CONFLICT (schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL DO NOTHING
        RETURNING id, job_type, is_ready
    ), advanced AS (
        UPDATE runledger.job_schedules AS s
        SET
            next_fire_at = coalesce(%(next_fire_at)s::timestamptz, s.next_fire_at),
            is_active = %(next_fire_at)s::timestamptz IS NOT NULL,
            last_fired_at = clock_timestamp(),
            last_fired_for = s.next_fire_at,
            retry_at = NULL,
            failure_count = 0,
            last_error_code = %(reason_code)s::text,
            last_error_message = %(reason)s::text,
            updated_at = clock_timestamp()
        WHERE s.id = ANY (ARRAY(SELECT c.id FROM claimed AS c WHERE c.is_enabled))
            AND s.next_fire_at = %(scheduled_for)s::timestamptz
        RETURNING s.id
    )
    SELECT
        EXISTS (SELECT FROM claimed) AS is_claimed,
        EXISTS (SELECT FROM claimed AS c WHERE c.is_enabled) AS is_enabled,
        (SELECT m.id FROM made_due AS m) AS job_id,
        EXISTS (SELECT FROM made_due)
            OR EXISTS (SELECT FROM claimed AS c WHERE c.is_repeated)
            OR EXISTS (
                SELECT
                FROM runledger.job_queue AS q
                WHERE q.schedule_id = %(id)s::uuid
                    AND q.scheduled_for = %(scheduled_for)s::timestamptz
            ) AS has_job,
        EXISTS (SELECT FROM advanced) AS is_advanced,
        ({COUNT_WOKEN}) AS woken
    """,
    FiredRow,
)

# Half a minute, doubling to an hour. The fire itself stays, so that nothing is lost.
DEFER_SCHEDULE: Final = Statement(
    """
    UPDATE runledger.job_schedules AS s
    SET
        retry_at = clock_timestamp()
            + least(3600, 30 * 2 ^ least(s.failure_count, 7)) * interval '1 second',
        failure_count = least(s.failure_count, 2147483646) + 1,
        last_error_code = %(code)s::text,
        last_error_message = %(message)s::text,
        updated_at = clock_timestamp()
    WHERE s.id = %(id)s::uuid
    RETURNING s.retry_at, s.failure_count
    """,
    DeferredRow,
)


# What a deferred constraint of the host's refuses would fail at COMMIT and undo all of the pass: it
# is asked before the savepoint ends. All are deferred again before the next write, since one that
# is immediate might miss what a later trigger stores.
DEFER_CONSTRAINTS: Final = Statement("SET CONSTRAINTS ALL DEFERRED", NoRow)
CHECK_CONSTRAINTS: Final = Statement("SET CONSTRAINTS ALL IMMEDIATE", NoRow)


def fire_schedule(work: Transaction, claimed: ClaimedSchedule, fire: ScheduleFire) -> FiredSchedule:
    """Make the job of a claimed schedule's fire and move the schedule on.

    Raises:
        InternalError: `job_schedule.claimed_schedule_missing`; `db.rows_kept_back` if a trigger
            kept a row from being written.
        ValidationError: `job_schedule.definition_not_found_or_disabled`.
    """
    is_last = fire.next_fire_at is None
    params = {
        "id": claimed.id,
        "scheduled_for": claimed.scheduled_for,
        "run_at": fire.run_at,
        "next_fire_at": fire.next_fire_at,
        "reason_code": EXHAUSTED if is_last else None,
        "reason": _EXHAUSTED_MESSAGE if is_last else None,
    }
    with work.savepoint():
        (row,) = _fetch_checked(work, Bound(FIRE_SCHEDULE, params))
        if not row.is_claimed:
            raise refusal(
                ErrorCategory.INTERNAL,
                CLAIMED_SCHEDULE_MISSING,
                f"the schedule {claimed.name} vanished from the transaction that had claimed it",
            )
        if not row.is_enabled:
            raise not_enabled_refusal(claimed.name)
        if not (row.has_job and row.is_advanced):
            raise refusal(
                ErrorCategory.INTERNAL,
                "db.rows_kept_back",
                f"the database kept a fire of the schedule {claimed.name} from its rows",
            )
    return FiredSchedule(
        claimed.name,
        row.job_id,
        schedule_id=claimed.id,
        job_type=claimed.job_type,
        scheduled_for=claimed.scheduled_for,
        next_fire_at=fire.next_fire_at,
    )


def defer_schedule(
    work: Transaction, claimed: ClaimedSchedule, error: RunledgerError
) -> DeferredSchedule:
    """Put a schedule off, with what it failed of on its row."""
    params = {
        "id": claimed.id,
        "code": sanitize_text(error.code, max_bytes=_CODE_BYTES),
        "message": sanitize_text(
            error.client_message, max_bytes=current_limits().error_message_bytes
        ),
    }
    rows: list[DeferredRow] = []
    try:
        with work.savepoint():
            rows = _fetch_checked(work, Bound(DEFER_SCHEDULE, params))
    except QueryError as failure:
        # A row that takes no write at all must not stop the healthy ones behind it.
        if failure.is_transient and failure.code not in SLOW:
            raise
    return DeferredSchedule(
        claimed.name,
        error,
        schedule_id=claimed.id,
        scheduled_for=claimed.scheduled_for,
        retry_at=rows[0].retry_at if rows else None,
        failure_count=rows[0].failure_count if rows else claimed.failure_count + 1,
    )


def _fetch_checked(work: Transaction, bound: Bound[Row]) -> list[Row]:
    """Run one schedule's statement with all that the host's constraints say of it."""
    if not work.owned:
        # Which are deferred is the caller's, and their checks are his to see.
        return work.fetch(bound)
    return work.fetch_all([Bound(DEFER_CONSTRAINTS), bound, Bound(CHECK_CONSTRAINTS)])[1]
