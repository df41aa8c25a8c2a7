"""Where requests to stop come from: an event, a function that blocks, or signals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, TypeAlias, runtime_checkable

from runledger_core import ValidationError, codes

from .stop_signals import StopSignals

_EVENT_LOOK_SECONDS: Final = 0.2


@runtime_checkable
class StopEvent(Protocol):
    """What `threading.Event` and `multiprocessing.Event` have in common."""

    def is_set(self) -> bool:
        """Return whether the event is set."""
        ...

    def wait(self, timeout: float | None = None, /) -> bool:
        """Wait for the event, for `timeout` seconds at most."""
        ...


StopSource: TypeAlias = StopEvent | StopSignals | Callable[[], object] | None
"""An event, a function that blocks until it is time to stop, or None for SIGINT and SIGTERM."""


def watch(source: StopSource, deliver: Callable[[], None]) -> AbstractContextManager[object]:
    """Return a context in which `deliver` is called when the source says stop.

    Signals call it each time, from a signal handler; the others call it once, from a thread. One
    that raises says stop as well, and its error is raised at the end of the context.

    Raises:
        SignalsUnavailableError: `supervisor.signals_unavailable` on entering, unless the main
            thread does.
        ValidationError: `input.wrong_type` if it is no source.
    """
    if source is None:
        source = StopSignals()
    if isinstance(source, StopSignals):
        return source.delivered_to(deliver)
    if isinstance(source, StopEvent):
        return _watched_event(source, deliver)
    if callable(source):
        return _watched_call(source, deliver)
    raise ValidationError(
        codes.INPUT_WRONG_TYPE,
        "stop must be an Event, a function that blocks, or None for signals",
        field="stop",
    )


@contextmanager
def _watched_event(event: StopEvent, deliver: Callable[[], None]) -> Generator[None]:
    is_over = threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        # In turns, so that the thread ends with the context though the event may never be set.
        while not is_over.is_set():
            try:
                is_set = event.wait(_EVENT_LOOK_SECONDS)
            except BaseException as error:  # noqa: BLE001  # raised again by the waiting thread
                # Of another process, which has gone: nobody could set it any more.
                errors.append(error)
                is_set = True
            if is_set:
                deliver()
                return

    threading.Thread(target=look, name="runledger-stop", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
    if errors:
        raise errors[0]


@contextmanager
def _watched_call(wait: Callable[[], object], deliver: Callable[[], None]) -> Generator[None]:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            wait()
        except BaseException as error:  # noqa: BLE001  # raised again by the waiting thread
            errors.append(error)
        deliver()

    threading.Thread(target=call, name="runledger-stop", daemon=True).start()
    yield
    if errors:
        raise errors[0]
