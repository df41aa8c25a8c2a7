"""`runledger worker --processes N`: a parent that keeps N workers running.

The parent runs no jobs and holds no connection. Its children are sessions of their own, so that
Ctrl-C reaches them once, through the parent. Whoever stops a service may signal them all the same:
so each has a pipe from the parent, which tells how often a stop was asked for.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, TypeAlias

from ..stop_signals import STOP_SIGNALS, restore_handlers
from ._burst import EXIT_JOBS_LEFT
from ._errors import EXIT_FAILURE, EXIT_UNSETTLED
from ._log import tell

_PROGRAM: Final = "runledger_runtime.cli"
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_MOST_DOUBLINGS: Final = 5
# A worker that has run so long was well: the next pause is the first one again.
_WELL_SECONDS: Final = 60.0
# A worker ends within its timeout and two seconds, or it is lost.
_LOST_AFTER_SECONDS: Final = 10.0
# A signal that comes just before its thread begins to wait is handled only after that wait.
_LONGEST_WAIT_SECONDS: Final = 0.2
# A worker handles these signals for as long as jobs may run: one that they ended had none.
_STOPPED_EARLY: Final = frozenset(-number for number in STOP_SIGNALS)

Command: TypeAlias = Callable[[int], Sequence[str]]
"""Arguments of the worker with this number, from 1, without the name of the program."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The parent got a signal."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A worker's process has ended, with this status."""

    number: int
    status: int


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float | None = None
    statuses: list[int] = field(default_factory=list[int])


class WorkerProcesses:
    """Starts workers, starts another where one fails, and ends with them all."""

    def __init__(
        self,
        count: int,
        command: Command,
        *,
        environment: Mapping[str, str],
        shutdown_timeout: float,
        restarts_success: bool,
    ) -> None:
        """Start nothing yet.

        Args:
            count: Workers, 1 or more.
            environment: Variables that the workers get besides the parent's own.
            shutdown_timeout: What the workers were given, in seconds.
            restarts_success: Whether a worker that ended well is replaced, too.
        """
        self._workers = [_Worker(number) for number in range(1, count + 1)]
        self._command = command
        self._environment = {**os.environ, **environment}
        self._timeout = shutdown_timeout
        self._restarts_success = restarts_success
        # Putting into it is safe in a signal handler.
        self._news: SimpleQueue[_Told | _Ended] = SimpleQueue()
        self._signals = 0
        self._lost_at: float | None = None

    def run(self) -> int:
        """Run until every worker has ended for good; return the exit code."""
        # Any: the handlers of others, as the signal module returns them.
        previous: dict[int, Any] = {n: signal.signal(n, self._handle) for n in STOP_SIGNALS}
        # Whoever started us may have it ignored: then the system keeps no status of a child.
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            for worker in self._workers:
                self._start(worker)
            while any(w.process or w.restart_at is not None for w in self._workers):
                self._wait()
        finally:
            restore_handlers(previous)
        return self._exit_code()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._news.put(_Told())

    def _wait(self) -> None:
        times = [w.restart_at for w in self._workers if w.restart_at is not None]
        if self._lost_at is not None:
            times.append(self._lost_at)
        seconds = min(times, default=math.inf) - time.monotonic()
        try:
            match self._news.get(timeout=max(0.0, min(seconds, _LONGEST_WAIT_SECONDS))):
                case _Told():
                    self._stop()
                case _Ended(number, status):
                    self._ended(self._workers[number - 1], status)
        except Empty:
            now = time.monotonic()
            for worker in self._workers:
                if worker.restart_at is not None and worker.restart_at <= now:
                    self._restart(worker)
            if self._lost_at is not None and self._lost_at <= now:
                self._kill()

    def _start(self, worker: _Worker) -> None:
        worker.restart_at = None
        worker.started_at = time.monotonic()
        worker.process = process = subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", _PROGRAM, *self._command(worker.number)],
            stdin=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        threading.Thread(
            target=lambda: self._news.put(_Ended(worker.number, process.wait())),
            name=f"runledger-process-{worker.number}",
            daemon=True,
        ).start()

    def _restart(self, worker: _Worker) -> None:
        try:
            self._start(worker)
        except (OSError, RuntimeError) as error:
            # The system has no process or no thread for it now; the other workers go on. Without
            # the pipe, a process that nobody waits for ends.
            worker.process = None
            self._start_later(worker, f"could not start ({type(error).__name__})")

    def _ended(self, worker: _Worker, status: int) -> None:
        if worker.process is not None and worker.process.stdin is not None:
            worker.process.stdin.close()
        worker.process = None
        is_burst = not self._restarts_success
        is_over = self._signals > 0 or (is_burst and status in {0, EXIT_JOBS_LEFT})
        # Jobs that it left are leased for a while: to the next worker of a burst nothing is due.
        if is_over or (is_burst and _has_left_jobs(status)):
            worker.statuses.append(status)
        if is_over:
            return
        if time.monotonic() - worker.started_at >= _WELL_SECONDS:
            worker.failures = 0
        self._start_later(worker, _ending(status))

    def _start_later(self, worker: _Worker, problem: str) -> None:
        pause = _pause_seconds(worker.failures)
        worker.failures += 1
        worker.restart_at = time.monotonic() + pause
        tell(f"worker process {worker.number} {problem}; another starts in {pause:.0f} s")

    def _stop(self) -> None:
        """Pass a signal on: the first lets running handlers end, the second does not."""
        self._signals += 1
        if self._signals == 1:
            self._lost_at = time.monotonic() + self._timeout + _LOST_AFTER_SECONDS
        for worker in self._workers:
            worker.restart_at = None
            if worker.process is not None:
                _pass_on(worker.process)

    def _kill(self) -> None:
        self._lost_at = None
        for worker in self._workers:
            if worker.process is not None:
                tell(f"worker process {worker.number} does not end; it is killed")
                worker.process.kill()

    def _exit_code(self) -> int:
        statuses = {status for worker in self._workers for status in worker.statuses}
        if any(_has_left_jobs(status) for status in statuses):
            return EXIT_UNSETTLED
        statuses -= {0, *_STOPPED_EARLY}
        if not statuses:
            return 0
        return EXIT_JOBS_LEFT if statuses == {EXIT_JOBS_LEFT} else EXIT_FAILURE


def _pass_on(process: subprocess.Popen[bytes]) -> None:
    """Tell a worker of one more signal, by its pipe and by SIGTERM."""
    if process.stdin is not None:
        # The worker may be gone, or stopped and have much to read: neither may hold the parent.
        os.set_blocking(process.stdin.fileno(), False)
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(process.stdin.fileno(), b"!")
    # One that still imports its catalog does not read yet: this ends it.
    process.send_signal(signal.SIGTERM)


def _has_left_jobs(status: int) -> bool:
    return status == EXIT_UNSETTLED or (status < 0 and status not in _STOPPED_EARLY)


def _pause_seconds(failures: int) -> float:
    # Bounded before it is doubled: a worker may fail for weeks.
    doublings = min(failures, _MOST_DOUBLINGS)
    return min(_FIRST_PAUSE_SECONDS * 2**doublings, _LONGEST_PAUSE_SECONDS)


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with code {status}"
    # Real-time signals have no names but the first and the last.
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-status, f'signal {-status}')}"
