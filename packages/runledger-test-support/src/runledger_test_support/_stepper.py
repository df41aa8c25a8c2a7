"""A session of the step permuter: one thread that runs one step at a time on one connection."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

import psycopg

# Any: whatever the row type of the caller's connections.
AnyConnection: TypeAlias = "psycopg.Connection[Any]"

_JOIN_SECONDS: Final = 5


@dataclass(slots=True)
class StepContext:
    """What a step gets.

    Attributes:
        connection: The session's own; not in autocommit unless `connect` made it so.
        results: What the earlier steps of the session returned, by name.
    """

    connection: AnyConnection
    results: dict[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a session does at once.

    Attributes:
        name: For reports, and the key of its result.
        run: What it does; the returned value is its result.
    """

    name: str
    run: Callable[[StepContext], object]


@dataclass(frozen=True, slots=True)
class Session:
    """Steps that follow each other on one connection.

    Attributes:
        name: For reports; unique.
        connect: Makes the connection. It is closed after the last step, or after one that failed:
            what no step has committed is rolled back, and every lock is let go.
        steps: At least one; names are unique within the session.
    """

    name: str
    connect: Callable[[], AnyConnection]
    _: KW_ONLY
    steps: Sequence[Step]


class StepState(StrEnum):
    """How a step ended."""

    DONE = "DONE"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    """An earlier step of its session failed."""


@dataclass(slots=True)
class StepOutcome:
    """What became of a step.

    Attributes:
        session: Name of its session.
        step: Its name.
        state: How it ended.
        value: What it returned.
        error: What it raised.
        blocked_by: Names of the sessions that it had to wait for.
    """

    session: str
    step: str
    _: KW_ONLY
    state: StepState = StepState.DONE
    value: object = None
    error: Exception | None = None
    blocked_by: tuple[str, ...] = ()

    @property
    def was_blocked(self) -> bool:
        """Whether it had to wait for another session."""
        return bool(self.blocked_by)

    @property
    def sqlstate(self) -> str | None:
        """The SQLSTATE of the error or of its cause; "40P01" is a deadlock."""
        error: BaseException | None = self.error
        while error is not None:
            state = getattr(error, "sqlstate", None)
            if isinstance(state, str):
                return state
            error = error.__cause__
        return None


class Stepper:
    """Runs the steps of a session, one when told to, in a thread of its own."""

    def __init__(self, session: Session, *, changed: threading.Condition) -> None:
        self.session = session
        self.connection = session.connect()
        self.backend_pid = self.connection.info.backend_pid
        self.current: StepOutcome | None = None
        self.has_ended = False
        self._remaining = list(session.steps)
        self._changed = changed
        self._orders: queue.SimpleQueue[tuple[Step, StepOutcome] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, name=f"runledger-permuter-{session.name}", daemon=True
        )
        self._thread.start()

    def begin_next(self) -> StepOutcome:
        """Let the thread run the next step; its outcome fills in later."""
        step = self._remaining.pop(0)
        outcome = StepOutcome(self.session.name, step.name)
        self.current = outcome
        self._orders.put((step, outcome))
        return outcome

    def skipped(self) -> list[StepOutcome]:
        """Return outcomes of the steps that were not begun."""
        return [
            StepOutcome(self.session.name, step.name, state=StepState.SKIPPED)
            for step in self._remaining
        ]

    def close(self) -> None:
        """End the thread and the connection."""
        if self.current is not None and not self.connection.closed:
            self.connection.cancel_safe()
        self._orders.put(None)
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self.connection.close()

    def _work(self) -> None:
        context = StepContext(self.connection)
        while True:
            order = self._orders.get()
            if order is None:
                return
            step, outcome = order
            try:
                outcome.value = context.results[step.name] = step.run(context)
            except Exception as error:  # noqa: BLE001  # Whatever it is, it is the outcome.
                outcome.error, outcome.state = error, StepState.FAILED
            is_over = outcome.error is not None or not self._remaining
            if is_over:
                self.connection.close()
            with self._changed:
                self.current, self.has_ended = None, is_over
                self._changed.notify_all()
