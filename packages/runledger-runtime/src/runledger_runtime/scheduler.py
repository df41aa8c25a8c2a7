"""The scheduler loop: makes the jobs of schedules when they are due, once per fire."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import RunledgerError
from runledger_postgres.direct import Connection
from runledger_postgres.schedules import DeferredSchedule, SchedulePass, fire_due_schedules

from .config import JobsConfig
from .cron import plan_fire
from .errors import InvalidConfig, JobsConfigError, RuntimeLoopExit
from .health import LoopHealth
from .loop_link import LoopLink
from .safe_log import safe_logger
from .shutdown import StopToken

# What another scheduler has locked it fires itself; should it die, somebody must look again.
_CONTENDED_SECONDS: Final = 1.0
_REMEMBERED_FAILURES: Final = 10_000

_logger = safe_logger(__name__)


def run_scheduler_loop(
    # Any: a pool is taken whatever its connection class and row type.
    pool: ConnectionPool[Any],
    config: JobsConfig,
    stop: StopToken,
    *,
    health: LoopHealth | None = None,
) -> RuntimeLoopExit:
    """Fire due schedules until asked to stop; a failing database is waited for.

    Needs no handlers, and any number of them may run: a fire becomes one job, whoever makes it.
    Between fires the loop sleeps until the next one by the database's clock, at most for
    `schedule_poll_interval_seconds`; a schedule that is stored meanwhile is found after that.

    Args:
        pool: Its settings are used for a connection of the loop's own.
        health: Where passes and errors are reported.

    Returns:
        SHUTDOWN, the refused setting before any database work, or `TooFewConnections` if the server
        has had no room for the loop's connection for the first minute.
    """
    try:
        config.validate_scheduler()
    except JobsConfigError as error:
        return InvalidConfig(error)
    health = health or LoopHealth("scheduler")
    link = LoopLink(pool, "scheduler", health=health, logger=_logger)
    scheduler = _Scheduler(config, health)
    with closing(link):
        return link.run(stop, scheduler.fire, scheduler.settle)


class _Scheduler:
    def __init__(self, config: JobsConfig, health: LoopHealth) -> None:
        self._config = config
        self._health = health
        self._failures = _Failures()

    def fire(self, connection: Connection) -> SchedulePass:
        """Fire one batch of due schedules."""
        return fire_due_schedules(connection, plan_fire, limit=self._config.claim_batch_size)

    def settle(self, result: SchedulePass) -> float:
        """Report a batch; return the seconds until there is more to do."""
        self._report(result)
        return self._pause(result)

    def _report(self, result: SchedulePass) -> None:
        for fired in result.fired:
            self._failures.ended(fired.schedule_id, fired.name)
        for name in result.deactivated:
            _logger.warning(
                "a schedule has no further fire and is inactive now", extra={"schedule": name}
            )
        for deferred in result.deferred:
            self._failures.began(deferred)
            # Of one schedule; the loop itself is well.
            self._health.failed(_error_with_name(deferred))
        self._health.passed(backlog=None if result.is_full else 0)

    def _pause(self, result: SchedulePass) -> float:
        """Return the seconds until there is more to do, by the database's clock."""
        longest = float(self._config.schedule_poll_interval_seconds)
        if result.is_full:
            return 0
        if result.is_contended:
            longest = min(longest, _CONTENDED_SECONDS)
        if result.next_due_at is None:
            return longest
        seconds = (result.next_due_at - result.now).total_seconds()
        return min(max(seconds, 0), longest)


class _Failures:
    """Logs a failing schedule once, until it fires again or fails for another reason."""

    def __init__(self) -> None:
        self._codes: dict[UUID, str] = {}

    def began(self, deferred: DeferredSchedule) -> None:
        code = deferred.error.code
        if self._codes.get(deferred.schedule_id) == code:
            return
        # Schedules that are deleted while they fail would stay for ever.
        if len(self._codes) >= _REMEMBERED_FAILURES:
            self._codes.clear()
        self._codes[deferred.schedule_id] = code
        _logger.error(
            "a schedule cannot be fired; it is tried again",
            extra={
                "schedule": deferred.name,
                "error_code": code,
                "reason": deferred.error.client_message,
                "failures": deferred.failure_count,
            },
        )

    def ended(self, schedule_id: UUID, name: str) -> None:
        if self._codes.pop(schedule_id, None) is not None:
            _logger.info("a schedule fires again", extra={"schedule": name})


def _error_with_name(deferred: DeferredSchedule) -> RunledgerError:
    """Return the error of a schedule with its name before the message."""
    error = deferred.error
    return RunledgerError(error.code, f"schedule {deferred.name}: {error.client_message}")
