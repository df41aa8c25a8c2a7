"""An event loop on a thread of its own, for handlers and hooks that are `async def`."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, ParamSpec, TypeVar

from runledger_core import ValidationError

from .call_threads import CallThreads, StuckCalls
from .forked_child import EndsForkedChild
from .loop_files import LoopFiles
from .safe_log import safe_logger

_logger = safe_logger(__name__)

_LAG_SECONDS: Final = 1.0
_WARN_AGAIN_SECONDS: Final = 60.0
_FINISH_SECONDS: Final = 1.0
_MOST_FRAMES: Final = 40
_CHECK_SECONDS: Final = 0.5
_MOST_RENEWALS: Final = 8

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")


class EventLoop:
    """Run coroutines on one daemon thread, which is started at first need; thread-safe.

    The thread lives as long as somebody holds the loop and the loop can go on. Then what is left on
    it is cancelled, and the thread ends when that has ended; whoever needs the loop again gets a
    fresh one.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._holders = 0
        self._thread: _LoopThread | None = None
        self._stuck_calls: tuple[StuckCalls, ...] = ()

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
            OSError: There is no file descriptor to be had.
        """
        with self._lock:
            # In a forked child the thread of the parent is dead.
            if self._thread is None or not self._thread.is_usable():
                self._thread = _started_thread()
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

    def count_stuck_calls(
        self, grace_seconds: float, *, on_change: Callable[[], object]
    ) -> StuckCalls:
        """Count calls of `asyncio.to_thread` that go on though their coroutine was cancelled.

        A thread that such a call keeps is replaced.

        Args:
            grace_seconds: How long they may.
            on_change: Called from any thread when the count has changed.
        """
        counted = StuckCalls(grace_seconds, on_change)
        with self._lock:
            self._stuck_calls += (counted,)
        return counted

    def stop_counting(self, counted: StuckCalls) -> None:
        """Count no more of them."""
        with self._lock:
            self._stuck_calls = tuple(kept for kept in self._stuck_calls if kept is not counted)

    def look(self) -> None:
        """Look for what is stuck, and warn of it; call this now and then, from one thread."""
        thread, counts = self._thread, self._stuck_calls
        if thread is None:
            return
        now = time.monotonic()
        thread.look(now)
        if counts:
            thread.calls.look(now, counts)


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


def is_on_lost_loop() -> bool:
    """Tell whether this is the thread of an event loop that could not go on."""
    thread = threading.current_thread()
    return isinstance(thread, _LoopThread) and thread.is_lost


def _new_loop() -> asyncio.AbstractEventLoop:
    # Short of file descriptors asyncio leaves half a loop, which complains when it is collected.
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()


def _started_thread() -> _LoopThread:
    thread = _LoopThread()
    try:
        thread.start()
    except BaseException:
        # It has file descriptors.
        thread.loop.close()
        raise
    return thread


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
        self.loop = _new_loop()
        self.is_lost = False
        self.calls = CallThreads()
        self.loop.set_default_executor(self.calls)
        self._files = LoopFiles(self.loop)
        self._renewals = 0
        self._pid = os.getpid()
        self._is_finished = False
        self._finishing: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._quiet_until = 0.0

    def is_usable(self) -> bool:
        """Tell whether the loop takes more."""
        return self.is_alive() and not self.is_lost and self._files.are_there()

    def run(self) -> None:
        self._check_files()
        while not self._is_finished:
            try:
                with EndsForkedChild():
                    self._run_loop()
            except (SystemExit, KeyboardInterrupt):
                # Of a task that a handler left behind: others run here, too.
                _logger.exception("a task tried to end the event loop")
            except BaseException as error:  # noqa: BLE001  # logged there
                # Tasks keep all else that they raise: the loop itself cannot go on.
                self._lose(error)
        self.loop.close()

    def _run_loop(self) -> None:
        try:
            self.loop.run_forever()
        except BaseException:
            # Of a round that has nothing left to run; see `_leave_the_copied_loop`.
            self._refuse_child()
            raise
        self._refuse_child()
        if not self._files.are_there():
            raise OSError(errno.EBADF, "somebody has closed the event loop's own descriptors")

    def _check_files(self) -> None:
        # At times, since a loop that waits does not notice that its descriptors were closed.
        self.loop.call_later(_CHECK_SECONDS, self._check_files)
        if not self._files.are_there():
            self.loop.stop()

    def _lose(self, error: BaseException) -> None:
        if not self.is_lost:
            self.is_lost = True
            _logger.critical(
                "the event loop cannot go on; what it runs is cancelled, and the next gets another",
                exc_info=error,
            )
        if self._renewals == _MOST_RENEWALS:
            raise error
        # With descriptors of its own again it can run what it has cancelled to its end.
        self._renewals += 1
        self._files.renew()
        self.loop.call_soon(self._begin_to_finish)

    def finish(self) -> None:
        """Cancel what is left and end after it; wait a moment for that."""
        # What wakes the loop writes to its descriptor.
        if self._files.are_there():
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._begin_to_finish)
        # No longer: a coroutine may block the loop for ever.
        self.join(_FINISH_SECONDS)

    def look(self, now: float) -> None:
        """Ask the loop for a sign of life, or warn if it has given none for long."""
        if not self.is_usable():
            return
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

    def _refuse_child(self) -> None:
        if os.getpid() != self._pid:
            text = "a forked child must not await: the event loop is its parent's"
            raise RuntimeError(text) from None

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
        # Another would cancel once more what cleans up.
        if self._finishing is None or self._finishing.done():
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


def _leave_the_copied_loop() -> None:
    # In the child of a fork: what else is on the loop is the parent's to run, what this very round
    # of the loop has still to run included. asyncio has no other way to take that from it.
    thread = threading.current_thread()
    if isinstance(thread, _LoopThread):
        thread.loop.stop()
        getattr(thread.loop, "_ready", deque[object]()).clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_the_copied_loop)
