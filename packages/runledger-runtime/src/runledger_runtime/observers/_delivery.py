"""Delivery of events: bounded, after one another for one attempt, never waited for by a job."""

from __future__ import annotations

import threading
import time
from typing import Final

from runledger_core import JobLease

from ..safe_log import safe_logger
from ._events import JobLifecycleEvent, JobRunningEvent
from ._lane import Call, Delivery, Lane, start_thread
from ._observer import CALLBACKS, JobLifecycleObservers

OBSERVER_SECONDS: Final = 10.0
"""How long all observers of one event have, together."""

_STARTS: Final = frozenset({CALLBACKS[JobRunningEvent]})
_ENDS: Final = frozenset(CALLBACKS.values()) - _STARTS
_LEAST_WAITING: Final = 64
_HURRY_SECONDS: Final = 0.25
_DROP_LOG_SECONDS: Final = 10.0

_logger = safe_logger(__name__)


class LifecycleDelivery:
    """Tell observers of events on threads of its own; thread-safe.

    All observers of an event are called at the same time. The event is over when all have returned,
    or after ten seconds: whoever has not been called by then is not called. The end of an attempt
    is delivered when its start is over. When too many events wait, the newest is dropped.
    """

    def __init__(self, observers: JobLifecycleObservers, *, burst: int) -> None:
        """Start no thread before the first event that an observer wants.

        Args:
            burst: How many attempts one commit may start or end. Twice as many starts and as many
                ends may wait, or 64 if that is more.
        """
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lanes = [
            Lane(each, callbacks, self._lock, on_over=self._call_over)
            for each in observers
            for callbacks in (_STARTS, _ENDS)
        ]
        self._most = max(_LEAST_WAITING, 2 * burst)
        self._open: set[Delivery] = set()
        self._starts: dict[JobLease, Delivery] = {}
        # Those that wait for the start of their attempt included.
        self._ends = 0
        self._watch: threading.Thread | None = None
        self._is_hurried = False
        self._is_finishing = False
        self._give_up_at = float("inf")
        self._is_stopped = False
        self._is_closed = False
        self._dropped = 0
        self._drop_logged_at = float("-inf")

    def started(self, lease: JobLease, event: JobRunningEvent) -> None:
        """Tell that an attempt starts; `ended` with the same lease waits for this."""
        callback = CALLBACKS[JobRunningEvent]
        with self._lock:
            if not self._is_wanted(callback):
                return
            if len(self._starts) >= self._most:
                self._drop(event, callback)
                return
            delivery = Delivery(event, callback, running_of=lease)
            self._starts[lease] = delivery
            self._begin(delivery)

    def ended(self, event: JobLifecycleEvent, *, lease: JobLease | None = None) -> None:
        """Tell how an attempt ended, after its start is over if a lease is given."""
        callback = CALLBACKS[type(event)]
        with self._lock:
            if not self._is_wanted(callback):
                return
            if self._ends >= self._most:
                self._drop(event, callback)
                return
            self._ends += 1
            delivery = Delivery(event, callback)
            start = None if lease is None else self._starts.get(lease)
            if start is None:
                self._begin(delivery)
            else:
                start.then = delivery

    def stop(self) -> None:
        """Call no observer from now on; what waits is dropped, what runs goes on."""
        with self._lock:
            self._drop_waiting()

    def finish(self, seconds: float) -> None:
        """Wait until everything is delivered or out of time, for `seconds` at most."""
        with self._lock:
            self._is_finishing = True
            if self._is_hurried:
                seconds = min(seconds, _HURRY_SECONDS)
            self._give_up_at = time.monotonic() + seconds
            while self._open and (left := self._give_up_at - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._open:
                _logger.warning(
                    "lifecycle observers are still running at the stop",
                    extra={"events": len(self._open)},
                )
            self._drop_waiting()
            self._is_closed = True
            for lane in self._lanes:
                lane.close()
            self._changed.notify_all()

    def hurry(self) -> None:
        """Let `finish` wait for a moment only: the process is about to end."""
        with self._lock:
            self._is_hurried = True
            self._give_up_at = min(self._give_up_at, time.monotonic() + _HURRY_SECONDS)
            self._changed.notify_all()

    def _drop_waiting(self) -> None:
        self._is_stopped = True
        for delivery in list(self._open):
            delivery.then = None
            for call in delivery.calls:
                if not call.is_started and not call.is_over:
                    self._call_over(call)

    def _is_wanted(self, callback: str) -> bool:
        return not self._is_stopped and any(lane.wants(callback) for lane in self._lanes)

    def _begin(self, delivery: Delivery) -> None:
        lanes = [lane for lane in self._lanes if lane.wants(delivery.callback)]
        delivery.due_at = time.monotonic() + OBSERVER_SECONDS
        delivery.calls = [Call(delivery, lane) for lane in lanes]
        delivery.calls_left = len(lanes)
        self._open.add(delivery)
        if not lanes:
            # Disabled while the event waited.
            self._over(delivery)
            return
        if self._watch is None:
            self._watch = start_thread(self._watch_time, name="runledger-observers")
        for call in delivery.calls:
            call.lane.put(call)

    def _call_over(self, call: Call) -> None:
        call.is_over = True
        delivery = call.delivery
        delivery.calls_left -= 1
        if not delivery.calls_left:
            self._over(delivery)

    def _over(self, delivery: Delivery) -> None:
        self._open.remove(delivery)
        if delivery.running_of is None:
            self._ends -= 1
        else:
            del self._starts[delivery.running_of]
        if delivery.then is not None:
            self._begin(delivery.then)
        if self._is_finishing and not self._open:
            self._changed.notify_all()

    def _watch_time(self) -> None:
        with self._lock:
            while not self._is_closed:
                now = time.monotonic()
                for delivery in [each for each in self._open if each.due_at <= now]:
                    self._expire(delivery)
                # Whatever begins meanwhile is due later than this.
                due_at = min((each.due_at for each in self._open), default=now + OBSERVER_SECONDS)
                self._changed.wait(max(0.0, due_at - now))

    def _expire(self, delivery: Delivery) -> None:
        for call in delivery.calls:
            if call.is_over:
                continue
            was_disabled = call.lane.is_disabled
            self._call_over(call)
            call.lane.give_up(call)
            if call.lane.is_disabled and not was_disabled:
                self._forget(call.lane)

    def _forget(self, lane: Lane) -> None:
        """Wait for nothing that a disabled observer has not begun."""
        calls = [call for delivery in self._open for call in delivery.calls if call.lane is lane]
        for call in calls:
            if not call.is_started and not call.is_over:
                self._call_over(call)

    def _drop(self, event: JobLifecycleEvent, callback: str) -> None:
        self._dropped += 1
        now = time.monotonic()
        if now - self._drop_logged_at < _DROP_LOG_SECONDS:
            return
        _logger.warning(
            "lifecycle observers are too slow; the newest event was dropped",
            extra={
                "callback": callback,
                "job_id": str(event.job.job_id),
                "dropped": self._dropped,
            },
        )
        self._drop_logged_at = now
        self._dropped = 0
