"""An event loop on a thread of its own, for handlers and hooks that are `async def`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from runledger_core import ValidationError

from .safe_log import safe_logger

_logger = safe_logger(__name__)

_LAG_SECONDS: Final = 1.0
_WARN_AGAIN_SECONDS: Final = 60.0
_FINISH_SECONDS: Final = 1.0
_MOST_FRAMES: Final = 40
_MOST_CALL_THREADS: Final = 32

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")

_Call: TypeAlias = Callable[[], None]


class EventLoop:
    """Run coroutines on one daemon thread, which is started at first need; thread-safe.

    The thread lives as long as somebody holds the loop. Then what is left on it is cancelled, and
    the thread ends when that has ended; whoever needs the loop again gets a fresh one.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._holders = 0
        self._thread: _LoopThread | None = None

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the thread, once it is started, until the end of the block."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            thread = None
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    thread, self._thread = self._thread, None
            if thread is not None:
                thread.finish()

    def call_soon(
        self,
        function: Callable[Parameters, object],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> None:
        """Have a function called on the loop, soon.

        Raises:
            RuntimeError: There is no thread to be had.
        """
        with self._lock:
            # In a forked child the thread of the parent is dead.
            if self._thread is None or not self._thread.is_alive():
                thread = _LoopThread()
                thread.start()
                self._thread = thread
            self._thread.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def run(
        self, coroutine: Coroutine[Any, Any, ResultT], *, seconds: float | None = None
    ) -> ResultT:
        """Run a coroutine to its end, with the caller's context variables, and wait for it.

        Args:
            seconds: When to cancel it and wait no longer; None for never.

        Raises:
            TimeoutError: It did not end in time.
        """
        ended: Future[ResultT] = Future()
        tasks: list[asyncio.Task[ResultT]] = []

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda task: _hand_over(task, ended))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        with self.held():
            try:
                self.call_soon(begin)
            except BaseException:
                coroutine.close()
                raise
            try:
                return ended.result(seconds)
            except BaseException:
                self.call_soon(cancel)
                raise

    def look(self) -> None:
        """Warn of a coroutine that blocks the loop; call this now and then, from one thread."""
        thread = self._thread
        if thread is not None:
            thread.look(time.monotonic())


def refuse_on_event_loop() -> None:
    """Refuse a call that waits for the database, or for time, on the thread of an event loop.

    Raises:
        ValidationError: `job.blocks_event_loop`.
    """
    if isinstance(threading.current_thread(), _LoopThread):
        raise ValidationError(
            "job.blocks_event_loop",
            "this call would block the event loop; use `await asyncio.to_thread(...)`, or"
            " `asyncio.sleep` to wait",
        )


def _hand_over(task: asyncio.Task[ResultT], ended: Future[ResultT]) -> None:
    if task.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


class _LoopThread(threading.Thread):
    """The thread of one event loop."""

    def __init__(self) -> None:
        super().__init__(name="runledger-event-loop", daemon=True)
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_DaemonExecutor())
        self._is_finished = False
        self._finishing: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._quiet_until = 0.0

    def run(self) -> None:
        while not self._is_finished:
            try:
                self.loop.run_forever()
            except BaseException:
                # SystemExit of a task that a handler left behind: others run here, too.
                _logger.exception("a task tried to end the event loop")
        self.loop.close()

    def finish(self) -> None:
        """Cancel what is left and end after it; wait a moment for that."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._begin_to_finish)
        # No longer: a coroutine may block the loop for ever.
        self.join(_FINISH_SECONDS)

    def look(self, now: float) -> None:
        """Ask the loop for a sign of life, or warn if it has given none for long."""
        if self._asked_at is None:
            self._asked_at = now
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._answer)
        elif now - self._asked_at >= _LAG_SECONDS and now >= self._quiet_until:
            self._quiet_until = now + _WARN_AGAIN_SECONDS
            _logger.warning(
                "a coroutine blocks the event loop, so that no other runs:\n%s",
                self._stack(),
                extra={"seconds": round(now - self._asked_at, 1)},
            )

    def _answer(self) -> None:
        self._asked_at = None

    def _stack(self) -> str:
        frame = sys._current_frames().get(self.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # there is no other way
        lines = [
            f'  File "{frame.f_code.co_filename}", line {number}, in {frame.f_code.co_name}'
            for frame, number in traceback.walk_stack(frame)
        ]
        return "\n".join(reversed(lines[:_MOST_FRAMES]))

    def _begin_to_finish(self) -> None:
        self._finishing = self.loop.create_task(self._finish())

    async def _finish(self) -> None:
        told: set[asyncio.Task[Any]] = set()
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left - told:
                task.cancel()
            told |= left
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        await self.loop.shutdown_asyncgens()
        self._is_finished = True
        self.loop.stop()


class _DaemonExecutor(ThreadPoolExecutor):
    """Runs calls of `asyncio.to_thread` on daemon threads.

    Those of a `ThreadPoolExecutor` hold the interpreter at exit; an event loop takes only such, so
    this is one by name.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._count_lock = threading.Lock()
        self._count = 0
        self._idle = 0

    def submit(
        self,
        fn: Callable[Parameters, ResultT],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Future[ResultT]:
        future: Future[ResultT] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._count_lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._count < _MOST_CALL_THREADS:
                threading.Thread(target=self._run, name="runledger-call", daemon=True).start()
                self._count += 1
        self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  # as its base
        del wait, cancel_futures
        with self._count_lock:
            for _ in range(self._count):
                self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            # What it was given must not live until the next call.
            del call
            with self._count_lock:
                self._idle += 1
