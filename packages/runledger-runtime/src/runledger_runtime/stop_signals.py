"""SIGINT and SIGTERM as requests to stop: kept, counted, and given to who watches them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

from .errors import ShutdownAbortedError, SignalsUnavailableError

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Long enough for a process to end; then a signal does again what it did before.
_DEAF_SECONDS: Final = 5.0


class StopSignals:
    """Keep SIGINT and SIGTERM for a Supervisor, while entered; only in the main thread.

    By default they end the process, also between the start of the loops and `run_until_shutdown`,
    when jobs run already. Signals that come before they are watched are delivered then.
    """

    def __init__(self) -> None:
        self._deliver: Callable[[], None] | None = None
        self._early = 0
        self._pid = os.getpid()
        self._deaf_until: float | None = None
        # Any: the handlers of others, as the signal module returns them.
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Handle the signals from now on.

        Raises:
            SignalsUnavailableError: `supervisor.signals_unavailable` outside the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise SignalsUnavailableError
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        # The process is on its way out, as after an abort: no signal must interrupt that.
        if self._deaf_until is None:
            self._restore()

    @contextmanager
    def delivered_to(self, deliver: Callable[[], None]) -> Generator[None]:
        """Call `deliver` for each signal, from a signal handler; also for those that came before.

        Signals that nobody keeps yet are kept for the block.
        """
        if not self._previous:
            with self, self.delivered_to(deliver):
                yield
            return
        self._deliver = deliver
        # From here on the handler counts none.
        early, self._early = self._early, 0
        for _ in range(early):
            deliver()
        try:
            yield
        except ShutdownAbortedError:
            self._turn_deaf()
            raise
        finally:
            self._deliver = None

    def _count(self) -> int:
        """Return how many signals the one stands for that has come."""
        return 1

    def _take(self, count: int) -> None:
        if self._deliver is None:
            self._early += count
            return
        for _ in range(count):
            self._deliver()

    def _turn_deaf(self) -> None:
        self._deaf_until = time.monotonic() + _DEAF_SECONDS

    def _restore(self) -> None:
        restore_handlers(self._previous)
        self._previous = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # A forked child inherits the handler but nobody who listens to it.
        is_foreign = os.getpid() != self._pid
        if is_foreign or (self._deaf_until is not None and time.monotonic() >= self._deaf_until):
            self._restore()
            signal.raise_signal(number)
        elif self._deaf_until is None:
            self._take(self._count())


# Any: the handlers of others, as the signal module returns them.
def restore_handlers(previous: Mapping[int, Any]) -> None:
    """Put back the handlers that `signal.signal` returned, by signal number."""
    for number, handler in previous.items():
        # None: set by C code, which Python cannot put back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
