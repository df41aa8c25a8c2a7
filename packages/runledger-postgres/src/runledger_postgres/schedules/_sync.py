"""Bring the stored schedules in line with a program's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from runledger_core import ErrorCategory, JobScheduleUpsert, ScheduleName

from .._arguments import check_kinds, check_list
from .._bounded_write import bounded_write
from .._database import Database
from .._rows import NoRow, Statement
from .._session import DEFAULT_LOCK_TIMEOUT_MS, IS_READ_COMMITTED, Bound
from ..errors import refusal
from ._store import differing_schedules, store_schedules
from .rows import ExactScheduleSyncReport, ScheduleSyncReport


@dataclass(frozen=True, slots=True)
class ActiveNamesRow:
    """Which of the names are active, and whether the snapshot of that is the statement's own."""

    is_read_committed: bool
    names: list[str]


@dataclass(frozen=True, slots=True)
class DeactivatedRow:
    """A schedule that was switched off."""

    name: str


FIND_ACTIVE_BY_NAME: Final = Statement(
    f"""
    SELECT
        {IS_READ_COMMITTED} AS is_read_committed,
        ARRAY(
            SELECT s.name
            FROM runledger.job_schedules AS s
            WHERE s.is_active AND s.name = ANY (%(names)s::text[])
        ) AS names
    """,
    ActiveNamesRow,
)

# Against every other write of a schedule, the scheduler's included; reads go on.
LOCK_SCHEDULES_FOR_EXACT_SYNC: Final = Statement(
    "LOCK TABLE runledger.job_schedules IN SHARE ROW EXCLUSIVE MODE", NoRow
)

DEACTIVATE_SCHEDULES: Final = Statement(
    """
    UPDATE runledger.job_schedules AS s
    SET is_active = false, updated_at = clock_timestamp()
    WHERE s.is_active AND s.name = ANY (%(names)s::text[])
    RETURNING s.name
    """,
    DeactivatedRow,
)


def sync_job_schedules(
    db: Database,
    schedules: Sequence[JobScheduleUpsert],
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> ScheduleSyncReport:
    """Store the given schedules, all or none, and leave all others alone.

    As `upsert_job_schedule`, but `is_active` becomes as given, whatever an operator had set. Where
    nothing differs, nothing is locked or written.

    Args:
        schedules: Any number, each name once; none is no work and no SQL.
        lock_timeout_ms: Longest wait for a lock, in milliseconds.

    Raises:
        ValidationError: As `upsert_job_schedule`, `entry_index` tells which; also
            `job_schedule.duplicate_name`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the schedules that it
        changes in the order of their names, then definitions in the order of their types.
    """
    given = check_kinds(schedules, JobScheduleUpsert, field="schedules")
    names = _distinct_names(given)
    if not given:
        return ScheduleSyncReport()
    with bounded_write(db, lock_timeout_ms) as work:
        store_schedules(work, given, keeps_active=False)
    return ScheduleSyncReport(names)


def sync_job_schedules_exact(
    db: Database,
    schedules: Sequence[JobScheduleUpsert],
    *,
    scope: Collection[str],
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> ExactScheduleSyncReport:
    """Store the given schedules and switch off the others in scope, all or none.

    As `sync_job_schedules`. Active schedules in scope that are not given become inactive, and are
    never deleted. Names outside scope are left alone.

    Args:
        schedules: Any number, each name once, all in scope; none switches the whole scope off.
        scope: The names that this program owns, at least one.
        lock_timeout_ms: Longest wait for a lock, in milliseconds.

    Raises:
        ValidationError: `job_schedule.empty_sync_scope`, `job_schedule.name_outside_sync_scope`,
            `job_schedule.sync_unsupported_isolation`, or as `sync_job_schedules`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. If anything differs it locks
        the table of schedules against other writes, the scheduler's too.
    """
    given = check_kinds(schedules, JobScheduleUpsert, field="schedules")
    names = _distinct_names(given)
    owned = _checked_scope(scope)
    for index, name in enumerate(names):
        if name not in owned:
            raise refusal(
                ErrorCategory.VALIDATION,
                "job_schedule.name_outside_sync_scope",
                f"the schedule {name} is given but not in scope",
                field="scope",
                entry_index=index,
            )
    absent = {"names": sorted(owned.difference(names))}
    with bounded_write(db, lock_timeout_ms) as work:
        (found,) = work.fetch(Bound(FIND_ACTIVE_BY_NAME, absent))
        if not found.names and not differing_schedules(work, given, keeps_active=False):
            return ExactScheduleSyncReport(names)
        if not found.is_read_committed:
            # An older snapshot would miss a schedule that was activated meanwhile.
            raise refusal(
                ErrorCategory.VALIDATION,
                "job_schedule.sync_unsupported_isolation",
                "an exact sync of schedules needs READ COMMITTED",
                field="db",
            )
        work.fetch(Bound(LOCK_SCHEDULES_FOR_EXACT_SYNC))
        store_schedules(work, given, keeps_active=False)
        deactivated = work.fetch(Bound(DEACTIVATE_SCHEDULES, absent))
    return ExactScheduleSyncReport(names, tuple(sorted(row.name for row in deactivated)))


def _distinct_names(schedules: Sequence[JobScheduleUpsert]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for index, schedule in enumerate(schedules):
        if schedule.name in names:
            raise refusal(
                ErrorCategory.VALIDATION,
                "job_schedule.duplicate_name",
                f"the schedule {schedule.name} is given twice",
                field="name",
                entry_index=index,
            )
        names[schedule.name] = None
    return tuple(names)


def _checked_scope(scope: Collection[str]) -> set[str]:
    scope = check_list(scope, field="scope")
    if not scope:
        raise refusal(
            ErrorCategory.VALIDATION,
            "job_schedule.empty_sync_scope",
            "an exact sync needs at least one schedule name",
            field="scope",
        )
    return {ScheduleName(name) for name in scope}
