"""Connections of the engine's own, so that handlers cannot cost a lease."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from runledger_postgres import require_own_pool
from runledger_postgres.direct import Connection, connect_directly, shut_down

from .shortage import ConnectionShortage

# One that comes between two statements is ignored.
_CANCEL_REQUESTS: Final = 4
_ANSWERED: Final = frozenset({TransactionStatus.IDLE, TransactionStatus.INTRANS})


class EngineConnections:
    """Opens connections with the settings of the user's pool, outside of it.

    Connection string, arguments, class and `configure` are read at each connect, so passwords may
    rotate. Every use is under a deadline: a link that froze ends in an error, not in a wait.
    """

    def __init__(
        self,
        pool: ConnectionPool[Any],
        *,
        conninfo: str | None = None,
        shortage: ConnectionShortage | None = None,
    ) -> None:
        """Take the settings of `pool`, with another connection string if one is given.

        Raises:
            ValidationError: `db.forked` if the pool is that of a parent process.
        """
        require_own_pool(pool)
        self._pool = pool
        self._conninfo = conninfo
        self._shortage = shortage
        self._deadlines = _Deadlines()

    def connect(self, name: str) -> Connection:
        """Open an autocommit connection that reports as `runledger <name>` unless named otherwise.

        Raises:
            psycopg.OperationalError: There is no connection to be had.
        """
        try:
            connection = connect_directly(self._pool, name, conninfo=self._conninfo)
        except psycopg.Error as error:
            if self._shortage is not None:
                self._shortage.failed(name, error)
            raise
        if self._shortage is not None:
            self._shortage.opened(name)
        return connection

    @contextmanager
    def deadline(self, connection: Connection, seconds: float) -> Generator[None]:
        """Break the connection if the block has not ended in time."""
        with self._deadlines.after(seconds, lambda: shut_down(connection)):
            yield

    @contextmanager
    def limit(
        self, connection: Connection, seconds: float, *, answer_seconds: float
    ) -> Generator[CancelRequest]:
        """Have the server cancel what the block waits for; break the connection if it does not.

        Args:
            seconds: Until the connection is broken.
            answer_seconds: How long before that the server is asked for the first time.
        """
        request = CancelRequest(
            connection, seconds=answer_seconds, give_up=lambda: shut_down(connection)
        )
        try:
            with self._deadlines.after(seconds - answer_seconds, request.repeat):
                yield request
        finally:
            request.end()

    def close(self) -> None:
        """Stop watching deadlines."""
        self._deadlines.close()


class CancelRequest:
    """Asks the server to cancel what one block waits for, a few times, and then gives it up."""

    def __init__(
        self, connection: Connection, *, seconds: float, give_up: Callable[[], None]
    ) -> None:
        """Ask nothing yet; give up `seconds` after the first request."""
        self._connection = connection
        self._pause = seconds / _CANCEL_REQUESTS
        self._give_up = give_up
        self._left = _CANCEL_REQUESTS
        self._lock = threading.Lock()
        self._is_over = False
        self.is_sent: bool = False
        """Whether a request is under way: if it comes late, it cancels what is sent next."""
        self.is_our_delay: bool = False
        """Whether the block was given up though the server had answered everything."""

    def repeat(self) -> float | None:
        """Ask once more or give up, on the thread of the deadlines.

        Returns:
            Seconds until the next call; None after the last.
        """
        with self._lock:
            if self._is_over:
                return None
            status = self._connection.info.transaction_status
            if not self._left:
                self.is_our_delay = status in _ANSWERED
                self._give_up()
                return None
            self._left -= 1
            if status not in _ANSWERED:
                self.is_sent = True
                # Each has a connection of its own, and a server that froze may not even take it.
                # A process that is full of threads must not lose that of the deadlines.
                with suppress(RuntimeError):
                    threading.Thread(target=self._ask, name="runledger-cancel", daemon=True).start()
            return self._pause

    def end(self) -> None:
        """Ask no more: the block has ended."""
        with self._lock:
            self._is_over = True

    def _ask(self) -> None:
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=self._pause * _CANCEL_REQUESTS)


class _Deadlines:
    """One thread that calls back what is overdue; started at first use.

    A callback may return in how many seconds it is to be called again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[], float | None]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def after(self, seconds: float, callback: Callable[[], float | None]) -> Generator[None]:
        number = next(self._numbers)
        due = time.monotonic() + seconds
        with self._changed:
            self._callbacks[number] = callback
            heapq.heappush(self._heap, (due, number))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="runledger-deadlines", daemon=True
                )
                self._thread.start()
            elif self._heap[0][1] == number:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._callbacks.pop(number, None)
                while self._heap and self._heap[0][1] not in self._callbacks:
                    heapq.heappop(self._heap)

    def close(self) -> None:
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
            again = None if callback is None else callback()
            with self._changed:
                if again is None:
                    self._callbacks.pop(number, None)
                elif number in self._callbacks:
                    heapq.heappush(self._heap, (time.monotonic() + again, number))
