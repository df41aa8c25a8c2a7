"""Requests to stop: the token that loops look at, and the handle with which others ask."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .errors import ForkedSupervisorError
from .safe_log import safe_logger

_logger = safe_logger(__name__)


class StopToken:
    """Tell loops to stop, once and for all; thread-safe.

    A request lets running handlers end; an abort tells them to stop, too. Not for signal handlers:
    they may interrupt the very thread that holds its lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._is_aborted = False
        self._callbacks: list[Callable[[], object]] = []
        self._abort_callbacks: list[Callable[[], object]] = []
        self._reason: str | None = None

    @property
    def is_requested(self) -> bool:
        """Whether the loops should stop."""
        return self._event.is_set()

    @property
    def is_aborted(self) -> bool:
        """Whether running handlers should stop, too."""
        return self._is_aborted

    @property
    def reason(self) -> str | None:
        """Why they should; None while they should not."""
        return self._reason

    def request(self, reason: str = "requested") -> None:
        """Ask the loops to stop; only the first request counts."""
        with self._lock:
            if self._event.is_set():
                return
            self._reason = reason
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    def abort(self, reason: str = "aborted") -> None:
        """Ask the loops to stop, if nobody has, and have running handlers told; only once."""
        self.request(reason)
        with self._lock:
            self._is_aborted = True
            callbacks, self._abort_callbacks = self._abort_callbacks, []
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

    def add_abort_callback(self, callback: Callable[[], object]) -> None:
        """Have a function called once when the stop is aborted, at once if it has been."""
        with self._lock:
            if not self._is_aborted:
                self._abort_callbacks.append(callback)
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
