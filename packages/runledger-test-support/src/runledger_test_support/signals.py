"""Wait for what a worker does, instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from runledger_core import UnavailableError

from .errors import WAIT_TIMEOUT

_DEFAULT_SECONDS = 10.0


class ObservedKind(StrEnum):
    """Which observer method was called."""

    JOB_RUNNING = "JOB_RUNNING"
    JOB_SUCCEEDED = "JOB_SUCCEEDED"
    JOB_FAILED = "JOB_FAILED"
    JOB_COMPLETION_PERSIST_FAILED = "JOB_COMPLETION_PERSIST_FAILED"
    JOB_LEASE_LOST = "JOB_LEASE_LOST"
    JOB_LEASE_REAPED = "JOB_LEASE_REAPED"


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """One call of an observer method."""

    kind: ObservedKind
    event: object


class WaitableObserver:
    """A job lifecycle observer that remembers its events and lets a test wait for one.

    Thread-safe. Events are remembered from the start, so a wait that begins too late still finds
    what it waits for::

        observer = WaitableObserver()
        start_what_calls(observer.on_job_succeeded)
        observer.wait_for_kind(ObservedKind.JOB_SUCCEEDED)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[ObservedEvent] = []

    @property
    def events(self) -> list[ObservedEvent]:
        """What was observed so far, oldest first."""
        with self._changed:
            return list(self._events)

    def wait_for(
        self,
        predicate: Callable[[ObservedEvent], bool],
        timeout_seconds: float = _DEFAULT_SECONDS,
    ) -> ObservedEvent:
        """Return the oldest event that fits, as soon as there is one.

        Args:
            predicate: Called with each event once, in order, in the waiting thread.
            timeout_seconds: Longest wait, 0 or more.

        Raises:
            UnavailableError: `test_support.wait_timeout`; its message counts what was seen.
        """
        deadline = time.monotonic() + timeout_seconds
        position = 0
        while True:
            fresh = self._after(position, deadline)
            # Outside the lock: a predicate may take its time, or look at this observer.
            for event in fresh:
                if predicate(event):
                    return event
            position += len(fresh)
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    WAIT_TIMEOUT, f"no such event in {timeout_seconds} s; seen: {self._summary()}"
                )

    def wait_for_kind(
        self, kind: ObservedKind, timeout_seconds: float = _DEFAULT_SECONDS
    ) -> ObservedEvent:
        """Return the oldest event of a kind, as soon as there is one.

        Raises:
            UnavailableError: `test_support.wait_timeout`.
        """
        return self.wait_for(lambda event: event.kind is kind, timeout_seconds)

    def clear(self) -> None:
        """Forget what was observed; not while another thread waits."""
        with self._changed:
            self._events.clear()

    def on_job_running(self, event: object) -> None:
        """Remember that a handler was entered."""
        self._add(ObservedKind.JOB_RUNNING, event)

    def on_job_succeeded(self, event: object) -> None:
        """Remember a success."""
        self._add(ObservedKind.JOB_SUCCEEDED, event)

    def on_job_failed(self, event: object) -> None:
        """Remember a failure."""
        self._add(ObservedKind.JOB_FAILED, event)

    def on_job_completion_persist_failed(self, event: object) -> None:
        """Remember an outcome that could not be stored."""
        self._add(ObservedKind.JOB_COMPLETION_PERSIST_FAILED, event)

    def on_job_lease_lost(self, event: object) -> None:
        """Remember a lost lease."""
        self._add(ObservedKind.JOB_LEASE_LOST, event)

    def on_job_lease_reaped(self, event: object) -> None:
        """Remember a reaped lease."""
        self._add(ObservedKind.JOB_LEASE_REAPED, event)

    def _add(self, kind: ObservedKind, event: object) -> None:
        with self._changed:
            self._events.append(ObservedEvent(kind, event))
            self._changed.notify_all()

    def _after(self, position: int, deadline: float) -> list[ObservedEvent]:
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._events) > position, deadline - time.monotonic()
            )
            return self._events[position:]

    def _summary(self) -> str:
        counts = dict.fromkeys(ObservedKind, 0)
        for event in self.events:
            counts[event.kind] += 1
        return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "nothing"
