"""When a schedule fires next, and when the job of a fire runs; no database, no clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from runledger_core import check_instant
from runledger_core.cron import CronExpression
from runledger_postgres.schedules import DueSchedule, ScheduleFire

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def next_fire_after(cron: str, instant: datetime) -> datetime | None:
    """Return the first fire of a cron expression strictly after an instant.

    Fires that were missed are not walked, however many they are.

    Returns:
        A whole second in UTC; None if the expression has no further fire.

    Raises:
        ValidationError: `job_schedule.invalid_cron`, or an `input.*` code for the instant.
    """
    return CronExpression(cron).next_after(instant)


def jitter_seconds(schedule_id: UUID, base: datetime, max_jitter_seconds: int) -> int:
    """Return by how much the job of a fire is delayed: always the same for the same fire.

    Args:
        base: The fire, as the cron expression names it.
        max_jitter_seconds: The longest delay, 0 or more.
    """
    milliseconds = (check_instant(base, field="base") - _EPOCH) // _MILLISECOND
    return (schedule_id.int ^ milliseconds) % (max_jitter_seconds + 1)


def plan_fire(due: DueSchedule) -> ScheduleFire:
    """Tell when the job of a due fire runs, and when the schedule fires after that.

    A fire that is late keeps its own time; those between it and now are left out.

    Raises:
        ValidationError: `job_schedule.invalid_cron` if what is stored is no expression.
    """
    jitter = jitter_seconds(due.id, due.scheduled_for, due.max_jitter_seconds)
    return ScheduleFire(
        # The later of both: whatever the clocks do, a schedule never goes back.
        next_fire_after(due.cron_expr, max(due.scheduled_for, due.now)),
        due.scheduled_for + timedelta(seconds=jitter),
    )
