"""What a caller may pass as the database, and the driver connection behind it."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import Diagnostic, PipelineAborted
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import ConnectionPool

from runledger_core import ErrorCategory

from ._fork import require_own_pool
from ._sqlalchemy import driver_connection, two_phase_unsupported
from .errors import QueryError, classify_query_error, refusal

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm

# Any: a pool or connection is taken whatever its connection class and row type.
Pool: TypeAlias = ConnectionPool[Any]
SqlAlchemy: TypeAlias = "sqlalchemy.Connection | orm.Session | orm.scoped_session[Any]"
Database: TypeAlias = "Pool | psycopg.Connection[Any] | SqlAlchemy"

_POLL_NOW: Final = 0
_UTF8: Final = "utf-8"

# A joined connection serves one call at a time: its threads share one pipeline of psycopg's.
_TURNS: Final[WeakKeyDictionary[psycopg.Connection[Any], threading.RLock]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Opened:
    """A driver connection for one call; owned means that we begin and end the transaction."""

    connection: psycopg.Connection[Any]
    owned: bool


@contextmanager
def open_connection(db: Database) -> Generator[Opened]:
    """Take a connection of the pool, or join the caller's, which other threads then wait for.

    Raises:
        ValidationError: `db.forked`, `db.unsupported_connection`, `db.unsupported_encoding`,
            `db.two_phase_unsupported`, `db.connection_busy` or `db.transaction_aborted` if the
            caller's connection cannot be used; it is as it was.
        UnavailableError: `db.unavailable` if there is no connection to be had.
    """
    if isinstance(db, ConnectionPool):
        require_own_pool(db)
        with _pooled(db) as connection:
            _require_utf8(connection)
            yield Opened(connection, owned=True)
    else:
        joined = db if isinstance(db, psycopg.Connection) else _driver_connection(db)
        # Held twice by a call that opens its connection again, further in.
        with _TURNS.setdefault(joined, threading.RLock()):
            yield _joined(joined)


def _require_live(connection: psycopg.Connection[Any]) -> None:
    """Refuse an idle connection whose server has gone: before sending, nothing is unknown.

    Raises:
        UnavailableError: `db.unavailable`.
    """
    if not _is_live(connection):
        raise _lost()


def make_idle(connection: psycopg.Connection[Any]) -> None:
    """Roll back whatever is open; discard the connection if that cannot be done."""
    if connection.closed or _is_idle(connection):
        return
    try:
        connection.rollback()
    except psycopg.Error:
        discard(connection)
        return
    if not _is_idle(connection):
        discard(connection)


def discard(connection: psycopg.Connection[Any]) -> None:
    """Close a connection for good; its own `close` may give it back to a pool."""
    connection.pgconn.finish()


def in_pipeline(connection: psycopg.Connection[Any]) -> bool:
    """Whether the connection is in pipeline mode, the caller's or ours."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def discard_if_stuck(connection: psycopg.Connection[Any]) -> None:
    """Close a connection that an interruption has left in pipeline mode or in mid-command."""
    status = connection.info.transaction_status
    if status == TransactionStatus.ACTIVE or in_pipeline(connection):
        discard(connection)


