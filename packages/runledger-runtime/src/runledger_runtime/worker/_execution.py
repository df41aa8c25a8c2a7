"""One attempt as the worker holds it: its lease, its handler's token, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import psycopg

from runledger_core import CancelReason, JobCancelled, JobCompletion, JobFailure
from runledger_postgres.lifecycle import ClaimedJob

from ..loan import Lending

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class ExecutionState(Enum):
    """How far an attempt has come in this process."""

    RUNNING = "RUNNING"
    """Its handler runs and its result counts."""
    ENDED = "ENDED"
    """It has an outcome that is being stored; the lease is kept until that is acknowledged."""
    CLOSED = "CLOSED"
    """Its outcome is stored or has become pointless; no lease is kept."""


class Ending(Enum):
    """How an execution came to its end."""

    RETURNED = "RETURNED"
    """Its handler returned and decided the outcome."""
    GIVEN_UP = "GIVEN_UP"
    """Its handler overstayed; the outcome was decided without it, and it is stuck."""
    RETURNED_LATE = "RETURNED_LATE"
    """Its handler returned after it was given up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, to be stored."""

    execution: Execution
    result: JobCompletion | JobFailure
    traceback: str | None = None


class Execution:
    """One claimed job, on a handler thread or on the event loop."""

    def __init__(
        self,
        job: ClaimedJob,
        pool: ConnectionPool[Any],
        *,
        lease_ends_at: float,
        is_reported: bool = True,
    ) -> None:
        """Start the attempt's clock.

        Args:
            lease_ends_at: Until when the lease is known to last, by the monotonic clock.
            is_reported: Whether observers and dead-letter hooks hear of it.
        """
        self.job = job
        self.pool = pool
        self.started_at = time.monotonic()
        self.deadline_at = self.started_at + max(1, job.timeout_seconds)
        self.is_cancelled = False
        self.cancel_reason: CancelReason | None = None
        self.ended_at: float | None = None
        self.told_at = 0.0
        self.is_reported = is_reported
        # Set when a round that held its outcome was cut off.
        self.is_stored_alone = False
        # How often it was cut off in a round of its own.
        self.cut_offs = 0
        # Ends the coroutine of an `async def` handler.
        self.interrupt: Callable[[], None] | None = None
        self.lease_ends_at = lease_ends_at
        self._lock = threading.Lock()
        self._state = ExecutionState.RUNNING
        self._lending = Lending(pool)
        self._cancelled: threading.Event | None = None

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the handler should stop; made when somebody asks for it."""
        with self._lock:
            if self._cancelled is None:
                self._cancelled = threading.Event()
                if self.is_cancelled:
                    self._cancelled.set()
            return self._cancelled

    @property
    def state(self) -> ExecutionState:
        """How far the attempt has come."""
        return self._state

    def end(self) -> bool:
        """Take the right to decide the outcome; only the first caller gets it."""
        with self._lock:
            if self._state is not ExecutionState.RUNNING:
                return False
            self._state = ExecutionState.ENDED
            self.ended_at = time.monotonic()
            return True

    def close(self) -> None:
        """Give the lease up: stored, lost, or never to be stored."""
        with self._lock:
            self._state = ExecutionState.CLOSED

    def cancel(self, reason: CancelReason) -> None:
        """Tell the handler to stop, once, and cancel its work on lent connections."""
        with self._lock:
            if self.is_cancelled:
                return
            self.cancel_reason = reason
            self.told_at = time.monotonic()
            self.is_cancelled = True
            if self._cancelled is not None:
                self._cancelled.set()
            interrupt = self.interrupt
        if interrupt is not None:
            interrupt()
        self._lending.cancel()

    def lend(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Lend a connection of the user's pool, cancelled with the handler, reset on return."""
        return self._lending.lend(refuse=lambda: refuse_ended(self))


def refuse_ended(execution: Execution) -> None:
    """Refuse services to an attempt that should stop or has ended.

    Raises:
        JobCancelled: It has been told to stop, or its outcome is decided.
    """
    if execution.is_cancelled:
        raise JobCancelled(execution.cancel_reason or CancelReason.CANCELED)
    if execution.state is not ExecutionState.RUNNING:
        raise JobCancelled(CancelReason.LEASE_LOST)
