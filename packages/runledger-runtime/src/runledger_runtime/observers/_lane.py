"""The threads of one observer: however long it takes, others do not wait for it."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from queue import SimpleQueue
from typing import Final

from runledger_core import JobLease, type_name

from ..daemon_thread import start_daemon
from ..forked_child import EndsForkedChild
from ..safe_log import safe_logger
from ._events import JobLifecycleEvent
from ._observer import JobLifecycleObserver, overridden_callbacks

_MOST_THREADS: Final = 8
_MOST_STUCK: Final = 8

_logger = safe_logger(__name__)


@dataclass(eq=False, slots=True)
class Delivery:
    """One event on its way to the observers that want it."""

    event: JobLifecycleEvent
    callback: str
    _: KW_ONLY
    running_of: JobLease | None = None
    """The attempt whose start this tells; None for anything else."""
    calls: list[Call] = field(default_factory=list["Call"])
    calls_left: int = 0
    due_at: float = 0.0
    then: Delivery | None = None
    """The end of the same attempt, which waits for this."""


@dataclass(eq=False, slots=True)
class Call:
    """One event on its way to one observer."""

    delivery: Delivery
    lane: Lane
    is_started: bool = False
    is_over: bool = False


class Lane:
    """Calls methods of one observer on up to eight threads; what hangs is replaced, eight times.

    Starts and ends have lanes of their own, so that hanging starts do not hold up ends.
    """

    def __init__(
        self,
        observer: JobLifecycleObserver,
        callbacks: Collection[str],
        lock: threading.Lock,
        *,
        on_over: Callable[[Call], None],
    ) -> None:
        """Start no thread yet.

        Args:
            lock: Of the delivery; held by whoever calls a method.
            on_over: Called with the lock held when a call has ended in time.
        """
        self.name = type(observer).__qualname__
        self.is_disabled = False
        self._observer = observer
        self._callbacks = overridden_callbacks(observer).intersection(callbacks)
        self._lock = lock
        self._on_over = on_over
        self._waiting: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = 0
        # Idle threads less waiting calls.
        self._free = 0
        self._stuck = 0
        self._context = contextvars.copy_context()

    def wants(self, callback: str) -> bool:
        """Whether the observer does anything in this method, and may still be called."""
        return callback in self._callbacks and not self.is_disabled

    def put(self, call: Call) -> None:
        """Call the observer on a free thread, on a new one, or when one is free."""
        self._free -= 1
        self._waiting.put(call)
        self._grow()

    def give_up(self, call: Call) -> None:
        """Wait no longer for a call; replace its thread if it has one."""
        if not call.is_started:
            _logger.error("a lifecycle observer was too busy to be told", extra=_fields(call))
            return
        _logger.error("a lifecycle observer takes too long", extra=_fields(call))
        self._stuck += 1
        self._threads -= 1
        if self._stuck > _MOST_STUCK and not self.is_disabled:
            self.is_disabled = True
            _logger.error(
                "a lifecycle observer hangs too often; it is told nothing of the kind any more",
                extra=_fields(call) | {"stuck": self._stuck},
            )
        self._grow()

    def close(self) -> None:
        """Let idle threads end, and busy ones after their call."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _grow(self) -> None:
        if self._free >= 0 or self._threads >= _MOST_THREADS or self.is_disabled:
            return
        if start_thread(self._run, name=f"runledger-observer-{self.name}") is None:
            # The call waits for another thread, or its time ends.
            return
        self._threads += 1
        self._free += 1

    def _run(self) -> None:
        while (call := self._waiting.get()) is not None:
            with self._lock:
                is_wanted = call.is_started = not call.is_over
            if is_wanted:
                # Context variables set by one call must not reach the next.
                self._context.copy().run(self._tell, call)
            with self._lock:
                if is_wanted and call.is_over:
                    # Nobody waits for it any more, and another thread has its place.
                    self._stuck -= 1
                    return
                self._free += 1
                if is_wanted:
                    self._on_over(call)

    def _tell(self, call: Call) -> None:
        try:
            with EndsForkedChild():
                returned = getattr(self._observer, call.delivery.callback)(call.delivery.event)
        except BaseException as error:  # noqa: BLE001  # an observer must not end its thread
            _logger.error(  # noqa: TRY400  # the exception's text may hold anything
                "a lifecycle observer failed",
                extra=_fields(call) | {"error": type_name(error)},
            )
            return
        if inspect.iscoroutine(returned):
            returned.close()
            _logger.error(
                "a lifecycle observer returned a coroutine, which nobody awaits",
                extra=_fields(call),
            )


def start_thread(run: Callable[[], None], *, name: str) -> threading.Thread | None:
    """Start a thread and return it; None, and a log line, if the process can have no more."""
    thread = start_daemon(run, name=name)
    if thread is None:
        _logger.error("no thread for lifecycle observers", extra={"of": name})
    return thread


def _fields(call: Call) -> dict[str, object]:
    job = call.delivery.event.job
    return {
        "observer": call.lane.name,
        "callback": call.delivery.callback,
        "job_id": str(job.job_id),
        "job_type": job.job_type,
        "run_number": job.run_number,
        "attempt": job.attempt,
    }
