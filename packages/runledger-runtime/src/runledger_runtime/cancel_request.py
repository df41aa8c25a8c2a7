"""A request to the server to cancel what one block waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from runledger_postgres.direct import Connection

# One that comes between two statements is ignored.
_CANCEL_REQUESTS: Final = 4
_ANSWERED: Final = frozenset({TransactionStatus.IDLE, TransactionStatus.INTRANS})


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
                with suppress(RuntimeError, MemoryError):
                    threading.Thread(target=self._ask, name="runledger-cancel", daemon=True).start()
            return self._pause

    def end(self) -> None:
        """Ask no more: the block has ended."""
        with self._lock:
            self._is_over = True

    def _ask(self) -> None:
        # OSError: a process may have no descriptor left for it.
        with suppress(psycopg.Error, OSError):
            self._connection.cancel_safe(timeout=self._pause * _CANCEL_REQUESTS)
