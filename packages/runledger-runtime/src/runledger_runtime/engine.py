"""Connections of the engine's own, so that handlers cannot cost a lease."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg_pool import ConnectionPool

from runledger_postgres import require_own_pool
from runledger_postgres.direct import Connection, connect_directly, shut_down

from .cancel_request import CancelRequest
from .deadlines import Deadlines
from .shortage import ConnectionShortage

_CONFIGURE_SECONDS: Final = 10.0
_ANSWER_SHARE: Final = 0.25
_LEAST_ANSWER_SECONDS: Final = 0.5


def answer_seconds_of(seconds: float) -> float:
    """Return how much of the time of a use is for the server's answer to a cancel."""
    return max(_LEAST_ANSWER_SECONDS, _ANSWER_SHARE * seconds)


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
        self._deadlines = Deadlines()

    def connect(self, name: str) -> Connection:
        """Open an autocommit connection that reports as `runledger <name>` unless named otherwise.

        Raises:
            psycopg.OperationalError: There is no connection to be had.
        """
        try:
            connection = connect_directly(
                self._pool,
                name,
                conninfo=self._conninfo,
                within=lambda connection: self.use(connection, _CONFIGURE_SECONDS),
            )
        except psycopg.Error as error:
            if self._shortage is not None:
                self._shortage.failed(name, error)
            raise
        if self._shortage is not None:
            self._shortage.opened(name)
        return connection

    @contextmanager
    def use(self, connection: Connection, seconds: float) -> Generator[None]:
        """Have what the block waits for cancelled, or the connection broken, within `seconds`.

        A server process that waits for a lock does not notice that its client has gone: it is asked
        first, so that tries in vain do not leave one behind each.

        The connection is closed after a cancel: it may come late, and must not meet the next use.
        """
        limit = self.limit(connection, seconds, answer_seconds=answer_seconds_of(seconds))
        with limit as request:
            try:
                yield
            finally:
                request.end()
                if request.is_sent:
                    connection.close()

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


class KeptConnection:
    """One connection of the engine's own, opened at first use and again after it was lost."""

    def __init__(self, connections: EngineConnections, name: str) -> None:
        """Open nothing yet; the name is the connection's."""
        self._connections = connections
        self._name = name
        self._connection: Connection | None = None

    def open(self) -> Connection:
        """Return the connection, a fresh one unless the last is still open."""
        if self._connection is None or self._connection.closed:
            self._connection = self._connections.connect(self._name)
        return self._connection

    @contextmanager
    def use(self, seconds: float) -> Generator[Connection]:
        """Use the connection for this long at most; see `EngineConnections.use`."""
        connection = self.open()
        with self._connections.use(connection, seconds):
            yield connection

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
