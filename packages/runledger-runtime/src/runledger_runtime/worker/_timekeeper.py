"""The timekeeper: handlers that run too long are told, and given up after a grace period."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from runledger_core import CancelReason

from ..event_loop import EventLoop
from ..safe_log import safe_logger
from ._attempt import timeout_failure
from ._book import LeaseBook
from ._execution import Ending, Execution, Outcome
from ._helper import Helper
from ._slots import Deliver

_logger = safe_logger(__name__)

_LOOK_SECONDS: Final = 0.25


class Timekeeper(Helper):
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
        """Prepare the thread; `begin()` starts to look."""
        super().__init__("timekeeper")
        self._book = book
        self._deliver = deliver
        self._event_loop = event_loop
        self._grace = grace_seconds
        self._finished = threading.Event()

    def finish(self) -> None:
        """Stop looking."""
        self._finished.set()
        self.join(timeout=5.0)

    def work(self) -> None:
        """Look until finished."""
        while not self._finished.wait(_LOOK_SECONDS):
            now = time.monotonic()
            for execution in self._book.executions():
                with _going_on():
                    self._look(execution, now)
            with _going_on():
                self._event_loop.look()

    def _look(self, execution: Execution, now: float) -> None:
        if not execution.is_cancelled:
            if now >= execution.deadline_at:
                execution.cancel(CancelReason.TIMEOUT)
            return
        is_timeout = execution.cancel_reason is CancelReason.TIMEOUT
        outcome = Outcome(execution, timeout_failure(execution)) if is_timeout else None
        if now < execution.told_at + self._grace or not execution.end():
            return
        # Before anything that may raise: it has ended, so nobody would look at it again.
        self._deliver(execution, Ending.GIVEN_UP, outcome)
        _logger.error(
            "handler ignores that it should stop, and is stuck",
            extra={"job_id": str(execution.job.id), "job_type": execution.job.job_type},
        )


@contextmanager
def _going_on() -> Generator[None]:
    """Outlive what is raised for one handler: no thread to be had, a filter of logging."""
    try:
        yield
    except Exception:
        _logger.exception("the timekeeper goes on after an error")
