"""Dead-letter hooks: handlers are told after a job was given up."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg

from runledger_core import (
    UNSET,
    CancelReason,
    JobCancelled,
    JobContext,
    JobDeadLetterInfo,
    JobLease,
    JobStage,
    JobType,
    JsonInput,
    JsonValue,
    Unset,
    WorkerId,
)

from .registry import JobRegistry

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = logging.getLogger(__name__)

HOOK_SECONDS: Final = 10.0
_MOST_AT_ONCE: Final = 8
_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up, as its handler is told of it."""

    lease: JobLease
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    payload: JsonValue
    checkpoint: JsonValue
    info: JobDeadLetterInfo


class DeadLetterHooks:
    """Calls `on_dead_letter` of registered handlers, after the dead letter is committed.

    Best effort: at most eight at once and off the job slots, each for ten seconds, after which it
    is no longer waited for. What a hook raises is logged and changes nothing; a crash loses it.
    The dead letter itself is in the database.
    """

    def __init__(self, registry: JobRegistry, pool: ConnectionPool[Any]) -> None:
        """Run nothing yet."""
        self._registry = registry
        self._pool = pool
        self._lock = threading.Lock()
        self._waiting: deque[DeadLetter] = deque()
        self._running: dict[threading.Thread, float] = {}

    def submit(self, letter: DeadLetter) -> None:
        """Tell the handler of this job's type, if it wants to know."""
        handler = self._registry.get(letter.job_type)
        if handler is None or handler.on_dead_letter is None:
            return
        with self._lock:
            self._waiting.append(letter)
        self.advance()

    def advance(self) -> None:
        """Give up overdue hooks and start waiting ones; call this now and then."""
        now = time.monotonic()
        with self._lock:
            for thread in [t for t, since in self._running.items() if now - since > HOOK_SECONDS]:
                del self._running[thread]
                _logger.error("a dead-letter hook takes too long", extra={"hook": thread.name})
            while self._waiting and len(self._running) < _MOST_AT_ONCE:
                letter = self._waiting.popleft()
                thread = threading.Thread(
                    target=self._run,
                    args=(letter,),
                    name=f"runledger-dead-letter-{letter.job_type}",
                    daemon=True,
                )
                self._running[thread] = now
                thread.start()

    def finish(self) -> None:
        """Wait for the hooks that run and the eight that come next, ten seconds each at most."""
        with self._lock:
            skipped = max(0, len(self._waiting) - _MOST_AT_ONCE)
            for _ in range(skipped):
                self._waiting.pop()
        if skipped:
            _logger.warning("dead-letter hooks skipped at the stop", extra={"skipped": skipped})
        pause = threading.Event()
        while self._waiting or self._running:
            self.advance()
            pause.wait(_LOOK_SECONDS)

    def _run(self, letter: DeadLetter) -> None:
        handler = self._registry.get(letter.job_type)
        try:
            if handler is not None and handler.on_dead_letter is not None:
                context = EndedJobContext(letter, self._pool)
                handler.on_dead_letter(context, letter.payload, letter.info)
        except BaseException as error:  # noqa: BLE001  # a hook must not end the thread's owner
            _logger.error(  # noqa: TRY400  # the exception's text may hold the payload
                "a dead-letter hook failed",
                extra={"job_id": str(letter.lease.job_id), "error": type(error).__name__},
            )
        finally:
            with self._lock:
                self._running.pop(threading.current_thread(), None)
            self.advance()


class EndedJobContext(JobContext):
    """The context of a job that has ended: its data, and connections of the pool."""

    def __init__(self, letter: DeadLetter, pool: ConnectionPool[Any]) -> None:
        """Take the job's data."""
        self._pool = pool
        self._cancelled = threading.Event()
        self.job_id: UUID = letter.lease.job_id
        self.job_type: JobType = JobType(letter.job_type)
        self.run_number: int = letter.lease.run_number
        self.attempt: int = letter.lease.attempt
        self.max_attempts: int = letter.info.max_attempts
        self.organization_id: UUID | None = letter.organization_id
        self.worker_id: WorkerId = WorkerId(letter.lease.worker_id)
        self.checkpoint: JsonValue = letter.checkpoint
        self.deadline: datetime = datetime.now(UTC)

    @property
    def cancelled(self) -> threading.Event:
        """An event that nobody sets."""
        return self._cancelled

    @property
    def cancel_reason(self) -> CancelReason | None:
        """None: the job was not stopped, it has ended."""
        return None

    def remaining(self) -> float:
        """Return 0: the attempt is over."""
        return 0.0

    def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        *,
        stage: JobStage | None = None,
        checkpoint: JsonInput | Unset = UNSET,
    ) -> None:
        """Refuse: there is no attempt to report on.

        Raises:
            JobCancelled: Always.
        """
        del done, total, stage, checkpoint
        raise JobCancelled(CancelReason.LEASE_LOST)

    def log(self, level: str, message: str, /, **fields: JsonInput) -> None:
        """Refuse: there is no attempt to log for.

        Raises:
            JobCancelled: Always.
        """
        del level, message, fields
        raise JobCancelled(CancelReason.LEASE_LOST)

    @contextmanager
    def connection(self) -> Generator[psycopg.Connection[Any]]:
        """Lend a connection of the user's pool."""
        with self._pool.connection() as connection:
            yield connection
