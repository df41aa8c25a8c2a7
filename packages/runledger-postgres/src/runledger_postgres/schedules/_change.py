"""Switch a schedule on or off, move its next fire, or delete it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from runledger_core import ScheduleName, check_bool, check_instant

from .._arguments import check_lock_timeout
from .._bounded_write import bounded_write
from .._database import Database
from .._rows import Statement
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run
from ._store import lock_enabled_types, not_enabled_refusal


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A schedule that was changed."""

    job_type: str


# The row first, by the write itself: a lock of its own would hold the row while an exact sync
# already has the table, and both would wait for each other.
SET_JOB_SCHEDULE_ACTIVE: Final = Statement(
    """
    UPDATE runledger.job_schedules AS s
    SET
        is_active = %(is_active)s::bool,
        retry_at = CASE WHEN %(is_active)s::bool THEN NULL ELSE s.retry_at END,
        failure_count = CASE WHEN %(is_active)s::bool THEN 0 ELSE s.failure_count END,
        last_error_code = CASE WHEN %(is_active)s::bool THEN NULL ELSE s.last_error_code END,
        last_error_message = CASE WHEN %(is_active)s::bool THEN NULL ELSE s.last_error_message END,
        updated_at = clock_timestamp()
    WHERE s.name = %(name)s AND s.is_active <> %(is_active)s::bool
    RETURNING s.job_type
    """,
    ChangedRow,
)

SET_JOB_SCHEDULE_NEXT_FIRE_AT: Final = Statement(
    """
    UPDATE runledger.job_schedules AS s
    SET
        next_fire_at = %(next_fire_at)s::timestamptz,
        retry_at = NULL,
        failure_count = 0,
        last_error_code = NULL,
        last_error_message = NULL,
        updated_at = clock_timestamp()
    WHERE s.name = %(name)s
        AND (
            s.next_fire_at <> %(next_fire_at)s::timestamptz
            OR s.retry_at IS NOT NULL
            OR s.last_error_code IS NOT NULL
        )
    RETURNING s.job_type
    """,
    ChangedRow,
)

DELETE_JOB_SCHEDULE: Final = Statement(
    """
    DELETE FROM runledger.job_schedules AS s
    WHERE s.name = %(name)s
    RETURNING s.job_type
    """,
    ChangedRow,
)


def set_job_schedule_active(
    db: Database,
    name: str,
    is_active: bool,  # noqa: FBT001  # the value that is set, not a switch of behaviour
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> bool:
    """Switch a schedule on or off.

    Its next fire stays. One that lies in the past, since the schedule was off, is made once, late;
    `set_job_schedule_next_fire_at` moves it. Switching on forgets earlier failures.

    Args:
        lock_timeout_ms: Longest wait for a lock, in milliseconds.

    Returns:
        Whether this call changed it: False if it was so already, or no schedule has this name.

    Raises:
        ValidationError: `job_schedule.definition_not_found_or_disabled` if it cannot be switched
            on, since its job type cannot be enqueued; an `input.*` code that names the argument.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the schedule, then the
        definition of its type to switch it on.
    """
    params = {
        "name": ScheduleName(name),
        "is_active": check_bool(is_active, field="is_active"),
    }
    with bounded_write(db, lock_timeout_ms) as work:
        changed = work.fetch(Bound(SET_JOB_SCHEDULE_ACTIVE, params))
        if changed and is_active and not lock_enabled_types(work, [changed[0].job_type]):
            raise not_enabled_refusal(name)
    return bool(changed)


def set_job_schedule_next_fire_at(
    db: Database,
    name: str,
    next_fire_at: datetime,
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> bool:
    """Move the next fire of a schedule, and forget earlier failures.

    An instant that has passed is a fire that is due now. One that has its job already is not made
    again: the schedule goes on from there.

    Args:
        lock_timeout_ms: Longest wait for a lock, in milliseconds.

    Returns:
        Whether this call changed it: False if nothing differs, or no schedule has this name.

    Raises:
        ValidationError: An `input.*` code that names the argument.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the schedule.
    """
    params = {
        "name": ScheduleName(name),
        "next_fire_at": check_instant(next_fire_at, field="next_fire_at"),
    }
    bound = Bound(SET_JOB_SCHEDULE_NEXT_FIRE_AT, params)
    return bool(run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms)))


def delete_job_schedule(
    db: Database, name: str, *, lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS
) -> bool:
    """Delete a schedule. The jobs that it made stay.

    A schedule that is stored again under the name is a new one, and begins anew.

    Args:
        lock_timeout_ms: Longest wait for a lock, in milliseconds.

    Returns:
        Whether this call deleted it.

    Raises:
        ValidationError: An `input.*` code if no schedule can have this name.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the schedule.
    """
    bound = Bound(DELETE_JOB_SCHEDULE, {"name": ScheduleName(name)})
    return bool(run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms)))
