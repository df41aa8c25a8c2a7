"""One worker: the pump in the calling thread, its helpers beside it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from runledger_core import CancelReason
from runledger_postgres.workers import WorkerState

from ..config import JobsConfig
from ..dead_letters import DeadLetterHooks
from ..engine import EngineConnections
from ..errors import InvalidConfig, JobsConfigError, LoopExit, RuntimeLoopExit
from ..health import LoopHealth
from ..observers import JobLifecycleObservers
from ..registry import JobRegistry
from ..safe_log import safe_logger
from ..shortage import ConnectionShortage
from ..shutdown import StopToken
from ._book import LeaseBook
from ._execution import Ending
from ._helper import Helper
from ._lease_keeper import LeaseKeeper
from ._link import PumpLink
from ._observing import Observing
from ._pump import Pump
from ._sleep import Sleep
from ._timekeeper import Timekeeper
from ._wakeup import Listener, SleepMarks

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = safe_logger(__name__)

# The names under which the parts open theirs.
_CONNECTIONS: Final = ("pump", "lease keeper")
_WAKEUP_CONNECTIONS: Final = ("listener", "sleep marks")


def run_worker_loop(
    pool: ConnectionPool[Any],
    registry: JobRegistry,
    config: JobsConfig,
    stop: StopToken,
    *,
    health: LoopHealth | None = None,
    observers: JobLifecycleObservers | None = None,
) -> RuntimeLoopExit:
    """Claim jobs of the registered types and run their handlers until stopped and drained.

    Handlers run on threads of their own; the engine uses connections of its own, opened with the
    pool's settings. A dead database is retried for ever. With no registered types nothing is asked.

    Args:
        pool: Lends connections to handlers' services; its settings open the engine's.
        stop: Ends claiming; the loop returns when every running handler has ended and is stored.
        observers: Told of this worker's attempts; the loop waits for them when it ends.
            None for none.

    Returns:
        `SHUTDOWN` after a stop, the refused setting before any database work, `TooFewConnections`
        if the server has had no room for one of the loop's connections for the first minute, or
        `TooManyStuckHandlers` if more than `max_stuck_handlers` are stuck and the process should
        be restarted.

    Raises:
        BaseException: What ended one of the loop's threads; handlers were told to stop, and those
            that outlast `handler_grace_seconds` are left behind.
    """
    try:
        config.validate_worker()
    except JobsConfigError as error:
        return InvalidConfig(error)
    if stop.is_requested:
        return LoopExit.SHUTDOWN
    registry.freeze()
    if not registry.registered_types():
        stop.wait(None)
        return LoopExit.SHUTDOWN
    health = health or LoopHealth("worker")
    # One event loop for all handlers and hooks.
    with registry.event_loop.held():
        return _Worker(pool, registry, config, stop, health, observers=observers).run()


class _Worker:
    """The parts of one worker, started and ended in order."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        registry: JobRegistry,
        config: JobsConfig,
        stop: StopToken,
        health: LoopHealth,
        *,
        observers: JobLifecycleObservers | None,
    ) -> None:
        self._asked = stop
        # Its own, so that too few connections can end it as a stop would.
        self._stop = StopToken()
        stop.add_callback(lambda: self._stop.request(stop.reason or "requested"))
        self._health = health
        self._grace = config.handler_grace_seconds
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self._book = LeaseBook()
        health.runs_jobs(count=self._book.__len__, slots=config.max_global_concurrency)
        stop.add_abort_callback(lambda: self._book.cancel_all(CancelReason.SHUTDOWN))
        self._shortage = ConnectionShortage(
            [*_CONNECTIONS, *(_WAKEUP_CONNECTIONS if config.wakeups else ())],
            health,
            on_verdict=lambda: self._stop.request("too few connections"),
        )
        self._connections = EngineConnections(pool, shortage=self._shortage)
        self._direct = EngineConnections(
            pool, conninfo=config.direct_database_url, shortage=self._shortage
        )
        self._link = _pump_link(self._connections, pool, config)
        self._keeper = self._lease_keeper(registry, config)
        self._listener: Listener | None = None
        marks: SleepMarks | None = None
        self._types = frozenset(registry.registered_types())
        if config.wakeups:
            self._listener = listener = Listener(
                self._direct, on_wake=self._wake, on_cancel=self._cancel
            )
            health.listens(is_heard=lambda: listener.is_proven)
            marks = SleepMarks(self._direct, self._listener, sorted(self._types))
        self._observing = _observing(observers, config, stop)
        self._pump = Pump(
            config,
            registry,
            stop=self._stop,
            book=self._book,
            link=self._link,
            sleep=Sleep(marks, poll_interval_seconds=config.poll_interval_ms / 1000),
            hooks=_hooks(registry, pool, stop, health),
            observing=self._observing,
            health=health,
        )
        stop.add_abort_callback(self._hurry)
        self._timekeeper = Timekeeper(
            self._book,
            self._pump.deliver,
            event_loop=registry.event_loop,
            grace_seconds=config.handler_grace_seconds,
        )

    def run(self) -> RuntimeLoopExit:
        helpers: list[Helper] = [self._keeper, self._timekeeper]
        if self._listener is not None:
            helpers.append(self._listener)
        for helper in helpers:
            helper.begin(self._helper_failed)
        try:
            self._pump.run()
        finally:
            self._is_over.set()
            if self._observing is not None:
                self._observing.finish()
            # Leases are kept until the pump has let go of the last one.
            self._timekeeper.finish()
            self._keeper.finish()
            if self._listener is not None:
                self._listener.finish()
            self._connections.close()
            self._direct.close()
        if self._failures:
            raise self._failures[0]
        if self._shortage.verdict is not None and not self._asked.is_requested:
            return self._shortage.verdict
        return self._pump.verdict or LoopExit.SHUTDOWN

    def _hurry(self) -> None:
        self._link.hurry()
        # It may wait for the server.
        self._pump.wake()

    def _helper_failed(self, error: BaseException) -> None:
        """End the worker: nobody may keep its leases now, or give up who overstays."""
        self._failures.append(error)
        self._health.failed(error)
        self._stop.request("a thread of the worker failed")
        _logger.critical("a thread of the worker failed", exc_info=error)
        # As at an abort, but on the thread that has nothing else to do any more.
        with suppress(RuntimeError):
            self._book.cancel_all(CancelReason.SHUTDOWN)
        self._is_over.wait(self._grace)
        for execution in self._book.executions():
            if execution.end():
                self._pump.deliver(execution, Ending.GIVEN_UP, None)

    def _lease_keeper(self, registry: JobRegistry, config: JobsConfig) -> LeaseKeeper:
        return LeaseKeeper(
            self._book,
            self._connections,
            worker_id=config.worker_id,
            job_types=registry.registered_types(),
            concurrency=config.max_global_concurrency,
            lease_ttl_seconds=config.lease_ttl_seconds,
            state=self._state,
        )

    def _state(self) -> WorkerState:
        if self._pump.is_unhealthy:
            return WorkerState.UNHEALTHY
        return WorkerState.DRAINING if self._stop.is_requested else WorkerState.RUNNING

    def _wake(self, job_type: str | None) -> None:
        if job_type is None or job_type in self._types:
            self._pump.wake()
        if job_type is None and self._book:
            # A cancel may have been notified while nobody listened.
            self._keeper.beat_soon()

    def _cancel(self, job_ids: Sequence[UUID]) -> None:
        # Anybody may notify: the beat asks the database whether it is so.
        if any(self._book.find(job_id) is not None for job_id in job_ids):
            self._keeper.beat_soon()


def _pump_link(
    connections: EngineConnections, pool: ConnectionPool[Any], config: JobsConfig
) -> PumpLink:
    return PumpLink(
        connections,
        pool,
        worker_id=config.worker_id,
        lease_ttl_seconds=config.lease_ttl_seconds,
    )


def _hooks(
    registry: JobRegistry, pool: ConnectionPool[Any], stop: StopToken, health: LoopHealth
) -> DeadLetterHooks:
    hooks = DeadLetterHooks(registry, pool)
    health.calls_hooks(lambda: hooks.has_work)
    stop.add_abort_callback(hooks.abandon)
    return hooks


def _observing(
    observers: JobLifecycleObservers | None, config: JobsConfig, stop: StopToken
) -> Observing | None:
    if not observers:
        return None
    observing = Observing(observers, concurrency=config.max_global_concurrency)
    stop.add_abort_callback(observing.hurry)
    return observing
