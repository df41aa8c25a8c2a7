"""One schedule: stored as given."""

from __future__ import annotations

from runledger_core import ErrorCategory, JobScheduleUpsert

from .._arguments import check_kind
from .._bounded_write import bounded_write
from .._database import Database
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..errors import QueryError, refusal
from ._read import GET_JOB_SCHEDULE_BY_NAME
from ._store import store_schedules
from .rows import JobScheduleRecord


def upsert_job_schedule(
    db: Database, schedule: JobScheduleUpsert, *, lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS
) -> JobScheduleRecord:
    """Store a schedule under its name, and return it as stored.

    A stored schedule keeps its owner, and is as active as it was: `set_job_schedule_active` is for
    that. While the cron expression stays, so does the next fire; a changed one begins anew at the
    given `next_fire_at`, or now, and a fire of the old one that is still to be made is not made.
    A change forgets earlier failures. If nothing differs, nothing is written and `updated_at`
    stays.

    Args:
        lock_timeout_ms: Longest wait for a lock, in milliseconds.

    Raises:
        ValidationError: `job_schedule.invalid_cron` if a new expression has no fire after now,
            `job_schedule.definition_not_found_or_disabled` if it would be active
            without an enabled definition, `job.definition_not_found` if it would be inactive
            without any.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the schedule, then the
        definition of its type if it is active.
    """
    check_kind(schedule, JobScheduleUpsert, field="schedule")
    try:
        with bounded_write(db, lock_timeout_ms) as work:
            store_schedules(work, [schedule], keeps_active=True)
            rows = work.fetch(Bound(GET_JOB_SCHEDULE_BY_NAME, {"name": schedule.name}))
            if not rows:
                raise refusal(
                    ErrorCategory.UNAVAILABLE,
                    "db.serialization_failure",
                    "the schedule was deleted meanwhile; retry",
                )
            return rows[0]
    except QueryError as error:
        # There was no batch.
        error.entry_index = None
        raise
