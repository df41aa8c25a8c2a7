"""Connections with the settings of a pool, but outside of it: one each for whoever keeps one."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

Connection: TypeAlias = psycopg.Connection[Any]

_CONNECT_TIMEOUT_SECONDS: Final = 5


def connect_directly(
    pool: ConnectionPool[Any], name: str, *, conninfo: str | None = None
) -> Connection:
    """Open an autocommit connection as the pool opens its own.

    Connection string, arguments, class and `configure` are read anew each time, so passwords may
    rotate.

    Args:
        name: What it reports as, behind the pool's `fallback_application_name` or `runledger`,
            unless connection string or arguments have an `application_name`.
        conninfo: Connection string; None for the pool's.

    Raises:
        psycopg.OperationalError: There is no connection to be had.
    """
    pooled = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
    kwargs = dict((pool.kwargs() if callable(pool.kwargs) else pool.kwargs) or {})
    # The engine's statements choose their own rows and cursors.
    for setting in ("autocommit", "row_factory", "cursor_factory"):
        kwargs.pop(setting, None)
    kwargs.setdefault("connect_timeout", _CONNECT_TIMEOUT_SECONDS)
    # What other encodings cannot hold, one job's payload may.
    kwargs["client_encoding"] = "UTF8"
    fallback = kwargs.get("fallback_application_name", "runledger")
    kwargs["fallback_application_name"] = f"{fallback} {name}"
    connection = pool.connection_class.connect(conninfo or pooled or "", **kwargs)
    try:
        configure_as(pool, connection)
        connection.autocommit = True
        connection.row_factory = tuple_row
        connection.cursor_factory = psycopg.Cursor
    except BaseException:
        connection.close()
        raise
    return connection


def configure_as(pool: ConnectionPool[Any], connection: Connection) -> None:
    """Do to a connection what the pool's `configure` does to its own."""
    configure = pool._configure  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the pool has no getter for it
    if configure is not None:
        configure(connection)


def shut_down(connection: Connection) -> None:
    """End whatever a thread waits for on the connection; the connection is lost."""
    # Only shutting the socket down wakes a thread in libpq; the descriptor stays its own.
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)
