"""Handler threads: daemon threads of our own, one job each at a time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from ._attempt import Handler, run_attempt
from ._execution import Ending, Execution, Outcome

Deliver: TypeAlias = Callable[[Execution, Ending, Outcome | None], None]


class HandlerSlots:
    """Runs executions, each at once on a thread of its own.

    A `ThreadPoolExecutor` would hold the interpreter at exit until its last thread ends.
    """

    def __init__(self, deliver: Deliver) -> None:
        """Deliver each execution's end from its own thread."""
        self._deliver = deliver
        self._waiting: SimpleQueue[tuple[Execution, Handler] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._context = contextvars.copy_context()

    def start(self, execution: Execution, handler: Handler) -> None:
        """Run the handler on a free thread, or on a new one."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(
                    target=self._run, name=f"runledger-handler-{self._threads}", daemon=True
                ).start()
        self._waiting.put((execution, handler))

    def stop(self) -> None:
        """Let idle threads end, and busy ones after their handler."""
        with self._lock:
            for _ in range(self._threads):
                self._waiting.put(None)

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            execution, handler = work
            # Context variables set by one job must not reach the next.
            ending, outcome = self._context.copy().run(run_attempt, execution, handler)
            with self._lock:
                self._idle += 1
            self._deliver(execution, ending, outcome)
