"""Dead-letter hooks: handlers are told after a job was given up."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from runledger_core import JobDeadLetterInfo, JobLease, JsonValue, Unset, type_name

from .backoff import Outage
from .binding import DeadLetterFunction
from .daemon_thread import start_daemon
from .ended_context import EndedJobContext, HookLending
from .forked_child import EndsForkedChild
from .registry import DEAD_LETTER_SECONDS, JobRegistry
from .safe_log import safe_logger

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = safe_logger(__name__)

_MOST_AT_ONCE: Final = 8
_ABANDON_SECONDS: Final = 0.5
_MOST_STUCK: Final = 8

ReadJson: TypeAlias = Callable[[], JsonValue]
"""Returns a stored value; may raise."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up, as its handler is told of it.

    Attributes:
        payload: Returns it as it is stored; called on the hook's thread.
        checkpoint: As `payload`; None if nothing is stored.
    """

    lease: JobLease
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    payload: ReadJson
    checkpoint: ReadJson
    info: JobDeadLetterInfo


def reader_of(value: JsonValue | Unset) -> ReadJson:
    """Return what returns a value that was decoded for the hook alone; None for UNSET."""
    return lambda: None if isinstance(value, Unset) else value


@dataclass(eq=False, slots=True)
class _Group:
    """Dead letters that were submitted together."""

    left: int
    then: Callable[[], None] | None


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
        # Log lines and `then`s, which may wait for anything: not with the lock held.
        self._put_off: list[Callable[[], None]] = []
        self._callers = 0
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
                none, never if one of them is skipped by a stop. It may submit others.
        """
        wanted = [letter for letter in letters if self._hook_of(letter) is not None]
        if not wanted:
            if then is not None:
                then()
            return
        group = _Group(len(wanted), then)
        with self._lock_and_call():
            self._waiting.extend(_Hook(letter, group, HookLending(self._pool)) for letter in wanted)
            self._start_waiting_locked()

    def stop(self) -> None:
        """Start only so many from now on that they and those that run now are eight at most."""
        with self._lock:
            self._starts_left = min(self._starts_left, max(0, _MOST_AT_ONCE - len(self._running)))

    def finish(self) -> None:
        """Wait for the hooks that run and those that may still start, ten seconds each at most.

        Unless stopped before, the eight that come next may. The rest is skipped and counted.
        """
        with self._lock:
            self._starts_left = min(self._starts_left, _MOST_AT_ONCE)
        while True:
            with self._lock_and_call():
                self._skip_the_rest_locked()
                # Here too: there may have been no thread for the watch.
                self._end_overdue_locked()
            with self._lock:
                if self._is_abandoned or not (self._running or self._waiting or self._callers):
                    return
                # Else a stop came meanwhile, and lets fewer start.
                if len(self._waiting) <= self._starts_left:
                    self._changed.wait(self._seconds_to_next_locked())

    def abandon(self) -> None:
        """Start no more and wait for none: the process is about to end."""
        self._is_abandoned = True
        # Who starts a thread holds the lock until that runs, which the end must not wait for.
        if self._lock.acquire(timeout=_ABANDON_SECONDS):
            self._waiting.clear()
            self._changed.notify_all()
            self._lock.release()

    @property
    def has_work(self) -> bool:
        """Whether hooks run or wait."""
        # Without the lock: health must not wait for who starts a thread with it held.
        return bool(self._running or self._waiting)

    def _hook_of(self, letter: DeadLetter) -> DeadLetterFunction | None:
        handler = self._registry.get(letter.job_type)
        return None if handler is None else handler.on_dead_letter

    @contextmanager
    def _lock_and_call(self) -> Generator[None]:
        """Hold the lock, release it, and make the calls that were put off meanwhile."""
        with self._lock:
            yield
            calls, self._put_off = self._put_off, []
            if not calls:
                return
            self._callers += 1
        try:
            for call in calls:
                call()
        finally:
            with self._lock:
                self._callers -= 1
                self._changed.notify_all()

    def _log_locked(self, log: Callable[..., None], message: str, **fields: object) -> None:
        self._put_off.append(partial(log, message, extra=fields))

    def _start_waiting_locked(self) -> None:
        while self._may_start_locked():
            hook = self._waiting.popleft()
            if len(self._stuck) > _MOST_STUCK:
                self._skip_locked(hook)
                continue
            self._starts_left -= 1
            hook.due_at = time.monotonic() + DEAD_LETTER_SECONDS
            name = f"runledger-dead-letter-{hook.letter.job_type}"
            if start_daemon(partial(self._run, hook), name=name) is None:
                self._log_locked(
                    _logger.error, "no thread for a dead-letter hook; skipped", **_fields(hook)
                )
                self._count_locked(hook)
            else:
                self._running.add(hook)
        if self._running and self._watch is None:
            self._watch = start_daemon(self._watch_time, name="runledger-dead-letters")

    def _may_start_locked(self) -> bool:
        return (
            bool(self._waiting)
            and self._starts_left > 0
            and len(self._running) < _MOST_AT_ONCE
            and not self._is_abandoned
        )

    def _skip_locked(self, hook: _Hook) -> None:
        step = self._skips.failed()
        if step.is_worth_logging:
            self._log_locked(
                _logger.error,
                "dead-letter hooks hang; others are skipped until some have returned",
                **_fields(hook),
                stuck=len(self._stuck),
                skipped=step.failures,
            )
        self._count_locked(hook)

    def _skip_the_rest_locked(self) -> None:
        skipped = 0
        while len(self._waiting) > self._starts_left:
            self._waiting.pop()
            skipped += 1
        if skipped:
            self._log_locked(
                _logger.warning, "dead-letter hooks skipped at the stop", skipped=skipped
            )

    def _returned_locked(self, hook: _Hook) -> None:
        if hook in self._running:
            self._over_locked(hook)
            return
        self._stuck.discard(hook)
        if len(self._stuck) <= _MOST_STUCK and (skipped := self._skips.ended()):
            self._log_locked(_logger.warning, "dead-letter hooks are called again", skipped=skipped)

    def _over_locked(self, hook: _Hook) -> None:
        self._running.remove(hook)
        self._count_locked(hook)
        self._start_waiting_locked()
        self._changed.notify_all()

    def _count_locked(self, hook: _Hook) -> None:
        group = hook.group
        group.left -= 1
        if not group.left and group.then is not None:
            self._put_off.append(group.then)

    def _end_overdue_locked(self) -> None:
        """Stop and wait no longer for hooks whose time is over."""
        now = time.monotonic()
        for hook in [each for each in self._running if each.due_at <= now]:
            self._log_locked(_logger.error, "a dead-letter hook takes too long", **_fields(hook))
            hook.lending.end()
            self._stuck.add(hook)
            self._over_locked(hook)

    def _seconds_to_next_locked(self) -> float:
        """Return the seconds until the time of the next running hook is over."""
        now = time.monotonic()
        # Whatever starts meanwhile is due later than this.
        due_at = min((each.due_at for each in self._running), default=now + DEAD_LETTER_SECONDS)
        return max(0.0, due_at - now)

    def _watch_time(self) -> None:
        while True:
            with self._lock_and_call():
                self._end_overdue_locked()
            with self._lock:
                if not self._running:
                    self._watch = None
                    return
                self._changed.wait(self._seconds_to_next_locked())

    def _run(self, hook: _Hook) -> None:
        letter = hook.letter
        try:
            tell = self._hook_of(letter)
            if tell is not None:
                context = _context_of(hook)
                with EndsForkedChild():
                    tell(context, letter.payload(), letter.info)
        except BaseException as error:  # noqa: BLE001  # a hook must not end its thread
            _logger.error(  # noqa: TRY400  # the exception's text may hold the payload
                "a dead-letter hook failed", extra=_fields(hook) | {"error": type_name(error)}
            )
        finally:
            with self._lock_and_call():
                self._returned_locked(hook)


def _context_of(hook: _Hook) -> EndedJobContext:
    letter = hook.letter
    return EndedJobContext(
        letter.lease,
        letter.job_type,
        organization_id=letter.organization_id,
        max_attempts=letter.info.max_attempts,
        checkpoint=letter.checkpoint(),
        lending=hook.lending,
    )


def _fields(hook: _Hook) -> dict[str, object]:
    return {"job_id": str(hook.letter.lease.job_id), "job_type": hook.letter.job_type}
