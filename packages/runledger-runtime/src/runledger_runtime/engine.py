"""Connections of the engine's own, so that handlers cannot cost a lease."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from .errors import TooFewConnections
from .health import LoopHealth

Connection: TypeAlias = psycopg.Connection[Any]

_CONNECT_TIMEOUT_SECONDS: Final = 5
_SHORTAGE_SECONDS: Final = 60.0
_TOO_MANY_CONNECTIONS: Final = "53300"
# A refused connection has no SQLSTATE in libpq. The words of PostgreSQL and PgBouncer; a server
# that speaks another language is taken for one that is away.
_NO_ROOM: Final = re.compile(
    r"too many clients|too many connections|remaining connection slots|no more connections allowed"
)

_logger = logging.getLogger(__name__)


class ConnectionCount:
    """Which of a loop's own connections the server has no room for; thread-safe.

    A connection that the loop once had is waited for, however long. One that it never had for a
    minute of such refusals tells that the server is set up for fewer than the loop needs.
    """

    def __init__(
        self,
        names: Sequence[str],
        health: LoopHealth,
        *,
        on_verdict: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what the loop opens by the names that it opens them under.

        Args:
            on_verdict: Called once, from any thread, when `verdict` is there.
        """
        self._lock = threading.Lock()
        self._names = list(names)
        self._health = health
        self._on_verdict = on_verdict
        self._refused_at: dict[str, float] = {}
        self._never_had = set(names)
        self.verdict: TooFewConnections | None = None
        """Why the loop should end; None while it should not."""

    def opened(self, name: str) -> None:
        """Count a connection that the server gave."""
        with self._lock:
            self._never_had.discard(name)
            self._forget(name)

    def failed(self, name: str, error: psycopg.Error) -> None:
        """Count a connection that was not to be had, for whatever reason."""
        with self._lock:
            if not _is_without_room(error):
                self._forget(name)
                return
            now = time.monotonic()
            is_new = not self._refused_at
            since = self._refused_at.setdefault(name, now)
            self._report()
            if is_new:
                _logger.warning(
                    "the server has no connection left for a loop of the engine, which needs %d",
                    len(self._names),
                    extra={"connection": name},
                )
            if name not in self._never_had or now - since < _SHORTAGE_SECONDS or self.verdict:
                return
            self.verdict = TooFewConnections(len(self._names), tuple(self._missing()))
        self._on_verdict()

    def _forget(self, name: str) -> None:
        if self._refused_at.pop(name, None) is not None:
            self._report()

    def _report(self) -> None:
        self._health.connections_missing(self._missing())

    def _missing(self) -> list[str]:
        return [name for name in self._names if name in self._refused_at]


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
        count: ConnectionCount | None = None,
    ) -> None:
        """Take the settings of `pool`, with another connection string if one is given."""
        self._pool = pool
        self._conninfo = conninfo
        self._count = count
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
        try:
            connection = pool.connection_class.connect(self._conninfo or conninfo or "", **kwargs)
        except psycopg.Error as error:
            if self._count is not None:
                self._count.failed(name, error)
            raise
        if self._count is not None:
            self._count.opened(name)
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


def _is_without_room(error: psycopg.Error) -> bool:
    return error.sqlstate == _TOO_MANY_CONNECTIONS or (
        error.sqlstate is None and _NO_ROOM.search(str(error)) is not None
    )


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
