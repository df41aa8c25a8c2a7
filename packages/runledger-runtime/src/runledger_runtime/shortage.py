"""Telling a server that has too few connections from one that is away."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import psycopg

from .errors import TooFewConnections
from .health import LoopHealth
from .safe_log import safe_logger

_SHORTAGE_SECONDS: Final = 60.0
_TOO_MANY_CONNECTIONS: Final = "53300"
# libpq keeps the SQLSTATE of a refused connection to itself: psycopg's error has none, and only
# the text tells. These are the words of PostgreSQL and PgBouncer; a server that speaks another
# language is taken for one that is away, which is waited for and shown in `health()` all the same.
_NO_ROOM: Final = re.compile(
    r"too many clients|too many connections|remaining connection slots|no more connections allowed"
)

_logger = safe_logger(__name__)


class ConnectionShortage:
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


def _is_without_room(error: psycopg.Error) -> bool:
    # A state that is there decides, whatever the text says.
    if error.sqlstate is not None:
        return error.sqlstate == _TOO_MANY_CONNECTIONS
    return _NO_ROOM.search(str(error)) is not None
