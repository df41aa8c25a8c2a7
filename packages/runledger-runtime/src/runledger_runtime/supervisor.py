"""The Supervisor: runs the loops of one process, and ends them together."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from psycopg_pool import ConnectionPool

from runledger_core import ValidationError, codes
from runledger_postgres import require_own_pool

from .catalog import JobCatalog
from .config import JobsConfig, instance_worker_id
from .errors import (
    InvalidJobsConfigError,
    JobsConfigError,
    MissingRegistryError,
    MixedRegistrySourcesError,
    RuntimeLoopExit,
    SupervisorError,
)
from .health import LoopHealth, SupervisorHealth
from .observers import JobLifecycleObserver, JobLifecycleObservers
from .reaper import run_reaper_loop
from .registry import JobRegistry
from .safe_log import safe_logger
from .scheduler import run_scheduler_loop
from .shutdown import StopToken, SupervisorShutdown, check_process
from .stop_sources import StopSource
from .task_group import TaskGroup
from .worker import run_worker_loop

DEFAULT_SHUTDOWN_TIMEOUT_SECONDS: Final = 30.0
WORKER_LOOP: Final = "worker"
SCHEDULER_LOOP: Final = "scheduler"
REAPER_LOOP: Final = "reaper"

_logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Loop:
    name: str
    run: Callable[[StopToken, LoopHealth], RuntimeLoopExit]


class Supervisor:
    """Run the worker, the scheduler and the reaper of one process until it is time to stop.

    `run_until_shutdown` is what a worker process calls. A loop that ends by itself is fatal: the
    others are asked to stop and its error is raised. As a context manager, it stops its loops at
    the end of the block. One that is dropped asks its loops to stop and warns.

    Its threads are daemons: after the deadline of a stop the process can always end. All errors
    it raises are meant to end the process; close the pool after that. In a forked child, where its
    threads do not exist, every method raises `supervisor.forked`.

    Attributes:
        worker_id: Its name in rows; no other Supervisor has the same.
    """

    def __init__(self, loops: list[_Loop], *, worker_id: str) -> None:
        """Start the loops; `Supervisor.builder` makes the list."""
        self.worker_id = worker_id
        self._pid = os.getpid()
        self._stop = StopToken()
        self._tasks = TaskGroup(self._stop)
        self._health = {loop.name: LoopHealth(loop.name) for loop in loops}
        # Not bound to self: threads and finalizer must not keep a dropped Supervisor alive.
        self._finalizer = weakref.finalize(self, _dropped, self._tasks, self._stop, self._pid)
        try:
            for loop in loops:
                self._tasks.spawn(loop.name, partial(loop.run, self._stop, self._health[loop.name]))
        except SupervisorError:
            self._finalizer.detach()
            self._stop.request("start failed")
            raise

    @staticmethod
    def builder(pool: ConnectionPool[Any], config: JobsConfig | None = None) -> SupervisorBuilder:
        """Return a builder for a Supervisor on a pool.

        Args:
            pool: Lends connections to handlers; its settings make the loops' own connections.
            config: Settings; those of the environment if None.

        Raises:
            JobsConfigError: A `config.*` code, if the environment is read.
            ValidationError: `input.wrong_type` if it is no pool.
        """
        return SupervisorBuilder(pool, JobsConfig.from_env() if config is None else config)

    def shutdown_handle(self) -> SupervisorShutdown:
        """Return a handle that other threads may ask for a stop."""
        check_process(self._pid)
        return SupervisorShutdown(self._stop)

    def request_shutdown(self) -> None:
        """Ask the loops to stop and do not wait; only the first request counts."""
        check_process(self._pid)
        self._stop.request("request_shutdown")

    @property
    def is_shutdown_requested(self) -> bool:
        """Whether the loops were asked to stop, by anyone or because one failed."""
        check_process(self._pid)
        return self._stop.is_requested

    def health(self) -> SupervisorHealth:
        """Return how each loop is doing: last pass, last error, backlog, stuck handlers."""
        check_process(self._pid)
        states = self._tasks.states
        return SupervisorHealth(
            tuple(self._health[name].status(state) for name, state in states.items()),
            self._stop.is_requested,
        )

    def join(self) -> None:
        """Wait until all loops have ended, for as long as that takes.

        Raises:
            SupervisorError: A `supervisor.*` code for the first loop that failed; later ones are
                in the log. A failure is raised once.
        """
        check_process(self._pid)
        self._tasks.join()

    def shutdown(self) -> None:
        """Ask the loops to stop and wait for them, for as long as that takes.

        Raises:
            SupervisorError: As `join`, also for a loop that failed before.
        """
        check_process(self._pid)
        self._tasks.shutdown()

    def shutdown_with_timeout(self, timeout: float) -> None:
        """Ask the loops to stop and wait for them, up to a deadline.

        Handlers that still run then are told why: `CancelReason.SHUTDOWN`. They have a second to
        end, or `timeout` if that is less, before this raises.

        Args:
            timeout: Seconds; 0 does not wait at all.

        Raises:
            SupervisorError: As `join`; `supervisor.shutdown_timeout` or
                `supervisor.shutdown_timeout_after_task_error`, naming the loops that were late;
                `supervisor.shutdown_timeout_too_large` before anything was asked to stop.
            ValidationError: `input.wrong_type` or `input.out_of_range` for the timeout.
        """
        check_process(self._pid)
        self._tasks.shutdown_with_timeout(timeout)

    def run_until_shutdown(
        self, stop: StopSource = None, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_SECONDS
    ) -> None:
        """Run until it is time to stop or a loop fails, then stop all loops.

        A stop requested otherwise, by a handle for instance, starts the deadline too. What comes
        after it is told at `shutdown_with_timeout`.

        Args:
            stop: An Event, a function that blocks until it is time, or None for SIGINT and
                SIGTERM, whose handlers are put back at the end; `StopSignals` that were entered
                before `build` miss none. A second signal does at once what the deadline does,
                further ones do nothing. An Event or a function that raises says stop, too; its
                error is raised at the end.
            timeout: Seconds that the loops have to end, from the stop on; 0 does not wait.

        Raises:
            SupervisorError: As `shutdown_with_timeout`; `supervisor.shutdown_aborted` after a
                second signal; `supervisor.signals_unavailable` outside the main thread.
            ValidationError: `input.wrong_type` or `input.out_of_range` for an argument.
        """
        check_process(self._pid)
        self._tasks.run_until_shutdown(stop, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A child forked inside the block has no loops to stop.
        if os.getpid() != self._pid:
            return
        try:
            self._tasks.shutdown_with_timeout(DEFAULT_SHUTDOWN_TIMEOUT_SECONDS)
        except SupervisorError as failure:
            if error is None:
                raise
            # The block's own error is the one to raise.
            _logger.exception("the supervisor did not end well", exc_info=failure)


class SupervisorBuilder:
    """Choose the loops and handlers of a Supervisor; methods return the builder."""

    def __init__(self, pool: ConnectionPool[Any], config: JobsConfig) -> None:
        """Take pool and settings; `Supervisor.builder` does this."""
        if not isinstance(pool, ConnectionPool):  # pyright: ignore[reportUnnecessaryIsInstance]  # not all callers are checked
            raise ValidationError(
                codes.INPUT_WRONG_TYPE, "pool must be a psycopg_pool.ConnectionPool", field="pool"
            )
        self._pool = pool
        self._config = config
        self._catalog: JobCatalog | None = None
        self._registry: JobRegistry | None = None
        self._worker_enabled = True
        self._scheduler_enabled = True
        self._reaper_enabled = True
        self._observers = JobLifecycleObservers.empty()

    def with_catalog(self, catalog: JobCatalog) -> Self:
        """Take the handlers of a catalog; `build` freezes it. Definitions are not synced."""
        self._catalog = catalog
        return self

    def with_registry(self, registry: JobRegistry) -> Self:
        """Take the handlers of a registry, instead of a catalog; `build` freezes it."""
        self._registry = registry
        return self

    def disable_worker(self) -> Self:
        """Claim and run no jobs."""
        self._worker_enabled = False
        return self

    def disable_scheduler(self) -> Self:
        """Leave schedules to other processes."""
        self._scheduler_enabled = False
        return self

    def disable_reaper(self) -> Self:
        """Leave expired leases to other processes."""
        self._reaper_enabled = False
        return self

    def with_job_lifecycle_observer(self, observer: JobLifecycleObserver) -> Self:
        """Have one observer more told what becomes of attempts, by the worker and the reaper.

        Raises:
            ValidationError: An `observer.*` code if it cannot be called.
        """
        self._observers = self._observers.with_observer(observer)
        return self

    def build(self) -> Supervisor:
        """Start the enabled loops; the database may be away.

        Raises:
            SupervisorError: `supervisor.invalid_jobs_config` for any setting, whatever loops are
                enabled; `supervisor.mixed_registry_sources`; `supervisor.missing_registry`;
                `supervisor.task_failed` if a thread cannot be started.
            ValidationError: `db.forked` if the pool is that of a parent process.
        """
        require_own_pool(self._pool)
        try:
            self._config.validate()
        except JobsConfigError as error:
            raise InvalidJobsConfigError(error) from error
        registry = self._frozen_registry()
        config = replace(self._config, worker_id=instance_worker_id(self._config))
        return Supervisor(self._loops(registry, config), worker_id=config.worker_id)

    def _frozen_registry(self) -> JobRegistry:
        if self._catalog is not None and self._registry is not None:
            raise MixedRegistrySourcesError
        registry = self._registry
        if self._catalog is not None:
            self._catalog.freeze()
            registry = self._catalog.to_registry()
        if registry is None:
            if self._worker_enabled or self._reaper_enabled:
                raise MissingRegistryError(
                    worker_enabled=self._worker_enabled, reaper_enabled=self._reaper_enabled
                )
            registry = JobRegistry()
        registry.freeze()
        return registry

    def _loops(self, registry: JobRegistry, config: JobsConfig) -> list[_Loop]:
        """Return the enabled loops in the order in which they are started."""
        pool, observers = self._pool, self._observers
        worker = _Loop(
            WORKER_LOOP,
            lambda stop, health: run_worker_loop(
                pool, registry, config, stop, health=health, observers=observers
            ),
        )
        scheduler = _Loop(
            SCHEDULER_LOOP,
            lambda stop, health: run_scheduler_loop(pool, config, stop, health=health),
        )
        reaper = _Loop(
            REAPER_LOOP,
            lambda stop, health: run_reaper_loop(
                pool, config, stop, registry=registry, health=health, observers=observers
            ),
        )
        choices = (
            (self._worker_enabled, worker),
            (self._scheduler_enabled, scheduler),
            (self._reaper_enabled, reaper),
        )
        return [loop for is_enabled, loop in choices if is_enabled]


def _dropped(tasks: TaskGroup, stop: StopToken, pid: int) -> None:
    if os.getpid() != pid or tasks.is_settled:
        return
    stop.request("dropped")
    _logger.warning(
        "a supervisor was dropped before its loops were joined; later failures go unseen",
        extra={"loops": tasks.names},
    )
    warnings.warn(
        "a Supervisor was dropped before its loops were joined", ResourceWarning, stacklevel=2
    )
