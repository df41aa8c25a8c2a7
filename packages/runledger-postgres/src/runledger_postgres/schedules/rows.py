"""Schedules as reads return them, what a sync reports, and what a pass of the scheduler did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from runledger_core import JsonValue, RunledgerError, check_instant, decode_json

from .._rows import column


@dataclass(frozen=True, slots=True)
class JobScheduleSummary:
    """A schedule without its template, as lists return it.

    Attributes:
        next_fire_at: The next fire; of an inactive schedule, the one it stopped before.
        last_fired_at: When a scheduler last fired it, by the database's clock.
        retry_at: Not looked at before this instant, after a failure; None if it is not failing.
        failure_count: Failures since it last fired or was changed.
        last_error_code: Why it fails, or why it was switched off; None if neither.
    """

    id: UUID
    name: str
    _: KW_ONLY
    job_type: str
    organization_id: UUID | None
    cron_expr: str
    is_active: bool
    max_jitter_seconds: int
    next_fire_at: datetime
    last_fired_at: datetime | None
    retry_at: datetime | None
    failure_count: int
    last_error_code: str | None
    last_error_message: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class JobScheduleRecord:
    """A schedule with everything its row holds; the fields are those of `JobScheduleSummary`.

    Attributes:
        payload_template: Payload of its jobs, without what a fire adds.
    """

    id: UUID
    name: str
    _: KW_ONLY
    job_type: str
    organization_id: UUID | None
    cron_expr: str
    payload_template: JsonValue = column(decode_json)
    is_active: bool
    max_jitter_seconds: int
    next_fire_at: datetime
    last_fired_at: datetime | None
    retry_at: datetime | None
    failure_count: int
    last_error_code: str | None
    last_error_message: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ScheduleSyncReport:
    """What an additive sync stored.

    Attributes:
        synced: Names that are stored as given now, changed or not, in the order given.
    """

    synced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExactScheduleSyncReport:
    """What an exact sync stored and switched off.

    Attributes:
        synced: As in `ScheduleSyncReport`.
        deactivated: Active schedules in scope that were not given, and are inactive now; sorted.
    """

    synced: tuple[str, ...] = ()
    deactivated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose fire is due, locked for the scheduler that has it.

    Attributes:
        cron_expr: As stored: a row written around the API may hold anything.
        scheduled_for: The fire that is due.
        now: The database's clock in this pass, not before `scheduled_for`.
        failure_count: How often it failed since it last fired.
    """

    id: UUID
    name: str
    _: KW_ONLY
    job_type: str
    organization_id: UUID | None
    cron_expr: str
    scheduled_for: datetime
    now: datetime
    max_jitter_seconds: int
    failure_count: int


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """What becomes of a due fire.

    Attributes:
        next_fire_at: The fire after it, later than `scheduled_for`; None if there is no other: the
            schedule is switched off then.
        run_at: The job runs not before this instant.
    """

    next_fire_at: datetime | None
    run_at: datetime

    def __post_init__(self) -> None:
        """Check both instants and keep them in UTC.

        Raises:
            ValidationError: `input.wrong_type`, `input.naive_timestamp` or `input.out_of_range`.
        """
        store = object.__setattr__
        if self.next_fire_at is not None:
            store(self, "next_fire_at", check_instant(self.next_fire_at, field="next_fire_at"))
        store(self, "run_at", check_instant(self.run_at, field="run_at"))


PlanFire: TypeAlias = Callable[[DueSchedule], ScheduleFire]
"""What tells the job and the next fire of a due schedule."""


@dataclass(frozen=True, slots=True)
class FiredSchedule:
    """A fire that has its job.

    Attributes:
        job_id: The job made by this pass; None if the fire had one already.
        next_fire_at: The fire after it; None if there is no other.
    """

    name: str
    job_id: UUID | None
    _: KW_ONLY
    schedule_id: UUID
    job_type: str
    scheduled_for: datetime
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeferredSchedule:
    """A schedule that could not be fired: it keeps its fire and is tried again.

    Attributes:
        retry_at: When; None if not even that could be stored.
        failure_count: Failures since it last fired, this one counted.
    """

    name: str
    error: RunledgerError
    _: KW_ONLY
    schedule_id: UUID
    scheduled_for: datetime
    retry_at: datetime | None
    failure_count: int


@dataclass(frozen=True, slots=True)
class SchedulePass:
    """What one pass over the due schedules did, and when there is more to do.

    Attributes:
        deactivated: Names of those fired that have no further fire, and are inactive now.
        is_full: Whether to look again at once: as many were due as the limit allows, or the time
            of a pass was over.
        is_contended: Whether a schedule was due that this pass left: another session holds it, or
            the limit was reached, or the time.
        now: The database's clock at the end of the pass.
        next_due_at: When the next schedule comes due, a retry too; None if none will. It may have
            passed by `now`. What another session holds is not counted.
    """

    fired: tuple[FiredSchedule, ...]
    deferred: tuple[DeferredSchedule, ...]
    deactivated: tuple[str, ...]
    _: KW_ONLY
    is_full: bool
    is_contended: bool
    now: datetime
    next_due_at: datetime | None
