"""When the pump looks at the queue again."""

from __future__ import annotations

import threading
import time
from typing import Final

from ..backoff import spread
from ._claim_planner import ClaimReport
from ._wakeup import SleepMarks

# A transaction that enqueued while all were awake and commits after they fell asleep notifies
# nobody, so a worker that has just fallen asleep looks again soon.
_FIRST_POLLS_SECONDS: Final = (0.005, 0.02, 0.08, 0.32)
_CONTENDED_SECONDS: Final = (0.0, 0.005, 0.02, 0.05, 0.25)
_LEAST_DUE_WAIT_SECONDS: Final = 0.05
# A writer that tries a mark has it for a moment; without its marks nobody would wake the worker.
_MARKS_AGAIN_SECONDS: Final = 0.5


class Sleep:
    """Decides from each claim how long to leave the queue alone.

    The order is: claim empty, take the marks, claim again, wait; woken or lucky, drop the marks.
    """

    def __init__(self, marks: SleepMarks | None, *, poll_interval_seconds: float) -> None:
        """Be awake; without marks sleep by polling only."""
        self._marks = marks
        self._poll_interval = poll_interval_seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._polls = 0
        self._contended = 0
        self._ends = 0
        self._seen_ends = 0

    def end(self) -> None:
        """Be due at once, from any thread: notified, or asked to stop."""
        with self._lock:
            self._ends += 1
            self._until = 0.0

    def is_over(self) -> bool:
        """Whether the queue is to be looked at now."""
        with self._lock:
            self._seen_ends = self._ends
            return self._until <= time.monotonic()

    def seconds_left(self) -> float:
        """Return how long to wait yet, 0 or more."""
        return max(0.0, self._until - time.monotonic())

    def after_claim(self, claim: ClaimReport) -> None:
        """Decide when to claim next."""
        if self._marks is not None:
            self._marks.prove()
        if claim.claimed:
            self._polls = self._contended = 0
            if self._marks is not None:
                self._marks.drop()
        if claim.may_find_more:
            wait = 0.0
        elif claim.has_ready:
            wait = _CONTENDED_SECONDS[min(self._contended, len(_CONTENDED_SECONDS) - 1)]
            if not claim.claimed:
                self._contended += 1
        elif self._marks is not None and self._marks.take():
            # A job that committed before the marks were held has notified nobody; one whose
            # transaction did not see them, but commits only now, is left to short polls.
            self._polls = 0
            wait = 0.0
        else:
            self._contended = 0
            wait = self._next_poll(claim.due_in_seconds)
            if self._marks is not None and self._marks.are_contended:
                wait = min(wait, _MARKS_AGAIN_SECONDS)
        # Until a claim from the start nobody sees what sorts before the low mark.
        latest = wait if claim.latest_seconds is None else claim.latest_seconds
        self._sleep(min(wait, latest))

    def close(self) -> None:
        """Release the marks."""
        if self._marks is not None:
            self._marks.close()

    def _next_poll(self, due_in_seconds: float | None) -> float:
        if self._polls < len(_FIRST_POLLS_SECONDS):
            wait = min(_FIRST_POLLS_SECONDS[self._polls], self._poll_interval)
            self._polls += 1
        else:
            wait = spread(self._poll_interval)
        if due_in_seconds is None:
            return wait
        # A due row that was not readied is held by somebody; do not spin for it.
        return min(wait, max(due_in_seconds, _LEAST_DUE_WAIT_SECONDS))

    def _sleep(self, seconds: float) -> None:
        with self._lock:
            # Notified since the claim began: that job was perhaps not seen by it.
            if self._ends == self._seen_ends:
                self._until = time.monotonic() + seconds
