"""Threads for the calls of `asyncio.to_thread`, and which of these calls are stuck."""

from __future__ import annotations

import socket
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from types import MethodType
from typing import Any, Final, ParamSpec, TypeVar, cast

from runledger_core import sanitize_text, type_name

from .forked_child import EndsForkedChild
from .safe_log import safe_logger

_logger = safe_logger(__name__)

_MOST_THREADS: Final = 32
# asyncio's own look-ups of names. The resolver ends them, and a restart would not help.
_ENDED_BY_OTHERS: Final = (socket.getaddrinfo, socket.getnameinfo)
# In debug mode the loop calls this method of its own instead of the first.
_LOOK_UP_OF_DEBUG: Final = "_getaddrinfo_debug"
_NAME_BYTES: Final = 200

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")


class StuckCalls:
    """Counts, for one worker, the calls that go on though nobody waits for them; thread-safe."""

    def __init__(self, grace_seconds: float, on_change: Callable[[], object]) -> None:
        """Count nothing yet.

        Args:
            grace_seconds: How long a call may go on after its coroutine was cancelled.
            on_change: Called from any thread when the count has changed.
        """
        self.grace_seconds = grace_seconds
        self._on_change = on_change
        self._lock = threading.Lock()
        self._change = 0

    def add(self, count: int) -> None:
        """Count calls that have become stuck, or with a negative number those that ended."""
        with self._lock:
            self._change += count
        self._on_change()

    def take_change(self) -> int:
        """Return by how much the count has changed since the last time."""
        with self._lock:
            change, self._change = self._change, 0
        return change


class CallThreads(ThreadPoolExecutor):
    """Runs calls on daemon threads, 32 at once and those beside them that are stuck.

    The threads of a `ThreadPoolExecutor` hold the interpreter at exit; an event loop takes only
    such, so this is one by name.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._call_lock = threading.Lock()
        # Neither counts calls that were given up, nor their threads.
        self._unended = 0
        self._thread_count = 0
        self._running: set[_Call] = set()

    def submit(
        self,
        fn: Callable[Parameters, ResultT],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Future[ResultT]:
        """Run a call on a free thread, or on the first that is."""
        call = _Call(partial(fn, *args, **kwargs))
        with self._call_lock:
            self._start_threads(self._unended + 1)
            self._unended += 1
        self._calls.put(call)
        return cast("Future[ResultT]", call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  # as its base
        """Let idle threads end, and busy ones after their calls."""
        del wait, cancel_futures
        with self._call_lock:
            for _ in range(self._thread_count):
                self._calls.put(None)

    def look(self, now: float, counts: Sequence[StuckCalls]) -> None:
        """Give up the calls that go on for too long after their coroutine was cancelled."""
        # Workers that share a registry share the threads: the shortest grace period decides.
        left_before = now - min(count.grace_seconds for count in counts)
        with self._call_lock:
            stuck = [call for call in self._running if call.is_overdue(left_before)]
            for call in stuck:
                call.is_given_up = True
                call.counted_by = () if _is_ended_by_others(call.function) else counts
                self._thread_count -= 1
                self._unended -= 1
                for count in call.counted_by:
                    count.add(1)
            # None to be had: the next look tries again.
            with suppress(RuntimeError, MemoryError):
                self._start_threads(self._unended)
        for call in stuck:
            _logger.warning(
                "%s goes on in a thread though its coroutine was cancelled, and is stuck", call.name
            )

    def _start_threads(self, calls: int) -> None:
        while self._thread_count < min(calls, _MOST_THREADS):
            threading.Thread(target=self._run, name="runledger-call", daemon=True).start()
            self._thread_count += 1

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._call_lock:
                self._running.add(call)
            call.run()
            is_replaced = self._ended(call)
            # What it was given must not live until the next call.
            del call
            if is_replaced:
                return

    def _ended(self, call: _Call) -> bool:
        with self._call_lock:
            self._running.discard(call)
            for count in call.counted_by:
                count.add(-1)
            if call.is_given_up:
                return True
            self._unended -= 1
            return False


class _Call(Future[Any]):
    """One call, which knows since when nobody waits for it."""

    def __init__(self, function: partial[Any]) -> None:
        super().__init__()
        self.is_given_up = False
        self.counted_by: Sequence[StuckCalls] = ()
        self._function = function
        self._left_at: float | None = None

    @property
    def function(self) -> object:
        """What it calls, under all that `asyncio.to_thread` and others put around it."""
        return _innermost(self._function)

    @property
    def name(self) -> str:
        """The name of what it calls."""
        return _name_of(self.function)

    def cancel(self) -> bool:
        """Cancel it if it does not run yet; the event loop does this for a cancelled coroutine."""
        is_cancelled = super().cancel()
        if not is_cancelled and self._left_at is None:
            self._left_at = time.monotonic()
        return is_cancelled

    def is_overdue(self, left_before: float) -> bool:
        """Tell whether it should be given up now."""
        left_at = self._left_at
        if self.is_given_up or left_at is None or left_at > left_before:
            return False
        return self.running()

    def run(self) -> None:
        """Run it, unless it was cancelled before."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            with EndsForkedChild():
                result = self._function()
        except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
            self.set_exception(error)
        else:
            self.set_result(result)


def _innermost(function: object) -> object:
    try:
        while isinstance(function, partial):
            inner = cast("partial[Any]", function)
            runs_in_context = isinstance(getattr(inner.func, "__self__", None), Context)
            function = inner.args[0] if runs_in_context else inner.func
    except Exception:  # noqa: BLE001  # attributes may be properties of the user's
        return None
    return function


def _is_ended_by_others(function: object) -> bool:
    if any(function is each for each in _ENDED_BY_OTHERS):
        return True
    if not isinstance(function, MethodType) or function.__name__ != _LOOK_UP_OF_DEBUG:
        return False
    return isinstance(function.__self__, AbstractEventLoop)


def _name_of(function: object) -> str:
    if function is None:
        return "a call"
    try:
        name = getattr(function, "__qualname__", None) or type_name(function)
        module = getattr(function, "__module__", None)
    except Exception:  # noqa: BLE001  # as before
        return "a call"
    return sanitize_text(f"{module}.{name}" if module else name, max_bytes=_NAME_BYTES)
