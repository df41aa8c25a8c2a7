"""A connection of the user's pool in a handler's hands."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.adapt import AdaptersMap

from runledger_postgres.direct import configure_as

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

# DISCARD ALL but for prepared statements: psycopg remembers which ones the server holds.
_RESET: Final = """
    CLOSE ALL;
    SET SESSION AUTHORIZATION DEFAULT;
    RESET ALL;
    UNLISTEN *;
    SELECT pg_advisory_unlock_all();
    DISCARD TEMP;
    DISCARD SEQUENCES;
"""
_SETTINGS: Final = (
    "autocommit",
    "isolation_level",
    "read_only",
    "deferrable",
    "row_factory",
    "cursor_factory",
    "server_cursor_factory",
    "prepare_threshold",
    "prepared_max",
)
# Lists of the connection object; psycopg has no other way to get back to what was in them.
_LISTS: Final = ("_notice_handlers", "_notify_handlers")
_CANCEL_SECONDS: Final = 5.0


class Loan:
    """Lends a connection and takes it back as it was.

    psycopg_pool rolls back what is open, but leaves settings, LISTEN, temporary tables and advisory
    locks, and what was set on the connection object, to whoever borrows it next.
    """

    def __init__(self, connection: psycopg.Connection[Any], pool: ConnectionPool[Any]) -> None:
        """Remember how the connection is set."""
        self._connection = connection
        self._pool = pool
        self._settings = {name: getattr(connection, name) for name in _SETTINGS}
        self._lists = {name: list(getattr(connection, name)) for name in _LISTS}
        # A copy, which shares with the original until that is changed.
        self._adapters = AdaptersMap(connection.adapters)
        self._lock = threading.Lock()
        self._is_out = True

    def cancel_statement(self) -> None:
        """Cancel what runs on the connection, unless it was given back."""
        # The lock keeps it from its next borrower until the server has got the request.
        with self._lock:
            if self._is_out:
                with suppress(psycopg.Error):
                    self._connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def cancel_soon(self) -> None:
        """Cancel what runs on the connection, on a thread of its own: it takes a round trip.

        In a process that can have no more threads the statement goes on.
        """
        with suppress(RuntimeError, MemoryError):
            threading.Thread(
                target=self.cancel_statement, name="runledger-cancel", daemon=True
            ).start()

    def end(self) -> None:
        """Undo what the borrower set; close the connection where that fails."""
        with self._lock:
            self._is_out = False
        connection = self._connection
        if connection.closed:
            return
        try:
            connection.rollback()
            connection.autocommit = True
            # A statement for itself: several cannot be prepared.
            connection.cursor().execute(_RESET, prepare=False)
            configure_as(self._pool, connection)
            for name, value in self._settings.items():
                setattr(connection, name, value)
            for name, members in self._lists.items():
                getattr(connection, name)[:] = members
            _forget_notifications(connection)
            connection._adapters = self._adapters  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the property cannot be set
        except Exception:  # noqa: BLE001  # whatever state it is in, a fresh one is better
            connection.close()


class Lending:
    """Lends connections of a pool to one borrower, and cancels what he runs on them."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        """Lend nothing yet."""
        self._pool = pool
        self._lock = threading.Lock()
        self._loans: list[Loan] = []

    @contextmanager
    def lend(self, *, refuse: Callable[[], None]) -> Generator[psycopg.Connection[Any]]:
        """Lend a connection, reset on return.

        Args:
            refuse: Raises if the borrower should stop; what makes it raise is set before `cancel`.
        """
        with self._pool.connection() as connection:
            loan = Loan(connection, self._pool)
            with self._lock:
                # Under the lock: either this sees that he should stop, or `cancel` sees the loan.
                refuse()
                self._loans.append(loan)
            try:
                # Committed after the block, rolled back if it raises, as the pool itself does.
                with connection:
                    yield connection
            finally:
                with self._lock:
                    self._loans.remove(loan)
                loan.end()

    def cancel(self) -> None:
        """Cancel what runs on every connection that is lent now."""
        with self._lock:
            loans = list(self._loans)
        for loan in loans:
            loan.cancel_soon()


def _forget_notifications(connection: psycopg.Connection[Any]) -> None:
    # Notifications that a LISTEN brought and nobody read would reach whoever reads next. Where the
    # pool's `configure` has set handlers, psycopg keeps none.
    if not connection._notify_handlers:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # no getter
        deque(connection.notifies(timeout=0), maxlen=0)
