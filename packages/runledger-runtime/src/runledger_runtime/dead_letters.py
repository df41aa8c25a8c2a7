"""Dead-letter hooks: handlers are told after a job was given up."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
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
    type_name,
)

from .backoff import Outage
from .event_loop import refuse_on_event_loop
from .forked_child import EndsForkedChild
from .loan import Lending
from .registry import DEAD_LETTER_SECONDS, JobRegistry
from .safe_log import safe_logger

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = safe_logger(__name__)

HOOK_SECONDS: Final = DEAD_LETTER_SECONDS
_MOST_AT_ONCE: Final = 8
_ABANDON_SECONDS: Final = 0.5
_MOST_STUCK: Final = 8

DeadLetterHook: TypeAlias = Callable[[JobContext, JsonValue, JobDeadLetterInfo], object]
Decode: TypeAlias = Callable[[], JsonValue]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up, as its handler is told of it.

    Attributes:
        payload: Returns it as it is stored; called on the hook's thread, may raise.
        checkpoint: As `payload`; None if nothing is stored.
    """

    lease: JobLease
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    payload: Decode
    checkpoint: Decode
    info: JobDeadLetterInfo


def decoded(value: JsonValue | Unset) -> Decode:
    """Return what returns a value that was decoded for the hook alone; None for UNSET."""
    return lambda: None if isinstance(value, Unset) else value


@dataclass(eq=False, slots=True)
class _Group:
    """Dead letters that were submitted together."""

    left: int
    then: Callable[[], None] | None

    def one_is_over(self) -> None:
        """Count one of them."""
        self.left -= 1
        if not self.left and self.then is not None:
            self.then()


@dataclass(eq=False, slots=True)
class _Hook:
    """One call of a hook, waiting or running."""

    letter: DeadLetter
    group: _Group
    lending: HookLending
    due_at: float = 0.0


class DeadLetterHooks:
    """Calls `on_dead_letter` of registered handlers, after the dead letter is committed.

    Best effort: at most eight at once and off the job slots, each for ten seconds, after which it
    is told to stop and no longer waited for. While more than eight go on regardless no other is
    called. What a hook raises is logged and changes nothing; a crash loses it. The dead letter
    itself is in the database.
    """

    def __init__(self, registry: JobRegistry, pool: ConnectionPool[Any]) -> None:
        """Run nothing yet."""
        self._registry = registry
        self._pool = pool
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Hook] = deque()
        self._running: set[_Hook] = set()
        # No longer waited for, while their threads go on.
        self._stuck: set[_Hook] = set()
        self._skips = Outage()
        self._starts_left: float = math.inf
        self._is_abandoned = False
        self._watch: threading.Thread | None = None

    def submit(self, letter: DeadLetter) -> None:
        """Tell the handler of this job's type, if it wants to know."""
        self.submit_all([letter])

    def submit_all(
        self, letters: Sequence[DeadLetter], *, then: Callable[[], None] | None = None
    ) -> None:
        """Tell the handlers of these jobs' types, those that want to know.

        Args:
            then: Called once, from any thread, when all of them are over: at once if there are
                none, never if one of them is skipped by a stop.
        """
        wanted = [letter for letter in letters if self._hook_of(letter) is not None]
        if not wanted:
            if then is not None:
                then()
            return
        group = _Group(len(wanted), then)
        with self._lock:
            self._waiting.extend(_Hook(letter, group, HookLending(self._pool)) for letter in wanted)
            self._start_waiting()

    def stop(self) -> None:
        """Start no more than make eight, with those that run."""
        with self._lock:
            self._starts_left = min(self._starts_left, max(0, _MOST_AT_ONCE - len(self._running)))

    def finish(self) -> None:
        """Wait for the hooks that run and those that may still start, ten seconds each at most.

        Unless stopped before, the eight that come next may. The rest is skipped and counted.
        """
        with self._lock:
            self._starts_left = min(self._starts_left, _MOST_AT_ONCE)
            skipped = 0
            while len(self._waiting) > self._starts_left:
                self._waiting.pop()
                skipped += 1
            if skipped:
                _logger.warning("dead-letter hooks skipped at the stop", extra={"skipped": skipped})
            while (self._waiting or self._running) and not self._is_abandoned:
                # Here too: there may have been no thread for the watch.
                self._changed.wait(self._end_overdue())

    def abandon(self) -> None:
        """Start no more and wait for none: the process is about to end."""
        self._is_abandoned = True
        # Who logs holds the lock, and may wait for whoever reads the log.
        if self._lock.acquire(timeout=_ABANDON_SECONDS):
            self._waiting.clear()
            self._changed.notify_all()
            self._lock.release()

    def _hook_of(self, letter: DeadLetter) -> DeadLetterHook | None:
        handler = self._registry.get(letter.job_type)
        return None if handler is None else handler.on_dead_letter

    def _start_waiting(self) -> None:
        while self._may_start() and len(self._running) < _MOST_AT_ONCE:
            hook = self._waiting.popleft()
            if len(self._stuck) > _MOST_STUCK:
                self._skip(hook)
                continue
            self._starts_left -= 1
            hook.due_at = time.monotonic() + HOOK_SECONDS
            name = f"runledger-dead-letter-{hook.letter.job_type}"
            if _start_daemon(partial(self._run, hook), name=name) is None:
                _logger.error("no thread for a dead-letter hook; skipped", extra=_fields(hook))
                hook.group.one_is_over()
            else:
                self._running.add(hook)
        if self._running and self._watch is None:
            self._watch = _start_daemon(self._watch_time, name="runledger-dead-letters")

    def _may_start(self) -> bool:
        return bool(self._waiting) and self._starts_left > 0 and not self._is_abandoned

    def _skip(self, hook: _Hook) -> None:
        step = self._skips.failed()
        if step.is_worth_logging:
            _logger.error(
                "dead-letter hooks hang; others are skipped until some have returned",
                extra=_fields(hook) | {"stuck": len(self._stuck), "skipped": step.failures},
            )
        hook.group.one_is_over()

    def _returned(self, hook: _Hook) -> None:
        if hook in self._running:
            self._over(hook)
            return
        self._stuck.discard(hook)
        if len(self._stuck) <= _MOST_STUCK and (skipped := self._skips.ended()):
            _logger.warning("dead-letter hooks are called again", extra={"skipped": skipped})

    def _over(self, hook: _Hook) -> None:
        self._running.remove(hook)
        hook.group.one_is_over()
        self._start_waiting()
        self._changed.notify_all()

    def _end_overdue(self) -> float:
        """Stop and wait no longer for hooks whose time is over.

        Returns:
            The seconds until the next one's is.
        """
        now = time.monotonic()
        for hook in [each for each in self._running if each.due_at <= now]:
            _logger.error("a dead-letter hook takes too long", extra=_fields(hook))
            hook.lending.end()
            self._stuck.add(hook)
            self._over(hook)
        # Whatever starts meanwhile is due later than this.
        return max(0.0, min((each.due_at for each in self._running), default=now) - now)

    def _watch_time(self) -> None:
        with self._lock:
            while self._running:
                self._changed.wait(self._end_overdue())
            self._watch = None

    def _run(self, hook: _Hook) -> None:
        try:
            tell = self._hook_of(hook.letter)
            if tell is not None:
                context = EndedJobContext(hook.letter, hook.lending)
                with EndsForkedChild():
                    tell(context, hook.letter.payload(), hook.letter.info)
        except BaseException as error:  # noqa: BLE001  # a hook must not end its thread
            _logger.error(  # noqa: TRY400  # the exception's text may hold the payload
                "a dead-letter hook failed", extra=_fields(hook) | {"error": type_name(error)}
            )
        finally:
            with self._lock:
                self._returned(hook)

    @property
    def has_work(self) -> bool:
        """Whether hooks run or wait."""
        # Without the lock: somebody may hold it while he logs, and a log may ask for this.
        return bool(self._running or self._waiting)


