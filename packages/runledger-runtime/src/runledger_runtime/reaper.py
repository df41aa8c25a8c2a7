"""The reaper loop: ends attempts whose lease ran out, whoever ran them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import JobDeadLetterInfo, RunledgerError, Unset
from runledger_postgres.direct import Connection
from runledger_postgres.lifecycle import (
    FailureDisposition,
    ReapedJob,
    ReapResult,
    reap_expired_leases,
)
from runledger_postgres.workers import prune_workers

from .backoff import BACKOFF_MS, spread
from .config import JobsConfig
from .dead_letters import DeadLetter, DeadLetterHooks, reader_of
from .errors import InvalidConfig, JobsConfigError, RuntimeLoopExit
from .failure_log import failure_fields
from .health import LoopHealth
from .loop_link import LoopLink
from .observers import (
    JobLeaseReapedEvent,
    JobLifecycleObservers,
    LifecycleDelivery,
    ObservedJob,
    disposition_of,
)
from .registry import JobRegistry
from .safe_log import safe_logger
from .shutdown import StopToken

_PRUNE_SECONDS: Final = 3_600.0
_WORKERS_KEPT: Final = timedelta(days=1)
_LOGGED_ROWS: Final = 5
# An observer cannot be stopped; one that is about to end may.
_FINISH_SECONDS: Final = 0.25

_logger = safe_logger(__name__)


def run_reaper_loop(
    # Any: a pool is taken whatever its connection class and row type.
    pool: ConnectionPool[Any],
    config: JobsConfig,
    stop: StopToken,
    *,
    registry: JobRegistry | None = None,
    health: LoopHealth | None = None,
    observers: JobLifecycleObservers | None = None,
) -> RuntimeLoopExit:
    """End expired leases until asked to stop; a failing database is waited for.

    Needs no handlers: the jobs are tried again by whoever runs their type. Handlers that are known
    here and have `on_dead_letter` are told of jobs that are given up.

    Args:
        pool: Its settings are used for a connection of the loop's own.
        registry: Handlers that are told of dead letters; None for none.
        health: Where passes and errors are reported.
        observers: Told of every attempt that was ended, of whatever type, when the handlers of the
            same pass were told; not after a stop. None for none.

    Returns:
        SHUTDOWN, the refused setting before any database work, or `TooFewConnections` if the server
        has had no room for the loop's connection for the first minute.
    """
    try:
        config.validate_reaper()
    except JobsConfigError as error:
        return InvalidConfig(error)
    hooks = DeadLetterHooks(registry or JobRegistry(), pool)
    stop.add_callback(hooks.stop)
    stop.add_abort_callback(hooks.abandon)
    delivery = None
    if observers:
        delivery = LifecycleDelivery(observers, burst=config.claim_batch_size)
        stop.add_callback(delivery.stop)
    health = health or LoopHealth("reaper")
    health.calls_hooks(lambda: hooks.has_work)
    link = LoopLink(pool, "reaper", health=health, logger=_logger)
    reaper = _Reaper(link, config, hooks, health, delivery=delivery)
    try:
        return link.run(stop, reaper.reap, reaper.settle)
    finally:
        reaper.close()


class _Reaper:
    def __init__(
        self,
        link: LoopLink,
        config: JobsConfig,
        hooks: DeadLetterHooks,
        health: LoopHealth,
        *,
        delivery: LifecycleDelivery | None,
    ) -> None:
        self._link = link
        self._config = config
        self._hooks = hooks
        self._delivery = delivery
        self._health = health
        self._limit = config.claim_batch_size
        self._prune_at = time.monotonic()

    def reap(self, connection: Connection) -> ReapResult:
        """End one batch of expired leases; half as many after a failure, then twice as many."""
        try:
            return reap_expired_leases(
                connection,
                limit=self._limit,
                retry_delay_ms=self._config.reaper_retry_delay_ms,
                backoff_ms=BACKOFF_MS,
            )
        except Exception:
            # It may have been too much for one pass.
            self._limit = max(1, self._limit // 2)
            raise

    def settle(self, result: ReapResult) -> float:
        """Tell what was ended; return the seconds to wait before the next batch."""
        _log_result(result)
        self._tell(result)
        is_full = len(result.reaped) + len(result.deferred) >= self._limit
        self._limit = min(2 * self._limit, self._config.claim_batch_size)
        if is_full:
            self._health.passed()
            return 0
        self._health.passed(backlog=0)
        self._prune_if_due()
        return spread(self._config.reaper_interval_seconds)

    def close(self) -> None:
        self._link.close()
        self._hooks.finish()
        if self._delivery is not None:
            self._delivery.finish(_FINISH_SECONDS)

    def _tell(self, result: ReapResult) -> None:
        letters = [
            DeadLetter(
                job.lease,
                job.job_type,
                organization_id=job.organization_id,
                payload=reader_of(job.payload),
                checkpoint=reader_of(job.checkpoint),
                info=JobDeadLetterInfo(
                    job.failure, job.dead_letter_reason, max_attempts=job.max_attempts
                ),
            )
            for job in result.reaped
            # A payload that Python cannot read is no handler's business.
            if job.dead_letter_reason is not None and not isinstance(job.payload, Unset)
        ]
        self._hooks.submit_all(letters, then=partial(self._observe, result.reaped))

    def _observe(self, reaped: Sequence[ReapedJob]) -> None:
        if self._delivery is None:
            return
        for job in reaped:
            self._delivery.ended(
                JobLeaseReapedEvent(
                    ObservedJob(
                        job.lease.job_id,
                        job.job_type,
                        organization_id=job.organization_id,
                        run_number=job.lease.run_number,
                        attempt=job.lease.attempt,
                        max_attempts=job.max_attempts,
                        worker_id=job.lease.worker_id,
                    ),
                    job.failure,
                    job.is_without_heartbeat,
                    disposition_of(job.dead_letter_reason, job.retry_delay_ms, job.next_run_at),
                )
            )

    def _prune_if_due(self) -> None:
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + spread(_PRUNE_SECONDS)
        try:
            self._link.aside(partial(prune_workers, older_than=_WORKERS_KEPT))
        except (psycopg.Error, RunledgerError) as error:
            # For eyes only: it must not hold up the leases.
            _logger.warning("workers long gone could not be pruned", extra=failure_fields(error))


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
