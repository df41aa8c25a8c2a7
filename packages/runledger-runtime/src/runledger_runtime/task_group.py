"""The threads of a Supervisor's loops: started together, stopped together, none lost silently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from runledger_core import ValidationError, codes

from .errors import (
    InvalidConfig,
    InvalidJobsConfigError,
    LoopExit,
    RuntimeLoopExit,
    ShutdownAbortedError,
    ShutdownTimeoutAfterTaskError,
    ShutdownTimeoutError,
    ShutdownTimeoutTooLargeError,
    SupervisorError,
    TaskExitedUnexpectedlyError,
    TaskFailedError,
    TooFewConnections,
    TooFewConnectionsError,
    TooManyStuckHandlers,
)
from .health import LoopState
from .safe_log import safe_logger
from .shutdown import StopToken
from .stop_sources import StopSource, watch

_logger = safe_logger(__name__)


class _Wake(Enum):
    """Why a waiting thread looks again."""

    TASK = "a task ended"
    REQUEST = "a stop was requested"
    SOURCE = "the stop source or a signal fired"


# A signal that comes just before its thread begins to wait does not end that wait, so that its
# handler would run only after it.
_LONGEST_WAIT_SECONDS: Final = 0.2

# After an abort: time for handlers that mind their token, though never more than the stop had.
_UNWIND_SECONDS: Final = 1.0

# Unlike a condition or an event it may be filled by a signal handler that interrupts its reader.
_Inbox: TypeAlias = "SimpleQueue[_Wake]"


class TaskGroup:
    """Run named daemon threads and keep the first failure; thread-safe.

    A task that fails asks the others to stop at once, whether or not somebody waits. A thread
    cannot be ended from outside: at an abort the handlers are told, and a task that goes on is
    abandoned, and named.
    """

    def __init__(self, stop: StopToken) -> None:
        """Make a group without tasks whose failures request `stop`."""
        self._stop = stop
        self._lock = threading.Lock()
        self._states: dict[str, LoopState] = {}
        self._failures: list[SupervisorError] = []
        self._inboxes: list[_Inbox] = []

    @property
    def names(self) -> list[str]:
        """The tasks, in the order in which they were started."""
        return list(self._states)

    @property
    def states(self) -> dict[str, LoopState]:
        """The state of each task."""
        with self._lock:
            return dict(self._states)

    @property
    def is_settled(self) -> bool:
        """Whether no task runs and every failure was raised."""
        with self._lock:
            return not self._failures and LoopState.RUNNING not in self._states.values()

    def spawn(self, name: str, run: Callable[[], RuntimeLoopExit]) -> None:
        """Start a task in a thread of its own.

        Raises:
            TaskFailedError: `supervisor.task_failed` if there is no thread to be had.
        """
        thread = threading.Thread(
            target=self._run, args=(name, run), name=f"runledger-{name}", daemon=True
        )
        with self._lock:
            self._states[name] = LoopState.RUNNING
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._states[name] = LoopState.FAILED
            raise TaskFailedError(name, error) from error

    def join(self) -> None:
        """Wait until all tasks have ended, for as long as that takes.

        Raises:
            SupervisorError: The first failure; later ones are in the log.
        """
        with self._inbox() as inbox:
            self._drain(inbox, timeout=None)
        self._raise_first_failure()

    def shutdown(self) -> None:
        """Ask the tasks to stop and wait for them, for as long as that takes.

        Raises:
            SupervisorError: The first failure; later ones are in the log.
        """
        self._stop.request("shutdown")
        self.join()

    def shutdown_with_timeout(self, timeout: float) -> None:
        """Ask the tasks to stop and wait for them, but no longer than `timeout` seconds.

        Raises:
            SupervisorError: The first failure, or that the deadline was missed.
            ValidationError: `input.wrong_type` or `input.out_of_range` for the timeout.
        """
        _check_timeout(timeout)
        with self._inbox() as inbox:
            self._stop.request("shutdown")
            self._drain(inbox, timeout=timeout)
        self._raise_first_failure()

    def run_until_shutdown(self, source: StopSource, timeout: float) -> None:
        """Wait until the source says stop or a task fails, then stop the tasks.

        Without tasks it waits for the source. A second signal ends the wait, further ones do
        nothing.

        Raises:
            SupervisorError: The first failure, or that the deadline was missed.
            ValidationError: `input.wrong_type` or `input.out_of_range` for an argument.
        """
        _check_timeout(timeout)
        with self._inbox() as inbox, watch(source, lambda: inbox.put(_Wake.SOURCE)):
            fired = self._wait_for_stop(inbox)
            # A request, by a handle or by a task that failed, starts the same budget.
            self._drain(inbox, timeout=timeout, fired=fired)
        self._raise_first_failure()

    def _wait_for_stop(self, inbox: _Inbox) -> int:
        self._stop.add_callback(lambda: inbox.put(_Wake.REQUEST))
        has_tasks = bool(self._states)
        while not self._stop.is_requested and (self._running() or not has_tasks):
            if _received(inbox) is _Wake.SOURCE:
                self._stop.request("stop source")
                return 1
        return 0

    def _drain(self, inbox: _Inbox, *, timeout: float | None, fired: int = 0) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while running := self._running():
            remaining = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and remaining is not None and remaining <= 0:
                raise self._timed_out(inbox, timeout, running)
            fired += _received(inbox, remaining) is _Wake.SOURCE
            if timeout is not None and fired > 1:
                self._abort(inbox, timeout)
                raise ShutdownAbortedError(running)

    def _timed_out(self, inbox: _Inbox, timeout: float, running: list[str]) -> SupervisorError:
        failure = self._abort(inbox, timeout)
        if failure is not None:
            return ShutdownTimeoutAfterTaskError(timeout, running, source=failure)
        return ShutdownTimeoutError(timeout, running)

    def _abort(self, inbox: _Inbox, timeout: float) -> SupervisorError | None:
        """Have handlers told, give them a moment, abandon what goes on; return the failure."""
        with self._lock:
            failure = self._take_first_failure_locked()
        self._stop.abort()
        give_up_at = time.monotonic() + min(timeout, _UNWIND_SECONDS)
        # Further signals change nothing: handlers have begun to give their jobs back.
        while self._running() and (remaining := give_up_at - time.monotonic()) > 0:
            _received(inbox, remaining)
        with self._lock:
            self._states |= dict.fromkeys(self._running_locked(), LoopState.ABANDONED)
            # One error is raised, that of the abort; what failed meanwhile is in the log.
            self._failures.clear()
        return failure

    def _raise_first_failure(self) -> None:
        with self._lock:
            failure = self._take_first_failure_locked()
        if failure is not None:
            raise failure

    def _take_first_failure_locked(self) -> SupervisorError | None:
        failure = self._failures[0] if self._failures else None
        self._failures.clear()
        return failure

    def _running(self) -> list[str]:
        with self._lock:
            return self._running_locked()

    def _running_locked(self) -> list[str]:
        return [name for name, state in self._states.items() if state is LoopState.RUNNING]

    @contextmanager
    def _inbox(self) -> Generator[_Inbox]:
        inbox: _Inbox = SimpleQueue()
        with self._lock:
            self._inboxes.append(inbox)
        try:
            yield inbox
        finally:
            with self._lock:
                self._inboxes.remove(inbox)

    def _run(self, name: str, run: Callable[[], RuntimeLoopExit]) -> None:
        try:
            failure = _judged(name, run())
        except BaseException as error:  # noqa: BLE001  # a thread's end must never go unnoticed
            failure = TaskFailedError(name, error)
        if failure is not None:
            _logger.error("a supervised loop failed", extra={"loop": name}, exc_info=failure)
            self._stop.request(f"the {name} loop failed")
        with self._lock:
            # An abandoned task that ends after all has been reported already.
            if self._states[name] is LoopState.RUNNING:
                self._states[name] = LoopState.FAILED if failure else LoopState.STOPPED
                if failure is not None:
                    self._failures.append(failure)
            inboxes = list(self._inboxes)
        for inbox in inboxes:
            inbox.put(_Wake.TASK)


def _received(inbox: _Inbox, seconds: float | None = None) -> _Wake | None:
    longest = _LONGEST_WAIT_SECONDS
    try:
        return inbox.get(timeout=longest if seconds is None else min(seconds, longest))
    except Empty:
        return None


def _judged(name: str, loop_exit: RuntimeLoopExit) -> SupervisorError | None:
    match loop_exit:
        case LoopExit.SHUTDOWN:
            return None
        case InvalidConfig(error):
            return InvalidJobsConfigError(error, task=name)
        case TooFewConnections():
            return TooFewConnectionsError(name, loop_exit)
        case TooManyStuckHandlers(stuck, most):
            reason = (
                f"{stuck} handlers, or calls of theirs in threads, go on after they were told to"
                f" stop; {most} may"
            )
            return TaskExitedUnexpectedlyError(name, reason=reason)
        case _:
            return TaskExitedUnexpectedlyError(name)


def _check_timeout(timeout: object) -> None:
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise ValidationError(
            codes.INPUT_WRONG_TYPE, "timeout must be a number of seconds", field="timeout"
        )
    if timeout > threading.TIMEOUT_MAX:
        raise ShutdownTimeoutTooLargeError(timeout)
    # NaN is less than nothing, and not more either.
    if not timeout >= 0:
        raise ValidationError(
            codes.INPUT_OUT_OF_RANGE, "timeout must be 0 seconds or more", field="timeout"
        )
