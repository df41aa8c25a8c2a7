"""Sleeping and being woken: marks on one direct connection, a listener on another.

`notifies()` holds its connection's lock, hence two. Polling stays the truth: whatever fails here
only makes pick-up slower.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import psycopg

from runledger_postgres.direct import Connection, shut_down
from runledger_postgres.wakeup import CANCEL_CHANNEL, DROP_MARKS, TAKE_MARKS, WAKE_CHANNEL

from ..backoff import Outage, spread
from ..engine import EngineConnections, KeptConnection
from ..failure_log import failure_fields
from ..safe_log import safe_logger
from ._helper import Helper

_logger = safe_logger(__name__)

_PROBE_CHANNEL: Final = "runledger_probe"
_SEND_ECHO: Final = "SELECT pg_notify(%(channel)s, %(token)s)::text"
_ECHO_SECONDS: Final = 5.0
_ROUND_TRIP_SECONDS: Final = 10.0
_DEADLINE_SECONDS: Final = 5.0
_MARK_RETRY_SECONDS: Final = 3.0


class Listener(Helper):
    """Hears of due jobs and of cancels; reconnects for ever.

    `is_proven` is true while an echo sent over another connection has come back: behind a pooler
    in transaction mode LISTEN is accepted and nothing ever arrives.
    """

    def __init__(
        self,
        connections: EngineConnections,
        *,
        on_wake: Callable[[str | None], None],
        on_cancel: Callable[[Sequence[UUID]], None],
    ) -> None:
        """Prepare the thread; `begin()` starts to listen."""
        super().__init__("listener")
        self._connections = connections
        self._on_wake = on_wake
        self._on_cancel = on_cancel
        self._finished = threading.Event()
        self._connection: Connection | None = None
        self._has_warned = False
        self._outage = Outage()
        self.is_proven = False
        self.token: str | None = None
        """What the echo must say; None while not listening."""
        self.echo_sent_at: float | None = None
        """When it was sent, by the monotonic clock; None before."""

    def finish(self) -> None:
        """Stop listening."""
        self._finished.set()
        connection = self._connection
        if connection is not None:
            shut_down(connection)
        self.join(timeout=5.0)

    def work(self) -> None:
        """Listen until finished; never ends by an error."""
        while not self._finished.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  # `configure` and callables of the user's, too
                self.is_proven, self.token = False, None
                self._finished.wait(self._failed(error))

    def _failed(self, error: Exception) -> float:
        """Tell of an outage, now and then; return the seconds until the next try."""
        step = self._outage.failed()
        if step.is_worth_logging and not self._finished.is_set():
            _logger.warning(
                "notifications cannot be listened for, so jobs are found by polling only",
                extra=failure_fields(error) | {"failures": step.failures},
            )
        return step.delay_seconds

    def _listen(self) -> None:
        connection = self._connections.connect("listener")
        self._connection = connection
        try:
            with self._connections.use(connection, _DEADLINE_SECONDS):
                for channel in (WAKE_CHANNEL, CANCEL_CHANNEL, _PROBE_CHANNEL):
                    connection.execute(f"LISTEN {channel}")  # pyright: ignore[reportArgumentType]  # constants of ours
            self.echo_sent_at = None
            self.token = secrets.token_hex(8)
            failures = self._outage.ended()
            if failures:
                _logger.info("notifications are listened for again", extra={"failures": failures})
            # Whatever was notified while nobody listened is found by a poll.
            self._on_wake(None)
            while not self._finished.is_set():
                for notice in connection.notifies(timeout=_ROUND_TRIP_SECONDS):
                    self._hear(notice)
                self._warn_if_deaf()
                with self._connections.use(connection, _DEADLINE_SECONDS):
                    connection.execute("SELECT 1")
        finally:
            self._connection = None
            with suppress(psycopg.Error):
                connection.close()

    def _hear(self, notice: psycopg.Notify) -> None:
        if notice.channel == WAKE_CHANNEL:
            self._on_wake(notice.payload)
        elif notice.channel == CANCEL_CHANNEL:
            with suppress(ValueError):
                self._on_cancel([UUID(text) for text in notice.payload.split(",")])
        elif notice.payload == self.token and not self.is_proven:
            self.is_proven = True
            # A worker that has long been asleep takes its marks now, not at its next poll.
            self._on_wake(None)

    def _warn_if_deaf(self) -> None:
        sent_at = self.echo_sent_at
        if self.is_proven or self._has_warned or sent_at is None:
            return
        if time.monotonic() - sent_at > _ECHO_SECONDS:
            self._has_warned = True
            _logger.warning(
                "notifications do not arrive, so jobs are found by polling only; behind a pooler"
                " set JOBS_DIRECT_DATABASE_URL to a direct connection, or JOBS_WAKEUPS=off"
            )


class SleepMarks:
    """Says that this worker sleeps: one shared advisory lock per job type, held while it waits."""

    def __init__(
        self, connections: EngineConnections, listener: Listener, job_types: Sequence[str]
    ) -> None:
        """Open nothing yet."""
        self._connection = KeptConnection(connections, "sleep marks")
        self._listener = listener
        self._job_types = list(job_types)
        self._echoed: str | None = None
        self._retry_at = 0.0
        self.are_held = False
        self.are_contended = False
        """Whether somebody else held one of them when they were tried last."""

    def prove(self) -> None:
        """Send the listener its echo, once for each of its connections."""
        token = self._listener.token
        if token is None or token == self._echoed:
            return
        echo = {"channel": _PROBE_CHANNEL, "token": token}
        if self._ask(_SEND_ECHO, echo) is not None:
            self._echoed = token
            self._listener.echo_sent_at = time.monotonic()

    def take(self) -> bool:
        """Hold the marks if notifications arrive; tell whether they were taken now."""
        self.are_contended = False
        if self.are_held and not self._listener.is_proven:
            self.drop()
        if self.are_held or not self._listener.is_proven:
            return False
        are_held = self._ask(TAKE_MARKS, {"job_types": self._job_types})
        self.are_contended = are_held is False
        self.are_held = are_held is True
        return self.are_held

    def drop(self) -> None:
        """Release the marks."""
        if self.are_held:
            self.are_held = False
            self._ask(DROP_MARKS, {})

    def close(self) -> None:
        """Close the connection, which releases the marks."""
        self.are_held = False
        self._connection.close()

    def _ask(self, sql: str, parameters: Mapping[str, object]) -> Any:
        """Return the one value that a statement answers; None if it could not be asked."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            with self._connection.use(_DEADLINE_SECONDS) as connection:
                row = connection.execute(sql, parameters).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]  # constants
            # One that answered too late was closed, and what it took went with it.
            is_lost = connection.closed
        except Exception:  # noqa: BLE001  # `configure` and callables of the user's, too
            row, is_lost = None, True
        if is_lost:
            # Without marks nobody notifies; polling goes on.
            self.close()
            self._retry_at = time.monotonic() + spread(_MARK_RETRY_SECONDS)
            return None
        return None if row is None else row[0]
