"""The reaper loop: ends attempts whose lease ran out, whoever ran them."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import JobDeadLetterInfo, RunledgerError, Unset
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import FailureDisposition, ReapResult, reap_expired_leases
from runledger_postgres.workers import prune_workers

from .backoff import BACKOFF_MS, Outage, spread
from .config import JobsConfig
from .dead_letters import DeadLetter, DeadLetterHooks
from .engine import Connection, ConnectionCount, EngineConnections
from .errors import (
    InvalidConfig,
    JobsConfigError,
    LoopExit,
    RuntimeLoopExit,
    TooFewConnections,
)
from .health import LoopHealth
from .registry import JobRegistry
from .shutdown import StopToken

_CONNECTION: Final = "reaper"
_PASS_SECONDS: Final = 30.0
_PRUNE_SECONDS: Final = 3_600.0
_WORKERS_KEPT: Final = timedelta(days=1)
_LOGGED_ROWS: Final = 5

_logger = logging.getLogger(__name__)


def run_reaper_loop(
    # Any: a pool is taken whatever its connection class and row type.
    pool: ConnectionPool[Any],
    config: JobsConfig,
    stop: StopToken,
    *,
    registry: JobRegistry | None = None,
    health: LoopHealth | None = None,
) -> RuntimeLoopExit:
    """End expired leases until asked to stop; a failing database is waited for.

    Needs no handlers: the jobs are tried again by whoever runs their type. Handlers that are known
    here and have `on_dead_letter` are told of jobs that are given up.

    Args:
        pool: Its settings are used for a connection of the loop's own.
        registry: Handlers that are told of dead letters; None for none.
        health: Where passes and errors are reported.

    Returns:
        SHUTDOWN, the refused setting before any database work, or `TooFewConnections` if the server
        has had no room for the loop's connection for the first minute.
    """
    try:
        config.validate_reaper()
    except JobsConfigError as error:
        return InvalidConfig(error)
    hooks = DeadLetterHooks(registry or JobRegistry(), pool)
    reaper = _Reaper(pool, config, hooks, health or LoopHealth("reaper"))
    try:
        while not stop.is_requested:
            seconds = reaper.run_pass()
            if reaper.verdict is not None and not stop.is_requested:
                return reaper.verdict
            stop.wait(seconds)
    finally:
        reaper.close()
    return LoopExit.SHUTDOWN


class _Reaper:
    def __init__(
        self,
        pool: ConnectionPool[Any],
        config: JobsConfig,
        hooks: DeadLetterHooks,
        health: LoopHealth,
    ) -> None:
        self._count = ConnectionCount([_CONNECTION], health)
        self._connections = EngineConnections(pool, count=self._count)
        self._config = config
        self._hooks = hooks
        self._health = health
        self._outage = Outage()
        self._connection: Connection | None = None
        self._prune_at = time.monotonic()

    @property
    def verdict(self) -> TooFewConnections | None:
        """Why the loop should end; None while it should not."""
        return self._count.verdict

    def run_pass(self) -> float:
        """Reap one batch and return the seconds to wait before the next."""
        try:
            connection = self._connected()
            with self._connections.deadline(connection, _PASS_SECONDS):
                result = self._reap(connection)
        except Exception as error:  # noqa: BLE001  # `configure` and callables of the user's, too
            return self._failed(error)
        self._recovered()
        _log_result(result)
        self._tell(result)
        if len(result.reaped) + len(result.deferred) >= self._config.claim_batch_size:
            self._health.passed()
            return 0
        self._health.passed(backlog=0)
        self._prune_if_due(connection)
        return spread(self._config.reaper_interval_seconds)

    def close(self) -> None:
        self._disconnect()
        self._connections.close()
        self._hooks.finish()

    def _reap(self, connection: Connection) -> ReapResult:
        return reap_expired_leases(
            connection,
            limit=self._config.claim_batch_size,
            retry_delay_ms=self._config.reaper_retry_delay_ms,
            backoff_ms=BACKOFF_MS,
        )

    def _tell(self, result: ReapResult) -> None:
        self._hooks.advance()
        for job in result.reaped:
            # A payload that Python cannot read is no handler's business.
            if job.dead_letter_reason is None or isinstance(job.payload, Unset):
                continue
            self._hooks.submit(
                DeadLetter(
                    job.lease,
                    job.job_type,
                    organization_id=job.organization_id,
                    payload=job.payload,
                    checkpoint=None if isinstance(job.checkpoint, Unset) else job.checkpoint,
                    info=JobDeadLetterInfo(
                        job.failure, job.dead_letter_reason, max_attempts=job.max_attempts
                    ),
                )
            )

    def _prune_if_due(self, connection: Connection) -> None:
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + spread(_PRUNE_SECONDS)
        try:
            with self._connections.deadline(connection, _PASS_SECONDS):
                prune_workers(connection, older_than=_WORKERS_KEPT)
        except (psycopg.Error, RunledgerError) as error:
            # For eyes only: it must not hold up the leases.
            _logger.warning("workers long gone could not be pruned", extra=_log_fields(error))
            self._disconnect()

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connections.connect(_CONNECTION)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _failed(self, error: Exception) -> float:
        self._health.failed(error)
        # Whatever state it is in, a fresh one is better.
        self._disconnect()
        step = self._outage.failed()
        if step.is_worth_logging:
            _logger.warning(
                "the reaper waits for the database",
                extra=_log_fields(error) | {"failures": step.failures},
                exc_info=None if isinstance(error, (psycopg.Error, RunledgerError)) else error,
            )
        return step.delay_seconds

    def _recovered(self) -> None:
        failures = self._outage.ended()
        if failures:
            _logger.info("the reaper goes on", extra={"failures": failures})


def _log_fields(error: BaseException) -> dict[str, object]:
    """Return what a log may hold of a database's error: no rows, no connection string."""
    cause = error.__cause__ if isinstance(error, QueryError) else error
    fields: dict[str, object] = {"error": type(error).__name__}
    if isinstance(error, RunledgerError):
        fields["error_code"] = error.code
    if isinstance(cause, psycopg.Error):
        fields["sqlstate"] = cause.sqlstate
    # The server refused to serve or was not reached; texts of other errors quote rows.
    if isinstance(cause, psycopg.OperationalError):
        fields["reason"] = str(cause).strip()
    return fields


def _log_result(result: ReapResult) -> None:
    if result.reaped:
        dead = sum(job.disposition is FailureDisposition.DEAD_LETTERED for job in result.reaped)
        _logger.warning(
            "ended attempts whose lease ran out",
            extra={"retried": len(result.reaped) - dead, "dead_lettered": dead},
        )
    for deferred in result.deferred[:_LOGGED_ROWS]:
        _logger.error(
            "an expired lease could not be ended; it is tried again later",
            extra={"job_id": str(deferred.job_id), "error_code": deferred.error.code},
        )
    if len(result.deferred) > _LOGGED_ROWS:
        _logger.error(
            "more expired leases could not be ended",
            extra={"more": len(result.deferred) - _LOGGED_ROWS},
        )
