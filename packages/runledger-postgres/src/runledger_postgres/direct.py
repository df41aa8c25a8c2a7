"""Connections with the settings of a pool, but outside of it: one each for whoever keeps one."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

Connection: TypeAlias = psycopg.Connection[Any]

_CONNECT_TIMEOUT_SECONDS: Final = 5
_NO_DESCRIPTOR_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})


def connect_directly(
    pool: ConnectionPool[Any],
    name: str,
    *,
    conninfo: str | None = None,
    within: Callable[[Connection], AbstractContextManager[object]] = nullcontext,
) -> Connection:
    """Open an autocommit connection as the pool opens its own.

    Connection string, arguments, class and `configure` are read anew each time, so passwords may
    rotate.

    Args:
        name: What it reports as, behind the pool's `fallback_application_name` or `runledger`,
            unless connection string or arguments have an `application_name`.
        conninfo: Connection string; None for the pool's.
        within: Limits what `configure` waits for; `connect_timeout` limits the rest.

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
        with within(connection):
            configure_as(pool, connection)
        _require_open(connection)
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
    # Only shutting the socket down wakes a thread in libpq; the descriptor stays its own. libpq may
    # close it at any moment, and its number may be somebody else's then. A duplicate cannot change
    # hands, and it is of our socket if the connection had that number before and after. A process
    # without a descriptor to spare must be able to break a link, too: it looks just before.
    with suppress(OSError, psycopg.Error), ExitStack() as at_end:
        number = connection.fileno()
        duplicate = _duplicated(number)
        if duplicate is not None:
            at_end.callback(os.close, duplicate)
        link = socket.socket(fileno=number if duplicate is None else duplicate)
        at_end.callback(link.detach)
        if connection.fileno() == number:
            link.shutdown(socket.SHUT_RDWR)


def _require_open(connection: Connection) -> None:
    # A `configure` may have caught the error of a link that was broken meanwhile.
    if connection.closed:
        raise psycopg.OperationalError("the connection was lost while it was configured")


def _duplicated(descriptor: int) -> int | None:
    try:
        return os.dup(descriptor)
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR_LEFT:
            return None
        raise
