"""Requests to stop: the token that loops look at, and where requests come from."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from runledger_core import ValidationError, codes

from .errors import ForkedSupervisorError, ShutdownAbortedError, SignalsUnavailableError

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_EVENT_LOOK_SECONDS: Final = 0.2
# Long enough for a process to end; then a signal does again what it did before.
_DEAF_SECONDS: Final = 5.0

_logger = logging.getLogger(__name__)


class StopToken:
    """Tell loops to stop, once and for all; thread-safe.

    Not for signal handlers: they may interrupt the very thread that holds its lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._reason: str | None = None
        self._requested_at: float | None = None

    @property
    def is_requested(self) -> bool:
        """Whether the loops should stop."""
        return self._event.is_set()

    @property
    def reason(self) -> str | None:
        """Why they should; None while they should not."""
        return self._reason

    @property
    def requested_at(self) -> float | None:
        """Return the first request's `time.monotonic()`; None before it."""
        return self._requested_at

    def request(self, reason: str = "requested") -> None:
        """Ask the loops to stop; only the first request counts."""
        with self._lock:
            if self._event.is_set():
                return
            self._reason, self._requested_at = reason, time.monotonic()
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the loops should stop, or for `timeout` seconds.

        Returns:
            Whether they should stop.
        """
        return self._event.wait(timeout)

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Have a function called once when a stop is requested, at once if it has been."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        _call(callback)


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _logger.exception("a stop callback failed")


class SupervisorShutdown:
    """Ask a Supervisor to stop, from anywhere in its process but a signal handler."""

    def __init__(self, stop: StopToken) -> None:
        """Wrap the token of a Supervisor; `Supervisor.shutdown_handle` does this."""
        self._stop = stop
        self._pid = os.getpid()

    @property
    def is_shutdown_requested(self) -> bool:
        """Whether its loops were asked to stop.

        Raises:
            ForkedSupervisorError: `supervisor.forked` in a child process.
        """
        check_process(self._pid)
        return self._stop.is_requested

    def request_shutdown(self) -> None:
        """Ask its loops to stop; only the first request counts.

        Raises:
            ForkedSupervisorError: `supervisor.forked` in a child process.
        """
        check_process(self._pid)
        self._stop.request("shutdown handle")


def check_process(pid: int) -> None:
    """Refuse to go on in a child of the process with this id.

    Raises:
        ForkedSupervisorError: `supervisor.forked`.
    """
    if os.getpid() != pid:
        raise ForkedSupervisorError


@runtime_checkable
class StopEvent(Protocol):
    """What `threading.Event` and `multiprocessing.Event` have in common."""

    def is_set(self) -> bool:
        """Return whether the event is set."""
        ...

    def wait(self, timeout: float | None = None, /) -> bool:
        """Wait for the event, for `timeout` seconds at most."""
        ...


StopSource: TypeAlias = StopEvent | Callable[[], object] | None
"""An event, a function that blocks until it is time to stop, or None for SIGINT and SIGTERM."""


def watch(source: StopSource, deliver: Callable[[], None]) -> AbstractContextManager[object]:
    """Return a context in which `deliver` is called when the source says stop.

    Signals call it each time, from a signal handler; the others call it once, from a thread.

    Raises:
        SignalsUnavailableError: `supervisor.signals_unavailable` on entering, unless the main
            thread does.
        ValidationError: `input.wrong_type` if it is no source.
    """
    if source is None:
        return _SignalWatch(deliver)
    if isinstance(source, StopEvent):
        return _watched_event(source, deliver)
    if callable(source):
        return _watched_call(source, deliver)
    raise ValidationError(
        codes.INPUT_WRONG_TYPE,
        "stop must be an Event, a function that blocks, or None for signals",
        field="stop",
    )


@contextmanager
def _watched_event(event: StopEvent, deliver: Callable[[], None]) -> Generator[None]:
    is_over = threading.Event()

    def look() -> None:
        # In turns, so that the thread ends with the context though the event may never be set.
        while not is_over.is_set():
            if event.wait(_EVENT_LOOK_SECONDS):
                deliver()
                return

    threading.Thread(target=look, name="runledger-stop", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


@contextmanager
def _watched_call(wait: Callable[[], object], deliver: Callable[[], None]) -> Generator[None]:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            wait()
        except BaseException as error:  # noqa: BLE001  # raised again by the waiting thread
            errors.append(error)
        deliver()

    threading.Thread(target=call, name="runledger-stop", daemon=True).start()
    yield
    if errors:
        raise errors[0]


class _SignalWatch:
    """Handle SIGINT and SIGTERM while entered."""

    def __init__(self, deliver: Callable[[], None]) -> None:
        self._deliver = deliver
        self._pid = os.getpid()
        self._deaf_until: float | None = None
        # Any: the handlers of others, as the signal module returns them.
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SignalsUnavailableError
        for number in _STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ShutdownAbortedError):
            # The process is on its way out: a third signal must not interrupt that.
            self._deaf_until = time.monotonic() + _DEAF_SECONDS
        else:
            self._restore()

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            # None: set by C code, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # A forked child inherits the handler but nobody who listens to it.
        is_foreign = os.getpid() != self._pid
        if is_foreign or (self._deaf_until is not None and time.monotonic() >= self._deaf_until):
            self._restore()
            signal.raise_signal(number)
        elif self._deaf_until is None:
            self._deliver()
