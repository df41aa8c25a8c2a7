"""Deadlines of blocks: one thread calls back what is overdue."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from .safe_log import safe_logger

_logger = safe_logger(__name__)


class Deadlines:
    """The deadlines of one owner; their thread is started at first use."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[], float | None]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def after(self, seconds: float, callback: Callable[[], float | None]) -> Generator[None]:
        """Call back, on the thread of the deadlines, if the block has not ended in time.

        Args:
            seconds: Until the first call.
            callback: Returns in how many seconds it is to be called again; None for never.
        """
        number = next(self._numbers)
        due = time.monotonic() + seconds
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="runledger-deadlines", daemon=True)
                # It waits for the lock. If there is none to be had, the next block tries again.
                thread.start()
                self._thread = thread
            self._callbacks[number] = callback
            heapq.heappush(self._heap, (due, number))
            if self._heap[0][1] == number:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._callbacks.pop(number, None)
                while self._heap and self._heap[0][1] not in self._callbacks:
                    heapq.heappop(self._heap)

    def close(self) -> None:
        """End the thread; blocks that go on have no deadline any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now = time.monotonic()
                if not self._heap or self._heap[0][0] > now:
                    self._changed.wait(self._heap[0][0] - now if self._heap else None)
                    continue
                _, number = heapq.heappop(self._heap)
                callback = self._callbacks.get(number)
            again = None if callback is None else _called(callback)
            with self._changed:
                if again is None:
                    self._callbacks.pop(number, None)
                elif number in self._callbacks:
                    heapq.heappush(self._heap, (time.monotonic() + again, number))


def _called(callback: Callable[[], float | None]) -> float | None:
    try:
        return callback()
    except Exception:
        # One that fails must not cost the others their deadlines, nor must a filter of logging.
        _logger.exception("a deadline could not be kept")
        return None
