"""Which schedules are due, locked for one scheduler, and when the next one will be."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from .._rows import NoRow, Statement


@dataclass(frozen=True, slots=True)
class ClockRow:
    """The database's clock."""

    now: datetime


@dataclass(frozen=True, slots=True)
class ClaimedSchedule:
    """A due schedule as it came from the database, its JSON not decoded yet.

    Attributes:
        is_datable: Whether `scheduled_for` is what is stored: Python has no dates before year 1.
    """

    id: UUID
    name: str
    _: KW_ONLY
    job_type: str
    organization_id: UUID | None
    cron_expr: str
    payload_template_json: str
    max_jitter_seconds: int
    failure_count: int
    scheduled_for: datetime
    is_datable: bool


@dataclass(frozen=True, slots=True)
class AheadRow:
    """What a pass leaves."""

    now: datetime
    next_due_at: datetime | None
    is_contended: bool


# When a schedule is to be looked at; idx_job_schedules_due is on this.
_DUE_AT: Final = "greatest(s.next_fire_at, s.retry_at)"

# Before any row: who waits for the table while holding rows would stop the sync that has it.
LOCK_SCHEDULES_FOR_FIRE: Final = Statement(
    "LOCK TABLE runledger.job_schedules IN ROW EXCLUSIVE MODE", NoRow
)

# Read after the wait for the table, and once: a pass judges everything by the same instant, and as
# a parameter it bounds the walk of the index.
READ_CLOCK: Final = Statement("SELECT clock_timestamp() AS now", ClockRow)

CLAIM_DUE_SCHEDULES: Final = Statement(
    f"""
    SELECT
        s.id, s.name, s.job_type, s.organization_id, s.cron_expr,
        s.payload_template::text AS payload_template_json, s.max_jitter_seconds, s.failure_count,
        s.next_fire_at AS scheduled_for,
        s.next_fire_at >= '0001-01-01 00:00:00+00'::timestamptz AS is_datable
    FROM runledger.job_schedules AS s
    WHERE s.is_active
        AND {_DUE_AT} <= %(now)s::timestamptz
        AND s.id <> ALL (%(stuck)s::uuid[])
    ORDER BY {_DUE_AT}
    LIMIT %(limit)s::int8
    -- Against every other scheduler, and whoever changes or deletes the schedule.
    FOR NO KEY UPDATE SKIP LOCKED
    """,
    ClaimedSchedule,
)

LOOK_AHEAD: Final = Statement(
    f"""
    SELECT
        clock_timestamp() AS now,
        (
            SELECT {_DUE_AT}
            FROM runledger.job_schedules AS s
            WHERE s.is_active AND {_DUE_AT} > %(now)s::timestamptz
            ORDER BY {_DUE_AT}
            LIMIT 1
        ) AS next_due_at,
        coalesce((
            SELECT true
            FROM runledger.job_schedules AS s
            WHERE s.is_active AND {_DUE_AT} <= %(now)s::timestamptz
            ORDER BY {_DUE_AT}
            LIMIT 1
        ), false) AS is_contended
    """,
    AheadRow,
)
