"""The timekeeper: handlers that run too long are told, and given up after a grace period."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from runledger_core import CancelReason

from ..event_loop import EventLoop
from ._attempt import timeout_failure
from ._book import LeaseBook
from ._execution import Ending, Execution, Outcome
from ._slots import Deliver

_logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25


class Timekeeper(threading.Thread):
    """Looks at every running handler a few times a second.

    Past its deadline a handler is told: a coroutine is cancelled, a thread cannot be stopped from
    outside. Past the grace period its attempt ends in TIMEOUT, and it counts as stuck until it
    returns.
    """

    def __init__(
        self,
        book: LeaseBook,
        deliver: Deliver,
        *,
        event_loop: EventLoop,
        grace_seconds: float,
    ) -> None:
        """Prepare the thread; `start()` begins to look."""
        super().__init__(name="runledger-timekeeper", daemon=True)
        self._book = book
        self._deliver = deliver
        self._event_loop = event_loop
        self._grace = grace_seconds
        self._finished = threading.Event()

    def finish(self) -> None:
        """Stop looking."""
        self._finished.set()
        self.join(timeout=5.0)

    def run(self) -> None:
        """Look until finished."""
        while not self._finished.wait(_LOOK_SECONDS):
            now = time.monotonic()
            for execution in self._book.executions():
                self._look(execution, now)
            self._event_loop.look()

    def _look(self, execution: Execution, now: float) -> None:
        if not execution.is_cancelled:
            if now >= execution.deadline_at:
                execution.cancel(CancelReason.TIMEOUT)
            return
        if now < execution.told_at + self._grace or not execution.end():
            return
        _logger.error(
            "handler ignores that it should stop, and is stuck",
            extra={"job_id": str(execution.job.id), "job_type": execution.job.job_type},
        )
        is_timeout = execution.cancel_reason is CancelReason.TIMEOUT
        outcome = Outcome(execution, timeout_failure(execution)) if is_timeout else None
        self._deliver(execution, Ending.GIVEN_UP, outcome)
