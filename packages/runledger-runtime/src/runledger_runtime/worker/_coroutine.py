"""One attempt of an `async def` handler, a task of the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from ..registry import AsyncHandler
from ._attempt import run_attempt_async, unentered_attempt
from ._execution import Ending, Execution, Outcome

_Ended: TypeAlias = tuple[Ending, Outcome | None]


class CoroutineAttempt:
    """Runs a coroutine until it ends; really cancels it when its handler should stop."""

    def __init__(
        self,
        execution: Execution,
        handler: AsyncHandler,
        *,
        deliver: Callable[[Execution, Ending, Outcome | None], None],
        context: contextvars.Context,
        running: set[CoroutineAttempt],
    ) -> None:
        """Take the execution, whose cancellation comes here from now on.

        Args:
            running: Holds the attempt while it runs.
        """
        self._execution = execution
        self._handler = handler
        self._deliver = deliver
        self._context = context
        self._running = running
        self._task: asyncio.Task[None] | None = None
        self._returned: _Ended | None = None
        self._is_told = False
        execution.interrupt = self._interrupt

    def begin(self) -> None:
        """Start the coroutine; call this on the loop."""
        # Not by `create_task`: the factory of the loop's tasks is in the hands of handlers.
        self._task = asyncio.Task(
            self._run(), loop=asyncio.get_running_loop(), context=self._context
        )
        self._running.add(self)
        self._task.add_done_callback(self._ended)
        if self._execution.is_cancelled:
            # The loop was blocked for so long; the handler is not entered any more.
            self._cancel()

    async def _run(self) -> None:
        # Kept here: a task that has cancelled itself ends as cancelled, whatever it returns.
        self._returned = await run_attempt_async(self._execution, self._handler)

    def _interrupt(self) -> None:
        task = self._task
        # Before it has one: `begin` looks itself.
        if task is not None:
            with suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # Once: a coroutine may go on for the grace period, to clean up.
        if self._task is not None and not self._is_told:
            self._is_told = True
            self._task.cancel()

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._running.discard(self)
        self._execution.interrupt = None
        # Cancelled before its first step, it was never entered.
        ending, outcome = self._returned or unentered_attempt(self._execution)
        self._deliver(self._execution, ending, outcome)
