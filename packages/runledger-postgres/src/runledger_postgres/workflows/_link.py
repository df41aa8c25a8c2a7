"""What a listener needs to know of its direct connection, and a watch over links in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from ..direct import Connection, shut_down


def has_own_session(connection: Connection) -> bool:
    """Tell whether the connection is a session of the server, and not one behind a pooler.

    A pooler invents the process id that it greets its clients with. In transaction mode it would
    hand the locks and LISTENs of a client on to whoever comes next.
    """
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return row is not None and row[0] == connection.info.backend_pid


class LinkGuard:
    """Knows which connections are in use and until when; `break_overdue` is called by a clock."""

    def __init__(self) -> None:
        """Know of none."""
        self._lock = threading.Lock()
        self._uses: dict[object, tuple[float, Connection]] = {}

    @contextmanager
    def within(self, connection: Connection, seconds: float) -> Generator[None]:
        """Have the connection broken if the block takes longer."""
        use = object()
        with self._lock:
            self._uses[use] = time.monotonic() + seconds, connection
        try:
            yield
        finally:
            with self._lock:
                self._uses.pop(use, None)

    def break_overdue(self) -> None:
        """Break what is used for too long: a link that froze ends in an error, not in a wait."""
        now = time.monotonic()
        # Under the lock: whose use has ended belongs to somebody else by now.
        with self._lock:
            for use, (due, connection) in list(self._uses.items()):
                if due <= now:
                    del self._uses[use]
                    shut_down(connection)
