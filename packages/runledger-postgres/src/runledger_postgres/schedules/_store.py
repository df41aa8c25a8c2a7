"""How schedules are written: nothing if nothing differs, else in one order, checked at the end.

Rows are inserted or updated by one statement in the order of their names, so that writers of
overlapping sets cannot deadlock. Definitions are locked after that, in the order of their types.
Disabling a type locks its definition and then looks for active schedules: whichever of the two has
the lock first, the other sees what it did.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from runledger_core import ErrorCategory, JobScheduleUpsert, codes
from runledger_core.cron import CronExpression

from .._rows import Statement
from .._session import Bound, Transaction
from ..errors import QueryError, refusal


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A given schedule beside the stored one and the definition of its type.

    Attributes:
        is_new_expression: Whether it is to fire at other times than what is stored, if anything is.
        now: The database's clock.
    """

    is_different: bool
    is_new_expression: bool
    is_active: bool
    is_defined: bool
    is_enabled: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A schedule that was inserted or changed."""

    name: str
    job_type: str
    is_active: bool


@dataclass(frozen=True, slots=True)
class LockedDefinition:
    """A definition, as it is once nobody else holds it."""

    job_type: str
    is_enabled: bool


_GIVEN: Final = """
    unnest(
        %(names)s::text[], %(job_types)s::text[], %(organization_ids)s::uuid[],
        %(payload_templates)s::jsonb[], %(cron_exprs)s::text[], %(actives)s::bool[],
        %(jitters)s::int4[], %(next_fire_ats)s::timestamptz[]
    ) WITH ORDINALITY AS w(
        name, job_type, organization_id, payload_template, cron_expr, is_active,
        max_jitter_seconds, next_fire_at, entry
    )
