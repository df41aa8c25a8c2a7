"""Fire what is due: each schedule makes its job and moves on, all in one transaction.

Due schedules are claimed as jobs are: those that came due first, and none that others hold. What
one cannot do concerns it alone. One job per fire is promised twice: by the row, whose next fire
only moves on under its lock, and by the unique index of the jobs of a schedule.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final, TypeAlias

from runledger_core import (
    ErrorCategory,
    RunledgerError,
    ValidationError,
    check_int,
    codes,
    decode_json,
    sanitize_text,
    type_name,
)

from .._bounded_write import bounded_write
from .._database import Database
from .._session import Bound, Transaction
from ..errors import QueryError, refusal
from ._due import (
    CLAIM_DUE_SCHEDULES,
    LOCK_SCHEDULES_FOR_FIRE,
    LOOK_AHEAD,
    READ_CLOCK,
    ClaimedSchedule,
)
from ._fire import CLAIMED_SCHEDULE_MISSING, SLOW, defer_schedule, fire_schedule
from .rows import (
    DeferredSchedule,
    DueSchedule,
    FiredSchedule,
    PlanFire,
    ScheduleFire,
    SchedulePass,
)

MAX_FIRES: Final = 1_000
# An exact sync may hold the table; a scheduler that is told to stop must not wait for its end.
TABLE_WAIT_MS: Final = 1_000
# Whoever runs passes breaks those that take too long, and a broken pass has fired nothing: on a
# slow link a large one has to end by itself.
_FIRING_SECONDS: Final = 10.0

_Result: TypeAlias = FiredSchedule | DeferredSchedule

_PROBLEM_BYTES: Final = 1_024


def fire_due_schedules(db: Database, plan: PlanFire, *, limit: int) -> SchedulePass:
    """Make the jobs of schedules whose fire is due.

    Of any number of schedulers at the same time one makes the job of a fire. A job has priority,
    attempts and timeout of its enabled definition, the schedule's owner, and the stage `scheduled`.

    Args:
        plan: Tells from a due schedule when its job runs, and when it fires next. It runs inside
            the transaction; whatever it raises defers that schedule alone.
        limit: Most schedules to look at, 1 to 1,000, those that came due first. If none of so many
            takes a write, as many again are looked at. After ten seconds the rest is left to the
            next pass.

    Returns:
        What was fired, and what failed: a schedule that fails keeps its fire, shows the error on
        its row, and is tried again after 30 seconds, doubling to an hour.

    Raises:
        ValidationError: An `input.*` code for such a limit, or for a plan that cannot be called.
        InternalError: `job_schedule.claimed_schedule_missing` if a claimed schedule vanished from
            the transaction; all of the pass is undone.
        UnavailableError: `db.lock_timeout` if an exact sync held the table for a second, or
            `db.unavailable`: all of the pass is undone. `db.outcome_unknown`: the next pass makes
            nothing twice.

    Transaction: joins the caller's, inside a savepoint, or opens one. Schedules that others hold
        are skipped. In one of its own each fire is held against your deferred constraints before
        the next; in a joined one they speak when the caller sets them immediate, or commits.
    """
    if not callable(plan):
        raise ValidationError(codes.INPUT_WRONG_TYPE, "plan must be a function", field="plan")
    most = check_int(limit, field="limit", minimum=1, maximum=MAX_FIRES)
    with bounded_write(db, TABLE_WAIT_MS) as work:
        work.fetch(Bound(LOCK_SCHEDULES_FOR_FIRE))
        now = work.fetch(Bound(READ_CLOCK))[0].now
        results, is_cut = _fire_claimed(work, plan, now, most=most)
        (ahead,) = work.fetch(Bound(LOOK_AHEAD, {"now": now}))
    fired = tuple(result for result in results if isinstance(result, FiredSchedule))
    deferred = tuple(result for result in results if isinstance(result, DeferredSchedule))
    return SchedulePass(
        fired,
        deferred,
        tuple(schedule.name for schedule in fired if schedule.next_fire_at is None),
        # Rows that take no write at all are due again at once, and would be for ever.
        is_full=is_cut and any(_has_moved(result) for result in results),
        is_contended=ahead.is_contended,
        now=ahead.now,
        next_due_at=ahead.next_due_at,
    )


def _fire_claimed(
    work: Transaction, plan: PlanFire, now: datetime, *, most: int
) -> tuple[list[_Result], bool]:
    """Fire or defer them one by one, the first at least; return also whether more may be due."""
    results: list[_Result] = []
    end_at = time.monotonic() + _FIRING_SECONDS
    while True:
        # What takes no write is the first in every pass: a batch of nothing else would keep those
        # behind it from their turn for ever.
        stuck = [result.schedule_id for result in results]
        params: dict[str, object] = {"now": now, "limit": most, "stuck": stuck}
        claimed = work.fetch(Bound(CLAIM_DUE_SCHEDULES, params))
        is_cut = len(claimed) == most
        for place, schedule in enumerate(claimed, start=1):
            results.append(_fire_or_defer(work, plan, schedule, now))
            if time.monotonic() >= end_at:
                return results, is_cut or place < len(claimed)
        if not is_cut or any(_has_moved(result) for result in results):
            return results, is_cut


def _has_moved(result: _Result) -> bool:
    return isinstance(result, FiredSchedule) or result.retry_at is not None


def _fire_or_defer(
    work: Transaction, plan: PlanFire, claimed: ClaimedSchedule, now: datetime
) -> _Result:
    try:
        fire = _planned(plan, claimed, now)
    except RunledgerError as error:
        return defer_schedule(work, claimed, error)
    try:
        return fire_schedule(work, claimed, fire)
    except QueryError as error:
        if error.code == CLAIMED_SCHEDULE_MISSING:
            raise
        if error.is_transient and error.code not in SLOW:
            raise
        return defer_schedule(work, claimed, error)


def _planned(plan: PlanFire, claimed: ClaimedSchedule, now: datetime) -> ScheduleFire:
    if not claimed.is_datable:
        raise _undecodable("next_fire_at", "it lies before the year 1")
    try:
        decode_json(claimed.payload_template_json, field="payload_template")
    except RunledgerError as error:
        raise _undecodable("payload_template", error.client_message) from error
    due = DueSchedule(
        claimed.id,
        claimed.name,
        job_type=claimed.job_type,
        organization_id=claimed.organization_id,
        cron_expr=claimed.cron_expr,
        scheduled_for=claimed.scheduled_for,
        now=now,
        max_jitter_seconds=claimed.max_jitter_seconds,
        failure_count=claimed.failure_count,
    )
    try:
        fire = plan(due)
    except RunledgerError:
        raise
    except Exception as error:
        # One schedule that the plan stumbles over must not stop the others.
        problem = sanitize_text(error, max_bytes=_PROBLEM_BYTES)
        raise _plan_failed(f"{type_name(error)}: {problem}") from error
    if not isinstance(fire, ScheduleFire):  # pyright: ignore[reportUnnecessaryIsInstance]  # plans without a type checker
        raise _plan_failed(f"it returned a {type_name(fire)}, not a ScheduleFire")
    if fire.next_fire_at is not None and fire.next_fire_at <= claimed.scheduled_for:
        raise _plan_failed("its next fire is not later than the one that is due")
    return fire


def _undecodable(field: str, problem: str) -> QueryError:
    return refusal(
        ErrorCategory.INTERNAL,
        "job.undecodable_row",
        f"the stored {field} cannot be read by Python: {problem}",
        field=field,
    )


def _plan_failed(problem: str) -> QueryError:
    return refusal(
        ErrorCategory.INTERNAL,
        "job_schedule.plan_failed",
        f"the plan of the next fire failed: {problem}",
    )
