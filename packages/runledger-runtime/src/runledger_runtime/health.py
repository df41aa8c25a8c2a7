"""What a Supervisor tells about its loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from runledger_core import RunledgerError, type_name


class LoopState(StrEnum):
    """Tell whether a loop still runs; ABANDONED ones ran on past the deadline of a stop."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """Tell how one loop is doing.

    Attributes:
        name: The loop.
        state: Whether it runs.
        last_pass_at: End of its last complete pass, by the local clock; None before the first.
        last_error: Its last error, safe to show; kept after the loop has recovered.
        last_error_at: When that was, by the local clock.
        consecutive_errors: Errors since the last complete pass; 0 if all is well.
        backlog: Rows known to wait for the loop; None if unknown.
        stuck_handlers: Handlers that went on after they were told to stop, and calls of theirs in
            threads.
        unhealthy_reason: Why the process should be restarted; None if it need not be.
        missing_connections: Those of the engine's own that the server has no room for now.
        running_jobs: Jobs that the loop holds: those that run, and those whose end is being stored;
            None if it runs none by its nature.
        job_slots: How many it may run at once; None as before.
        is_woken: Whether notifications reach it, so that it need not wait for its next poll; None
            if it listens for none.
        has_hooks: Whether dead-letter hooks run or wait.
        is_pausing: Whether it claims nothing for a moment, since a handler could not be started.
        left_out_jobs: Jobs whose claim the server refused when it was last tried.
    """

    name: str
    state: LoopState
    _: KW_ONLY
    last_pass_at: datetime | None = None
    last_error: str | None = None
    last_error_at: datetime | None = None
    consecutive_errors: int = 0
    backlog: int | None = None
    stuck_handlers: int = 0
    unhealthy_reason: str | None = None
    missing_connections: tuple[str, ...] = ()
    running_jobs: int | None = None
    job_slots: int | None = None
    is_woken: bool | None = None
    has_hooks: bool = False
    is_pausing: bool = False
    left_out_jobs: tuple[UUID, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether a restart would not help; a loop that waits for its database is healthy."""
        return self.unhealthy_reason is None and self.state in {
            LoopState.RUNNING,
            LoopState.STOPPED,
        }


@dataclass(frozen=True, slots=True)
class SupervisorHealth:
    """Tell how a Supervisor is doing.

    Attributes:
        loops: Its loops, in the order in which they were started.
        is_shutdown_requested: Whether they were asked to stop.
    """

    loops: tuple[LoopStatus, ...]
    is_shutdown_requested: bool

    @property
    def is_healthy(self) -> bool:
        """Whether all loops are healthy."""
        return all(loop.is_healthy for loop in self.loops)


class LoopHealth:
    """Keep what a loop reports about itself; thread-safe."""

    def __init__(self, name: str) -> None:
        """Start with nothing reported for the loop of this name."""
        self.name = name
        self._lock = threading.Lock()
        self._last_pass_at: datetime | None = None
        self._last_error: str | None = None
        self._last_error_at: datetime | None = None
        self._consecutive_errors = 0
        self._backlog: int | None = None
        self._stuck_handlers = 0
        self._unhealthy_reason: str | None = None
        self._missing_connections: tuple[str, ...] = ()
        self._count_running: Callable[[], int] | None = None
        self._job_slots: int | None = None
        self._is_woken: Callable[[], bool] | None = None
        self._has_hooks: Callable[[], bool] | None = None
        self._is_pausing: Callable[[], bool] | None = None
        self._left_out_jobs: tuple[UUID, ...] = ()

    def passed(self, *, backlog: int | None = None) -> None:
        """Report a complete pass.

        Args:
            backlog: Rows known to wait; None if unknown.
        """
        with self._lock:
            self._last_pass_at = datetime.now(UTC)
            self._consecutive_errors = 0
            self._backlog = backlog

    def failed(self, error: BaseException) -> None:
        """Report a pass that failed; of errors that are not ours only the type is kept."""
        with self._lock:
            is_ours = isinstance(error, RunledgerError)
            self._last_error = str(error) if is_ours else type_name(error)
            self._last_error_at = datetime.now(UTC)
            self._consecutive_errors += 1

    def stuck_handlers_changed(self, count: int) -> None:
        """Report how many handlers go on though they were told to stop."""
        with self._lock:
            self._stuck_handlers = count

    def connections_missing(self, names: Sequence[str]) -> None:
        """Report which of the loop's connections the server has no room for."""
        with self._lock:
            self._missing_connections = tuple(names)

    def runs_jobs(self, *, count: Callable[[], int], slots: int) -> None:
        """Report how to count the jobs that run, whenever somebody asks, and how many may."""
        with self._lock:
            self._count_running, self._job_slots = count, slots

    def listens(self, *, is_heard: Callable[[], bool]) -> None:
        """Report how to tell whether notifications arrive, whenever somebody asks."""
        with self._lock:
            self._is_woken = is_heard

    def calls_hooks(self, has_hooks: Callable[[], bool]) -> None:
        """Report how to tell whether dead-letter hooks run or wait, whenever somebody asks."""
        with self._lock:
            self._has_hooks = has_hooks

    def pauses(self, is_pausing: Callable[[], bool]) -> None:
        """Report how to tell whether claims pause, whenever somebody asks."""
        with self._lock:
            self._is_pausing = is_pausing

    def jobs_left_out(self, jobs: Sequence[UUID]) -> None:
        """Report the jobs whose claim the server refuses."""
        with self._lock:
            self._left_out_jobs = tuple(jobs)

    def unhealthy(self, reason: str | None) -> None:
        """Report why the process should be restarted, or with None that it need not be."""
        with self._lock:
            self._unhealthy_reason = reason

    def status(self, state: LoopState) -> LoopStatus:
        """Return what was reported so far."""
        # Outside of the lock: hooks have one of their own.
        has_hooks = self._has_hooks is not None and self._has_hooks()
        with self._lock:
            return LoopStatus(
                self.name,
                state,
                last_pass_at=self._last_pass_at,
                last_error=self._last_error,
                last_error_at=self._last_error_at,
                consecutive_errors=self._consecutive_errors,
                backlog=self._backlog,
                stuck_handlers=self._stuck_handlers,
                unhealthy_reason=self._unhealthy_reason,
                missing_connections=self._missing_connections,
                running_jobs=None if self._count_running is None else self._count_running(),
                job_slots=self._job_slots,
                is_woken=None if self._is_woken is None else self._is_woken(),
                has_hooks=has_hooks,
                is_pausing=self._is_pausing is not None and self._is_pausing(),
                left_out_jobs=self._left_out_jobs,
            )
