"""One worker: the pump in the calling thread, its helpers beside it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from runledger_postgres.workers import WorkerState

from ..config import JobsConfig
from ..dead_letters import DeadLetterHooks
from ..engine import ConnectionCount, EngineConnections
from ..errors import InvalidConfig, JobsConfigError, LoopExit, RuntimeLoopExit
from ..health import LoopHealth
from ..registry import JobRegistry
from ..shutdown import StopToken
from ._book import LeaseBook
from ._lease_keeper import LeaseKeeper
from ._link import PumpLink
from ._pump import Pump
from ._sleep import Sleep
from ._timekeeper import Timekeeper
from ._wakeup import Listener, SleepMarks

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

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
) -> RuntimeLoopExit:
    """Claim jobs of the registered types and run their handlers until stopped and drained.

    Handlers run on threads of their own; the engine uses connections of its own, opened with the
    pool's settings. A dead database is retried for ever. With no registered types nothing is asked.

    Args:
        pool: Lends connections to handlers' services; its settings open the engine's.
        stop: Ends claiming; the loop returns when every running handler has ended and is stored.

    Returns:
        `SHUTDOWN` after a stop, the refused setting before any database work, `TooFewConnections`
        if the server has had no room for one of the loop's connections for the first minute, or
        `COMPLETED` if more than `max_stuck_handlers` threads are stuck and the process should be
        restarted.
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
    return _Worker(pool, registry, config, stop, health or LoopHealth("worker")).run()


class _Worker:
    """The parts of one worker, started and ended in order."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        registry: JobRegistry,
        config: JobsConfig,
        stop: StopToken,
        health: LoopHealth,
    ) -> None:
        self._asked = stop
        # Its own, so that too few connections can end it as a stop would.
        self._stop = StopToken()
        stop.add_callback(lambda: self._stop.request(stop.reason or "requested"))
        self._book = LeaseBook()
        self._count = ConnectionCount(
            [*_CONNECTIONS, *(_WAKEUP_CONNECTIONS if config.wakeups else ())],
            health,
            on_verdict=lambda: self._stop.request("too few connections"),
        )
        self._connections = EngineConnections(pool, count=self._count)
        self._direct = EngineConnections(
            pool, conninfo=config.direct_database_url, count=self._count
        )
        self._keeper = LeaseKeeper(
            self._book,
            self._connections,
            worker_id=config.worker_id,
            job_types=registry.registered_types(),
            concurrency=config.max_global_concurrency,
            lease_ttl_seconds=config.lease_ttl_seconds,
            state=self._state,
        )
        self._listener: Listener | None = None
        marks: SleepMarks | None = None
        self._types = frozenset(registry.registered_types())
        if config.wakeups:
            self._listener = Listener(self._direct, on_wake=self._wake, on_cancel=self._cancel)
            marks = SleepMarks(self._direct, self._listener, sorted(self._types))
        self._pump = Pump(
            config,
            registry,
            stop=self._stop,
            book=self._book,
            link=PumpLink(
                self._connections,
                pool,
                worker_id=config.worker_id,
                lease_ttl_seconds=config.lease_ttl_seconds,
            ),
            sleep=Sleep(marks, poll_interval_seconds=config.poll_interval_ms / 1000),
            hooks=DeadLetterHooks(registry, pool),
            health=health,
        )
        self._timekeeper = Timekeeper(
            self._book, self._pump.deliver, grace_seconds=config.handler_grace_seconds
        )

    def run(self) -> RuntimeLoopExit:
        helpers: list[threading.Thread] = [self._keeper, self._timekeeper]
        if self._listener is not None:
            helpers.append(self._listener)
        for helper in helpers:
            helper.start()
        try:
            self._pump.run()
        finally:
            # Leases are kept until the pump has let go of the last one.
            self._timekeeper.finish()
            self._keeper.finish()
            if self._listener is not None:
                self._listener.finish()
            self._connections.close()
            self._direct.close()
        if self._count.verdict is not None and not self._asked.is_requested:
            return self._count.verdict
        return LoopExit.COMPLETED if self._pump.is_unhealthy else LoopExit.SHUTDOWN

    def _state(self) -> WorkerState:
        if self._pump.is_unhealthy:
            return WorkerState.UNHEALTHY
        return WorkerState.DRAINING if self._stop.is_requested else WorkerState.RUNNING

    def _wake(self, job_type: str | None) -> None:
        if job_type is None or job_type in self._types:
            self._pump.wake()

    def _cancel(self, job_ids: Sequence[UUID]) -> None:
        # Anybody may notify: the beat asks the database whether it is so.
        if any(self._book.find(job_id) is not None for job_id in job_ids):
            self._keeper.beat_soon()