def _start_daemon(run: Callable[[], None], *, name: str) -> threading.Thread | None:
    """Start a thread and return it; None if the process can have no more."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return None
    return thread


def _fields(hook: _Hook) -> dict[str, object]:
    return {"job_id": str(hook.letter.lease.job_id), "job_type": hook.letter.job_type}


class HookLending:
    """Lends connections to one hook, until its time is over."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        """Lend of this pool."""
        self.is_over: threading.Event = threading.Event()
        self._lending = Lending(pool)

    def end(self) -> None:
        """Lend nothing more, and cancel what runs on lent connections."""
        self.is_over.set()
        self._lending.cancel()

    def lend(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Lend a connection, reset on return."""
        self._refuse_if_over()
        return self._lending.lend(refuse=self._refuse_if_over)

    def _refuse_if_over(self) -> None:
        if self.is_over.is_set():
            raise JobCancelled(CancelReason.TIMEOUT)


class EndedJobContext(JobContext):
    """The context of a job that has ended: its data, and connections of the pool."""

    def __init__(self, letter: DeadLetter, lending: HookLending) -> None:
        """Take the job's data."""
        self._lending = lending
        self.job_id: UUID = letter.lease.job_id
        self.job_type: JobType = JobType(letter.job_type)
        self.run_number: int = letter.lease.run_number
        self.attempt: int = letter.lease.attempt
        self.max_attempts: int = letter.info.max_attempts
        self.organization_id: UUID | None = letter.organization_id
        self.worker_id: WorkerId = WorkerId(letter.lease.worker_id)
        self.checkpoint: JsonValue = letter.checkpoint()
        self.deadline: datetime = datetime.now(UTC)

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the hook's time is over."""
        return self._lending.is_over

    @property
    def cancel_reason(self) -> CancelReason | None:
        """TIMEOUT when the hook's time is over, None before."""
        return CancelReason.TIMEOUT if self._lending.is_over.is_set() else None

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
        """Lend a connection of the user's pool, cancelled with the hook, reset on return.

        Raises:
            JobCancelled: The hook's time is over.
        """
        refuse_on_event_loop()
        with self._lending.lend() as connection:
            yield connection
