"""Connections of the engine's own, so that handlers cannot cost a lease."""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

Connection: TypeAlias = psycopg.Connection[Any]

_CONNECT_TIMEOUT_SECONDS: Final = 5


class EngineConnections:
    """Opens connections with the settings of the user's pool, outside of it.

    Connection string, arguments, class and `configure` are read at each connect, so passwords may
    rotate. Every use is under a deadline: a link that froze ends in an error, not in a wait.
    """

    def __init__(self, pool: ConnectionPool[Any], *, conninfo: str | None = None) -> None:
        """Take the settings of `pool`, with another connection string if one is given."""
        self._pool = pool
        self._conninfo = conninfo
        self._deadlines = _Deadlines()

    def connect(self, name: str) -> Connection:
        """Open an autocommit connection that reports as `runledger <name>` unless named otherwise.

        Raises:
            psycopg.OperationalError: There is no connection to be had.
        """
        pool = self._pool
        conninfo = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
        kwargs = dict((pool.kwargs() if callable(pool.kwargs) else pool.kwargs) or {})
        # The engine's statements choose their own rows and cursors.
        for setting in ("autocommit", "row_factory", "cursor_factory"):
            kwargs.pop(setting, None)
        kwargs.setdefault("connect_timeout", _CONNECT_TIMEOUT_SECONDS)
        # What other encodings cannot hold, one job's payload may.
        kwargs["client_encoding"] = "UTF8"
        # `connect_pool` names its connections `runledger`, by the same weakest of names.
        fallback = kwargs.get("fallback_application_name", "runledger")
        kwargs["fallback_application_name"] = f"{fallback} {name}"
        connection = pool.connection_class.connect(self._conninfo or conninfo or "", **kwargs)
        try:
            configure_as(pool, connection)
            connection.autocommit = True
            connection.row_factory = tuple_row
            connection.cursor_factory = psycopg.Cursor
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def deadline(self, connection: Connection, seconds: float) -> Generator[None]:
        """Break the connection if the block has not ended in time."""
        with self._deadlines.after(seconds, lambda: self.shut_down(connection)):
            yield

    def shut_down(self, connection: Connection) -> None:
        """End whatever a thread waits for on the connection; the connection is lost."""
        # Only shutting the socket down wakes a thread in libpq; the descriptor stays its own.
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop watching deadlines."""
        self._deadlines.close()


def configure_as(pool: ConnectionPool[Any], connection: Connection) -> None:
    """Do to a connection what the pool's `configure` does to its own."""
    configure = pool._configure  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the pool has no getter for it
    if configure is not None:
        configure(connection)


class _Deadlines:
    """One thread that calls back what is overdue; started at first use."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def after(self, seconds: float, callback: Callable[[], None]) -> Generator[None]:
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
                callback = self._callbacks.pop(number, None)
            if callback is not None:
                callback()
