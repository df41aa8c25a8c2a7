"""The waits of a process for the ends of runs: one look at a time for all of them.

A wait belongs to a thread and costs neither connection nor query of its own. What a pool's threads
wait for together is a watch: it looks through the pool, for moments, once per poll interval and
whenever the listener has heard something, and it ends when nobody has waited for a while.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import UUID

from psycopg_pool import PoolTimeout, TooManyRequests

from runledger_core import ErrorCategory

from .._database import Pool, open_connection
from .._fork import require_own_pool
from .._session import Bound, run
from ..errors import QueryError, refusal
from ._link import LinkGuard
from ._listening import Listener
from ._run_wait import LOOK_AT_RUNS, Answer, RunWait

_LINGER_SECONDS: Final = 10.0
_CLOCK_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.25
# A server that takes longer for an answer is as good as none.
_SLOW_SECONDS: Final = 1.0


class RunWatch:
    """What the threads of one pool wait for; used until nobody has waited for a while."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._waits: dict[UUID, set[RunWait]] = {}
        self._interval = math.inf
        self._is_idle_since = time.monotonic()
        self._looked_at = -math.inf
        self._wanted: set[UUID] = set()
        self._are_all_wanted = False
        self._trouble: Exception | None = None
        self._asking_since = math.inf
        self._guard = LinkGuard()
        self._is_waited_for = threading.Event()
        self._is_over = threading.Event()
        self._listener: Listener | None = None

    @property
    def trouble(self) -> Exception | None:
        listener = self._listener
        found = self._trouble or (None if listener is None else listener.trouble)
        if found is None and time.monotonic() - self._asking_since > _SLOW_SECONDS:
            found = _unavailable("the database did not answer")
        return found

    def start(self) -> None:
        for name, work in (("looks", self._look_on), ("clock", self._watch_links)):
            threading.Thread(target=work, name=f"runledger-run-{name}", daemon=True).start()

    def add(self, wait: RunWait) -> bool:
        """Let it wait here; false if the watch is over."""
        with self._changed:
            if self._is_over.is_set():
                return False
            if not self._waits:
                self._looked_at = time.monotonic()
            # A run is never without a wait, even if an interrupt strikes in here.
            same_run = self._waits.get(wait.run_id, set())
            same_run.add(wait)
            self._waits[wait.run_id] = same_run
            self._interval = min(self._interval, wait.poll_interval)
            self._is_waited_for.set()
            # The looks may have to come sooner from now on.
            self._changed.notify()
            return True

    def remove(self, wait: RunWait) -> None:
        """Let it wait here no longer, if it does."""
        with self._changed:
            if self._is_over.is_set():
                return
            same_run = self._waits.get(wait.run_id, set())
            if same_run <= {wait}:
                self._waits.pop(wait.run_id, None)
            same_run.discard(wait)
            if not self._waits:
                self._is_idle_since = time.monotonic()
                self._interval = math.inf
                self._is_waited_for.clear()
                # The next look may be due in an hour, the end of the watch is before that.
                self._changed.notify()

    def ask(self, wait: RunWait) -> int:
        """Have a look that begins from now on answered, whatever it finds; return its number."""
        with self._changed:
            wait.asked += 1
            self._wanted.add(wait.run_id)
            self._changed.notify()
            return wait.asked

    def listen(self) -> None:
        """Be told of ends from now on, if that is possible."""
        with self._changed:
            if self._listener is None:
                listener = Listener(
                    self._pool,
                    self._guard,
                    on_heard=self._want,
                    is_waited_for=self._is_waited_for,
                    is_over=self._is_over,
                )
                # There may be no thread for it now: this wait polls, and the next tries again.
                with suppress(RuntimeError):
                    listener.start()
                    self._listener = listener

    def _want(self, run_ids: Collection[UUID] | None) -> None:
        with self._changed:
            if run_ids is None:
                self._are_all_wanted = True
            else:
                self._wanted.update(run_ids)
            self._changed.notify()

    def _look_on(self) -> None:
        while (run_ids := self._next_look()) is not None:
            self._look_at(run_ids)

    def _next_look(self) -> list[UUID] | None:
        with self._changed:
            while not self._is_over.is_set():
                now = time.monotonic()
                if not self._waits:
                    left = self._is_idle_since + _LINGER_SECONDS - now
                    if left <= 0 or self._pool.closed:
                        break
                    self._changed.wait(left)
                    continue
                due_at = self._looked_at + self._interval
                if self._are_all_wanted or now >= due_at:
                    return self._all_runs(now)
                wanted = [run_id for run_id in self._wanted if run_id in self._waits]
                self._wanted.clear()
                if wanted:
                    return wanted
                self._changed.wait(due_at - now)
            self._is_over.set()
            self._is_waited_for.set()
        with _lock:
            if _watches.get(self._pool) is self:
                del _watches[self._pool]
        return None

    def _all_runs(self, now: float) -> list[UUID]:
        self._looked_at = now
        self._wanted.clear()
        self._are_all_wanted = False
        self._interval = min(wait.poll_interval for waits in self._waits.values() for wait in waits)
        return list(self._waits)

    def _look_at(self, run_ids: list[UUID]) -> None:
        with self._changed:
            asking = {
                wait: wait.asked for run_id in run_ids for wait in self._waits.get(run_id, ())
            }
        try:
            with (
                open_connection(self._pool) as opened,
                self._guard.within(opened.connection, _ANSWER_SECONDS),
            ):
                # From here on it is not the pool that is waited for.
                self._asking_since = time.monotonic()
                rows = run(opened.connection, Bound(LOOK_AT_RUNS, {"run_ids": run_ids}))
        except Exception as error:  # noqa: BLE001  # given to those who wait
            self._look_failed(error, run_ids, asking)
            return
        finally:
            self._asking_since = math.inf
        self._trouble = None
        found = {row.id: row for row in rows}
        for wait, question in asking.items():
            row = found.get(wait.run_id)
            if row is None or row.status.is_terminal or question > wait.answered:
                wait.tell(Answer(row, question=question))

    def _look_failed(
        self, error: Exception, run_ids: list[UUID], asking: dict[RunWait, int]
    ) -> None:
        is_passing = isinstance(error, QueryError) and error.is_transient
        if self._pool.closed or not is_passing:
            for wait, question in asking.items():
                wait.tell(Answer(None, error, question))
            return
        if not isinstance(error.__cause__, PoolTimeout | TooManyRequests):
            self._trouble = error
        self._is_over.wait(_RETRY_SECONDS)
        self._want(run_ids)

    def _watch_links(self) -> None:
        while not self._is_over.wait(_CLOCK_SECONDS):
            self._guard.break_overdue()
            if self._pool.closed:
                self._tell_of_the_end()

    def _tell_of_the_end(self) -> None:
        closed = _unavailable("the pool is closed")
        with self._changed:
            waits = [wait for waits in self._waits.values() for wait in waits]
            self._changed.notify()
        for wait in waits:
            wait.tell(Answer(None, closed, wait.asked))


