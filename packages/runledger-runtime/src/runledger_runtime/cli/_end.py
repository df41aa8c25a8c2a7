"""The end of a worker's process: within its time, whatever its handlers have left behind.

At its exit Python waits for threads that are no daemons, for executors and for child processes, and
a write to a pipe that nobody reads waits for ever. So a thread watches from the start of a stop on.
The ordinary exit is left its chance, for the atexit functions and open files of the application.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, NoReturn

import click

from runledger_core import visible_text

from ..stop_signals import StopSignals
from ._errors import EXIT_UNSETTLED
from ._log import flush_logs, within
from ._parent import Parent

# With the time to flush, the process is gone two seconds after the deadline. Handlers that were
# told to stop have the first of them.
_EXIT_SECONDS: Final = 1.5
_FLUSH_SECONDS: Final = 0.4
# What handlers have after a second signal.
_TOLD_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
# A timer of 0 is none.
_LEAST_TIMER_SECONDS: Final = 0.1
# What is longer the kernel may refuse.
_LONGEST_TIMER_SECONDS: Final = 10_000_000.0


def _never() -> bool:
    return False


class ProcessEnd:
    """Ends this process in time, once a stop has begun; until then it does nothing.

    The exit that it falls back on runs nothing of the application.
    """

    def __init__(self, timeout: float, *, is_ours: bool) -> None:
        """Take the seconds that running handlers have after a first signal.

        Args:
            is_ours: Whether the process was started for this command. Else its end is its owner's:
                it is not watched, and `cut_off` raises.
        """
        self.timeout = timeout
        self._is_ours = is_ours
        self._code = EXIT_UNSETTLED
        # Each is written by one thread, or by the signal handler that interrupts it, which must
        # not take a lock.
        self._asked_at = math.inf
        self._signals: list[float] = []
        self._over_at = math.inf
        self._is_asked: Callable[[], bool] = _never

    def watch(self, is_asked: Callable[[], bool] = _never) -> None:
        """Begin to watch.

        Args:
            is_asked: Whether a stop was asked for.
        """
        if not self._is_ours:
            return
        self._is_asked = is_asked
        threading.Thread(target=self._watch, name="runledger-end", daemon=True).start()

    def signals(self, parent: Parent | None = None) -> StopSignals:
        """Return what keeps the signals of this process; they begin its end.

        Args:
            parent: Who tells how many there are, if somebody does.
        """
        return _ToldSignals(lambda: self._signals.append(time.monotonic()), parent)

    def over(self, code: int) -> None:
        """Say that nothing of ours runs any more: what is left has a moment, and then this code."""
        self._code = code
        self._over_at = time.monotonic()
        # What a daemon thread refers to is never closed at the exit: the application's files, too.
        self._is_asked = _never

    def cut_off(self) -> NoReturn:
        """End the process now, with what can be flushed in a moment.

        Raises:
            SystemExit: If the process is not ours.
        """
        if not self._is_ours:
            sys.exit(self._code)
        within(_FLUSH_SECONDS, self._last_words)
        os._exit(self._code)

    def flush_at_exit(self) -> None:
        """Have the streams flushed after the atexit functions that are registered from now on.

        Python flushes them when its threads do not run any more, so that nothing watches it.
        """
        if self._is_ours:
            atexit.register(self._at_exit)

    def _watch(self) -> None:
        while (seconds := self._due_at() - time.monotonic()) > 0:
            time.sleep(min(seconds, _LOOK_SECONDS))
            if self._asked_at == math.inf and self._is_asked():
                self._asked_at = time.monotonic()
        self.cut_off()

    def _due_at(self) -> float:
        return min(self._promised_at(), self._over_at + _EXIT_SECONDS)

    def _promised_at(self) -> float:
        began_at = min(self._asked_at, self._over_at, *self._signals[:1])
        times = [began_at + self.timeout, *(at + _TOLD_SECONDS for at in self._signals[1:2])]
        return min(times) + _EXIT_SECONDS

    def _at_exit(self) -> None:
        if self._over_at == math.inf:
            return
        flush_logs()
        # From here on only the kernel can end what the application's objects hold on to.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        seconds = self._promised_at() - time.monotonic()
        bounded = min(max(seconds, _LEAST_TIMER_SECONDS), _LONGEST_TIMER_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, bounded)

    def _last_words(self) -> None:
        if self._over_at < math.inf:
            names = ", ".join(_left_behind()) or "functions at the exit, or threads of an executor"
            click.echo(
                f"warning: not waited for: {visible_text(names)}; handlers or modules have started"
                " what they do not end",
                err=True,
            )
        flush_logs()


class _ToldSignals(StopSignals):
    """Signals that are told of when they are delivered, too, and counted as a parent tells."""

    def __init__(self, tell: Callable[[], None], parent: Parent | None) -> None:
        super().__init__()
        self._tell = tell
        self._parent = parent

    @contextmanager
    def delivered_to(self, deliver: Callable[[], None]) -> Generator[None]:
        def both() -> None:
            self._tell()
            deliver()

        try:
            with super().delivered_to(both):
                yield
        finally:
            # It may pass on only now what came to this process directly.
            if self._parent is not None:
                self._turn_deaf()

    def _count(self) -> int:
        return super()._count() if self._parent is None else self._parent.count_signals()


def _left_behind() -> list[str]:
    """Name the threads and processes that Python waits for."""
    main = threading.main_thread()
    threads = [each for each in threading.enumerate() if not each.daemon and each is not main]
    names = [f"the thread {each.name}" for each in threads]
    # Not imported here: nobody has children of it then.
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        children = processes.active_children()
        names += [f"the process {each.name}" for each in children if not each.daemon]
    return names
