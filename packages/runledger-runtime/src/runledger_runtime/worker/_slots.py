"""Where handlers run: daemon threads of our own, or an event loop if they are `async def`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from ..registry import AsyncHandler
from ._attempt import Handler, run_attempt, unstarted_attempt
from ._coroutine import CoroutineAttempt
from ._execution import Ending, Execution, Outcome

Deliver: TypeAlias = Callable[[Execution, Ending, Outcome | None], None]


class HandlerSlots:
    """Runs executions, each at once: on a thread of its own, or as a task of the event loop.

    A `ThreadPoolExecutor` would hold the interpreter at exit until its last thread ends. A
    coroutine takes a slot of the worker like any handler, but no thread, where it would only wait.
    """

    def __init__(self, deliver: Deliver) -> None:
        """Deliver each execution's end from its own thread."""
        self._deliver = deliver
        self._waiting: SimpleQueue[tuple[Execution, Handler] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._context = contextvars.copy_context()
        # The loop itself holds its tasks weakly.
        self._coroutines: set[CoroutineAttempt] = set()

    def start(self, execution: Execution, handler: Handler) -> None:
        """Run the handler on a free thread, on a new one, or on its event loop."""
        try:
            if isinstance(handler, AsyncHandler):
                self._start_coroutine(execution, handler)
                return
            with self._lock:
                if self._idle > 0:
                    self._idle -= 1
                else:
                    threading.Thread(
                        target=self._run, name=f"runledger-handler-{self._threads + 1}", daemon=True
                    ).start()
                    self._threads += 1
        except (RuntimeError, MemoryError, OSError):
            # No thread to be had, or no file descriptor for an event loop: the pump gives the claim
            # back.
            self._deliver(execution, *unstarted_attempt(execution))
            return
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

    def _start_coroutine(self, execution: Execution, handler: AsyncHandler) -> None:
        attempt = CoroutineAttempt(
            execution,
            handler,
            deliver=self._deliver,
            context=self._context.copy(),
            running=self._coroutines,
        )
        handler.event_loop.call_soon(attempt.begin)