def _unavailable(client_message: str) -> QueryError:
    return refusal(ErrorCategory.UNAVAILABLE, "db.unavailable", client_message)


_lock = threading.Lock()
_watches: dict[Pool, RunWatch] = {}


def _forget() -> None:
    # A fork copies neither the threads nor who holds the lock.
    global _lock  # noqa: PLW0603  # as above
    _lock = threading.Lock()
    _watches.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def waiting(pool: Pool, run_id: UUID, *, poll_interval: float) -> Generator[RunWait]:
    """Wait for a run, together with all others who wait on the pool.

    Raises:
        ValidationError: `db.forked`.
    """
    require_own_pool(pool)
    waits: list[RunWait] = []
    try:
        yield _wait_on(pool, run_id, poll_interval, waits)
    finally:
        # Ctrl-C may strike anywhere, in here too; a wait that stayed would be looked at for ever.
        try:
            _leave(waits)
        finally:
            _leave(waits)


def _wait_on(pool: Pool, run_id: UUID, poll_interval: float, waits: list[RunWait]) -> RunWait:
    """Wait on the pool's watch; whatever may have been added to one is among `waits` before."""
    with _lock:
        watch = _watches.get(pool)
        if watch is not None:
            wait = RunWait(watch, run_id, poll_interval)
            waits.append(wait)
            if watch.add(wait):
                return wait
        watch = RunWatch(pool)
        wait = RunWait(watch, run_id, poll_interval)
        waits.append(wait)
        watch.add(wait)
        watch.start()
        # Known to others only now: without its threads they would wait for nothing.
        _watches[pool] = watch
        return wait


def _leave(waits: list[RunWait]) -> None:
    while waits:
        waits[-1].leave()
        waits.pop()