def interruption(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Return the Ctrl-C, or what else is no `Exception`, in whose place psycopg raised an error.

    Args:
        handled: What was being handled before, and so did not come in between.
    """
    link: BaseException | None = error
    while link is not handled and isinstance(link, Exception):
        link = link.__context__
    return None if link is handled else link


def first_error(error: BaseException) -> BaseException:
    """Return what failed in a pipeline, whose end may tell what was skipped behind it instead."""
    while isinstance(error, PipelineAborted) and isinstance(error.__context__, psycopg.Error):
        error = error.__context__
    return error


@contextmanager
def _pooled(pool: Pool) -> Generator[psycopg.Connection[Any]]:
    connection = _take_live(pool)
    was_autocommit = connection.autocommit
    try:
        # Client side only. Without it psycopg's own BEGIN goes out before ours.
        connection.autocommit = True
        yield connection
    finally:
        try:
            _restore(connection, autocommit=was_autocommit)
        finally:
            pool.putconn(connection)


def _restore(connection: psycopg.Connection[Any], *, autocommit: bool) -> None:
    # An interruption may have left the connection in anything.
    if in_pipeline(connection):
        discard(connection)
    make_idle(connection)
    if not connection.closed:
        connection.autocommit = autocommit


def _take_live(pool: Pool) -> psycopg.Connection[Any]:
    deadline = time.monotonic() + pool.timeout
    while True:
        try:
            connection = pool.getconn(timeout=deadline - time.monotonic())
        except psycopg.Error as error:
            raise classify_query_error(error) from error
        # Its `check` or its last user may have left it in a transaction.
        make_idle(connection)
        if _is_live(connection):
            return connection
        # Dead before anything was sent: nothing is unknown, so the next one is taken instead.
        discard(connection)
        pool.putconn(connection)


def _is_live(connection: psycopg.Connection[Any]) -> bool:
    if connection.closed:
        return False
    # An idle connection with something to read has a notice, a notification, or its end.
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    if not poller.poll(_POLL_NOW):
        return True
    ended = False

    def look_at(notice: Diagnostic) -> None:
        # The server's last word comes as a notice, and a moment before the end of the stream.
        nonlocal ended
        ended = ended or notice.severity_nonlocalized in {"FATAL", "PANIC"}

    connection.add_notice_handler(look_at)
    try:
        connection.pgconn.consume_input()
        connection.pgconn.is_busy()
    except psycopg.Error:
        return False
    finally:
        connection.remove_notice_handler(look_at)
    return not ended and not poller.poll(_POLL_NOW)


def _joined(connection: psycopg.Connection[Any]) -> Opened:
    if connection.closed:
        raise _lost()
    _require_utf8(connection)
    # Private to psycopg, which tells it in no other way.
    if getattr(connection, "_tpc", None) is not None:
        raise two_phase_unsupported()
    if in_pipeline(connection):
        _finish_queued(connection)
    match connection.info.transaction_status:
        case TransactionStatus.IDLE if connection.autocommit:
            # Outside transaction(): nobody else would commit.
            _require_live(connection)
            return Opened(connection, owned=True)
        case TransactionStatus.IDLE | TransactionStatus.INTRANS:
            # If idle, psycopg begins the caller's transaction at our first statement.
            return Opened(connection, owned=False)
        case TransactionStatus.INERROR:
            raise _aborted("the connection's transaction has failed; roll it back first")
        case _:
            raise refusal(
                ErrorCategory.VALIDATION,
                "db.connection_busy",
                "the connection is in the middle of another command",
                field="db",
            )


def _finish_queued(connection: psycopg.Connection[Any]) -> None:
    handled = sys.exception()
    try:
        with connection.pipeline():
            pass
    except psycopg.Error as error:
        interrupted = interruption(error, handled)
        if interrupted is not None:
            raise interrupted from None
        if connection.closed:
            raise classify_query_error(error) from error
        raise _aborted("a command queued in the connection's pipeline has failed") from error


def _driver_connection(db: object) -> psycopg.Connection[Any]:
    connection = driver_connection(db)
    if connection is not None:
        return connection
    raise refusal(
        ErrorCategory.VALIDATION,
        "db.unsupported_connection",
        "db must be a psycopg pool or connection, or a SQLAlchemy connection or session on psycopg",
        field="db",
    )


def _require_utf8(connection: psycopg.Connection[Any]) -> None:
    if connection.info.encoding != _UTF8:
        raise refusal(
            ErrorCategory.VALIDATION,
            "db.unsupported_encoding",
            "the connection's client_encoding must be UTF8",
            field="db",
        )


def _is_idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE


def _lost() -> QueryError:
    return refusal(ErrorCategory.UNAVAILABLE, "db.unavailable", "the connection is closed")


def _aborted(client_message: str) -> QueryError:
    return refusal(ErrorCategory.VALIDATION, "db.transaction_aborted", client_message, field="db")
