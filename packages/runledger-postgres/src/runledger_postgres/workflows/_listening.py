"""The listener of a process's waiters: one direct connection that hears of ended runs.

It holds the waiters' mark while somebody waits, since without a mark nobody notifies. Polling stays
the truth: whatever fails here only makes a wait end later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final
from uuid import UUID

from .._database import Pool
from ..direct import Connection, connect_directly
from ._link import LinkGuard, has_own_session
from ._waiters import MOST_TOLD, RUN_ENDED_CHANNEL, WAITERS_MARK

_logger = logging.getLogger(__name__)

_ROUND_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 5.0
_SHORTEST_RETRY_SECONDS: Final = 0.1
_LONGEST_RETRY_SECONDS: Final = 5.0
_MARK_RETRY_SECONDS: Final = 0.1
_TRY_MARK: Final = "SELECT pg_try_advisory_lock_shared(%s)"


class Listener(threading.Thread):
    """Hears of ended runs, and makes its connection anew for as long as somebody waits.

    Attributes:
        trouble: Why there is no connection; None while there is one.
    """

    def __init__(
        self,
        pool: Pool,
        guard: LinkGuard,
        *,
        on_heard: Callable[[Collection[UUID] | None], None],
        is_waited_for: threading.Event,
        is_over: threading.Event,
    ) -> None:
        """Prepare the thread; `start()` begins to listen.

        Args:
            on_heard: Gets runs that have ended; None if any may have.
            is_waited_for: Set while somebody waits, and at the end.
            is_over: Set at the end.
        """
        super().__init__(name="runledger-run-listener", daemon=True)
        self._pool = pool
        self._guard = guard
        self._on_heard = on_heard
        self._is_waited_for = is_waited_for
        self._is_over = is_over
        self._retry_seconds = _SHORTEST_RETRY_SECONDS
        self.trouble: Exception | None = None

    def run(self) -> None:
        """Listen until all is over; never ends by an error."""
        while not self._is_over.is_set():
            try:
                with closing(self._connect()) as connection:
                    if not self._is_direct(connection):
                        return
                    self._listen(connection)
            except Exception as error:  # noqa: BLE001  # `configure` and callables of the user's, too
                self.trouble = error
                self._is_over.wait(self._retry_seconds)
                self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)

    def _connect(self) -> Connection:
        return connect_directly(
            self._pool,
            "run waits",
            within=lambda connection: self._guard.within(connection, _ANSWER_SECONDS),
        )

    def _is_direct(self, connection: Connection) -> bool:
        with self._guard.within(connection, _ANSWER_SECONDS):
            is_direct = has_own_session(connection)
        if not is_direct:
            self.trouble = None
            _logger.info("behind a pooler the ends of workflow runs are found by polling only")
        return is_direct

    def _listen(self, connection: Connection) -> None:
        with self._guard.within(connection, _ANSWER_SECONDS):
            connection.execute(f"LISTEN {RUN_ENDED_CHANNEL}")  # pyright: ignore[reportArgumentType]  # a constant of ours
        while not self._is_over.is_set():
            if not self._try_to_take_mark(connection):
                # Whoever ends a run holds it for an instant; a stranger, for as long as he likes.
                self._is_over.wait(_MARK_RETRY_SECONDS)
                self._is_waited_for.wait()
                continue
            self.trouble = None
            self._retry_seconds = _SHORTEST_RETRY_SECONDS
            # Runs that ended before the mark was held were told to nobody.
            self._on_heard(None)
            self._hear(connection)
            with self._guard.within(connection, _ANSWER_SECONDS):
                connection.execute("SELECT pg_advisory_unlock_shared(%s)", [WAITERS_MARK])
            self._is_waited_for.wait()

    def _try_to_take_mark(self, connection: Connection) -> bool:
        # Without waiting: the server would go on waiting after the link was broken.
        with self._guard.within(connection, _ANSWER_SECONDS):
            row = connection.execute(_TRY_MARK, [WAITERS_MARK]).fetchone()
        return row is not None and row[0]

    def _hear(self, connection: Connection) -> None:
        check_at = time.monotonic() + _CHECK_SECONDS
        while self._is_waited_for.is_set() and not self._is_over.is_set():
            for notice in connection.notifies(timeout=_ROUND_SECONDS):
                self._on_heard(told_runs(notice.payload))
            if time.monotonic() >= check_at:
                with self._guard.within(connection, _ANSWER_SECONDS):
                    connection.execute("SELECT 1", prepare=False)
                check_at = time.monotonic() + _CHECK_SECONDS


def told_runs(payload: str) -> Collection[UUID] | None:
    """Return the runs that a notification tells of; None if others may have ended beside them."""
    try:
        run_ids = {UUID(text) for text in payload.split(",")}
    except ValueError:
        # Anybody may notify on a channel.
        return ()
    return None if len(run_ids) >= MOST_TOLD else run_ids