"""


COMPARE_SCHEDULES: Final = Statement(
    f"""
    SELECT
        s.id IS NULL
            OR (s.job_type, s.payload_template, s.cron_expr, s.max_jitter_seconds)
                IS DISTINCT FROM
                (w.job_type, w.payload_template, w.cron_expr, w.max_jitter_seconds)
            OR (NOT %(keeps_active)s::bool AND s.is_active <> w.is_active) AS is_different,
        s.cron_expr IS DISTINCT FROM w.cron_expr AS is_new_expression,
        CASE WHEN %(keeps_active)s::bool THEN coalesce(s.is_active, w.is_active) ELSE w.is_active
        END AS is_active,
        d.job_type IS NOT NULL AS is_defined,
        coalesce(d.is_enabled, false) AS is_enabled,
        clock_timestamp() AS now
    FROM {_GIVEN}
    LEFT JOIN runledger.job_schedules AS s ON s.name = w.name
    LEFT JOIN runledger.job_definitions AS d ON d.job_type = w.job_type
    ORDER BY w.entry
    """,
    ComparedRow,
)

# A changed expression begins anew at the given fire; an equal one keeps its own. Whatever changes,
# an earlier failure says nothing of what is stored now. No row comes back for one that another
# session has just stored as given.
UPSERT_SCHEDULES: Final = Statement(
    f"""
    INSERT INTO runledger.job_schedules AS s (
        name, job_type, organization_id, payload_template, cron_expr, is_active,
        max_jitter_seconds, next_fire_at, created_at, updated_at
    )
    SELECT
        w.name, w.job_type, w.organization_id, w.payload_template, w.cron_expr, w.is_active,
        w.max_jitter_seconds, coalesce(w.next_fire_at, clock_timestamp()),
        statement_timestamp(), statement_timestamp()
    FROM {_GIVEN}
    -- One order for every batch, so that two with the same names cannot deadlock.
    ORDER BY w.name COLLATE "C"
    ON CONFLICT (name) DO UPDATE
    SET
        job_type = EXCLUDED.job_type,
        payload_template = EXCLUDED.payload_template,
        cron_expr = EXCLUDED.cron_expr,
        is_active = CASE
            WHEN %(keeps_active)s::bool THEN s.is_active ELSE EXCLUDED.is_active
        END,
        max_jitter_seconds = EXCLUDED.max_jitter_seconds,
        next_fire_at = CASE
            WHEN s.cron_expr = EXCLUDED.cron_expr THEN s.next_fire_at ELSE EXCLUDED.next_fire_at
        END,
        retry_at = NULL,
        failure_count = 0,
        last_error_code = NULL,
        last_error_message = NULL,
        updated_at = clock_timestamp()
    WHERE (s.job_type, s.payload_template, s.cron_expr, s.max_jitter_seconds)
            IS DISTINCT FROM (
                EXCLUDED.job_type, EXCLUDED.payload_template, EXCLUDED.cron_expr,
                EXCLUDED.max_jitter_seconds
            )
        OR (NOT %(keeps_active)s::bool AND s.is_active <> EXCLUDED.is_active)
    RETURNING s.name, s.job_type, s.is_active
    """,
    WrittenRow,
)

# Against definition writes: one that disables looks for active schedules once it has this lock.
LOCK_SCHEDULED_DEFINITIONS: Final = Statement(
    """
    SELECT d.job_type, d.is_enabled
    FROM runledger.job_definitions AS d
    WHERE d.job_type = ANY (%(job_types)s::text[])
    ORDER BY d.job_type
    FOR NO KEY UPDATE
    """,
    LockedDefinition,
)


def differing_schedules(
    work: Transaction, schedules: Sequence[JobScheduleUpsert], *, keeps_active: bool
) -> list[JobScheduleUpsert]:
    """Return those that are not stored as given, without a lock.

    Raises:
        ValidationError: `job_schedule.invalid_cron` if a new expression has no fire after now,
            `job_schedule.definition_not_found_or_disabled` if one would be active
            without an enabled definition, `job.definition_not_found` if it would be inactive
            without any.
    """
    if not schedules:
        return []
    rows = work.fetch(Bound(COMPARE_SCHEDULES, _parameters(schedules, keeps_active=keeps_active)))
    for index, (schedule, row) in enumerate(zip(schedules, rows, strict=True)):
        if row.is_new_expression and _is_exhausted(schedule, row.now):
            raise refusal(
                ErrorCategory.VALIDATION,
                codes.JOB_SCHEDULE_INVALID_CRON,
                f"cron_expr of the schedule {schedule.name} has no fire after now",
                field="cron_expr",
                entry_index=index,
            )
        if row.is_active and not row.is_enabled:
            raise not_enabled_refusal(schedule.name, entry_index=index)
        if not row.is_defined:
            raise refusal(
                ErrorCategory.VALIDATION,
                "job.definition_not_found",
                f"the job type of the schedule {schedule.name} has no definition",
                field="job_type",
                entry_index=index,
            )
    return [s for s, row in zip(schedules, rows, strict=True) if row.is_different]


def store_schedules(
    work: Transaction, schedules: Sequence[JobScheduleUpsert], *, keeps_active: bool
) -> None:
    """Store schedules as given; what is stored so already is neither written nor locked.

    Args:
        schedules: Each name once.
        keeps_active: Leave stored schedules as active as they are.

    Raises:
        ValidationError: As `differing_schedules`.
    """
    differing = differing_schedules(work, schedules, keeps_active=keeps_active)
    if not differing:
        return
    written = work.fetch(Bound(UPSERT_SCHEDULES, _parameters(differing, keeps_active=keeps_active)))
    active = {row.name: row.job_type for row in written if row.is_active}
    enabled = lock_enabled_types(work, active.values())
    for index, schedule in enumerate(schedules):
        if schedule.name in active and active[schedule.name] not in enabled:
            raise not_enabled_refusal(schedule.name, entry_index=index)


def _is_exhausted(schedule: JobScheduleUpsert, now: datetime) -> bool:
    # One that is stored and has run out is left to the scheduler: a program that still names it
    # must be able to start.
    return CronExpression(schedule.cron_expr).next_after(now) is None


def lock_enabled_types(work: Transaction, job_types: Collection[str]) -> set[str]:
    """Lock the definitions of these types, and return the types that are enabled then."""
    if not job_types:
        return set()
    types = sorted(set(job_types))
    rows = work.fetch(Bound(LOCK_SCHEDULED_DEFINITIONS, {"job_types": types}))
    return {row.job_type for row in rows if row.is_enabled}


def not_enabled_refusal(name: str, *, entry_index: int | None = None) -> QueryError:
    """Return the refusal of an active schedule whose jobs cannot be enqueued."""
    return refusal(
        ErrorCategory.VALIDATION,
        "job_schedule.definition_not_found_or_disabled",
        f"the job type of the active schedule {name} has no definition, or it is disabled",
        field="job_type",
        entry_index=entry_index,
    )


def _parameters(schedules: Sequence[JobScheduleUpsert], *, keeps_active: bool) -> dict[str, object]:
    return {
        "names": [schedule.name for schedule in schedules],
        "job_types": [schedule.job_type for schedule in schedules],
        "organization_ids": [schedule.organization_id for schedule in schedules],
        "payload_templates": [schedule.payload_template_json for schedule in schedules],
        "cron_exprs": [schedule.cron_expr for schedule in schedules],
        "actives": [schedule.is_active for schedule in schedules],
        "jitters": [schedule.max_jitter_seconds for schedule in schedules],
        "next_fire_ats": [schedule.next_fire_at for schedule in schedules],
        "keeps_active": keeps_active,
    }
