"""What a workload is, and the common one: threads that repeat a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Protocol, TypeAlias

import psycopg

# 200 bytes as JSON.
PAYLOAD: Final = {"customer": 4711, "text": "x" * 171}

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Step: TypeAlias = Callable[[], int]
"""Does a bit of work and returns how many jobs that was; 0 when there is nothing left."""
OpenStep: TypeAlias = Callable[[], AbstractContextManager[Step]]
"""Opens what the steps of one thread need."""


class Workload(Protocol):
    """Work that goes on in the background of a client process."""

    def start(self) -> None:
        """Begin; return once it goes."""
        ...

    def progress(self) -> tuple[int, float | None]:
        """Return how many jobs are done, and when the last was if no more will come."""
        ...

    def stop(self) -> Mapping[str, float]:
        """End; return when things happened, by the monotonic clock."""
        ...


class Loop:
    """Threads that repeat a step until they are stopped or nothing is left."""

    def __init__(self, open_step: OpenStep, *, threads: int = 1) -> None:
        """Take the step; nothing runs yet."""
        self._open_step = open_step
        self._stop = threading.Event()
        self._done = [0] * threads
        self._running = threads
        self._ended_at = 0.0
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._ready = threading.Barrier(threads + 1)
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        """Start the threads; wait until each could begin."""
        for thread in self._threads:
            thread.start()
        with suppress(threading.BrokenBarrierError):
            self._ready.wait()
        self.progress()

    def progress(self) -> tuple[int, float | None]:
        """Return how many jobs are done, and when the last was if no more will come."""
        if self._error is not None:
            raise self._error
        return sum(self._done), None if self._running else self._ended_at

    def stop(self) -> Mapping[str, float]:
        """End the threads after their step."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.progress()
        return {}

    def _run(self, index: int) -> None:
        try:
            with self._open_step() as step:
                self._ready.wait()
                while not self._stop.is_set() and (jobs := step()):
                    self._done[index] += jobs
        except BaseException as error:  # noqa: BLE001  # raised by whoever asks for progress
            self._error = error
            self._ready.abort()
        finally:
            with self._lock:
                self._running -= 1
                self._ended_at = time.monotonic()
