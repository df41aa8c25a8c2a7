"""Run the steps of two or three transactions in every possible order.

Races of SQL depend on which statement came first, not on luck: each interleaving is played step by
step on real connections. A step that waits for a lock is recognised by `pg_blocking_pids`, and the
others go on; steps of a blocked session follow as soon as it is free::

    def sessions() -> list[Session]:
        reset_rows()
        return [
            Session("claim", connect, steps=[Step("claim", claim), Step("commit", commit)]),
            Session("cancel", connect, steps=[Step("cancel", cancel), Step("commit", commit)]),
        ]


    def check(run: Interleaving) -> None:
        assert status_of_job() in {"LEASED", "CANCELED"}


    permute(sessions, check)
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Final

import psycopg
from psycopg.rows import tuple_row

from runledger_core import UnavailableError, ValidationError

from ._interleaving import Interleaving, InterleavingError, describe, interleavings
from ._stepper import AnyConnection, Session, Step, StepContext, StepOutcome, Stepper, StepState
from .errors import SESSION_INVALID, WAIT_TIMEOUT

__all__ = [
    "Interleaving",
    "InterleavingError",
    "Session",
    "Step",
    "StepContext",
    "StepOutcome",
    "StepState",
    "interleavings",
    "permute",
]

_FIRST_LOOK_SECONDS: Final = 0.003
_LOOK_SECONDS: Final = 0.005
_DEFAULT_STEP_SECONDS: Final = 15.0

# Deadlocks are looked for after a second by default: too long, many times over.
SHORTEN_DEADLOCKS: Final = "SET deadlock_timeout = '100ms'"

LIST_BLOCKERS: Final = """
SELECT pid, pg_catalog.pg_blocking_pids(pid)
FROM unnest(%(pids)s::int4[]) AS pid
"""


def permute(
    sessions: Callable[[], Sequence[Session]],
    check: Callable[[Interleaving], None],
    *,
    limit: int | None = None,
    step_timeout_seconds: float = _DEFAULT_STEP_SECONDS,
) -> list[Interleaving]:
    """Play every interleaving of the sessions' steps and check what each leaves behind.

    Args:
        sessions: Called before each interleaving: prepares the data and returns the sessions,
            always with the same names and numbers of steps. One more connection of the first
            session stays open meanwhile, to see who is blocked.
        check: Called after each, when all connections are closed; raises if something is wrong.
        limit: Play so many, spread evenly over all; None means all of them.
        step_timeout_seconds: How long a step may run without being blocked.

    Returns:
        What happened, in the order played.

    Raises:
        InterleavingError: What `check` found, with the order and outcome of each step.
        UnavailableError: `test_support.wait_timeout` if a step neither ends nor is blocked.
        ValidationError: `test_support.session_invalid`.
    """
    played: list[Interleaving] = []
    prepared = sessions()
    sizes = _checked_sizes(prepared)
    with closing(prepared[0].connect()) as control:
        control.autocommit = True
        for number, order in _chosen(sizes, limit):
            # The first call told the numbers of steps; it serves the first order as well.
            current = prepared if not played else sessions()
            run = _Run(current, control, step_timeout_seconds).play(order, number)
            played.append(run)
            try:
                check(run)
            except Exception as error:
                raise InterleavingError(run, error) from error
    return played


class _Run:
    """One interleaving in progress."""

    def __init__(
        self, sessions: Sequence[Session], control: AnyConnection, step_timeout_seconds: float
    ) -> None:
        self._sessions = sessions
        self._control = control
        self._step_timeout_seconds = step_timeout_seconds
        self._changed = threading.Condition()
        self._steppers: list[Stepper] = []
        self._outcomes: list[StepOutcome] = []
        self._owed: Counter[int] = Counter()

    def play(self, order: Sequence[int], number: int) -> Interleaving:
        with ExitStack() as resources:
            for session in self._sessions:
                stepper = Stepper(session, changed=self._changed)
                resources.callback(stepper.close)
                self._steppers.append(stepper)
                _shorten_deadlocks(stepper.connection)
            for position in order:
                self._owed[position] += 1
                self._advance()
        names = tuple(self._sessions[position].name for position in order)
        skipped = [outcome for stepper in self._steppers for outcome in stepper.skipped()]
        return Interleaving(names, (*self._outcomes, *skipped), number=number)

    def _advance(self) -> None:
        # A session that was blocked at its turn catches up as soon as it is free; what it then
        # does may free the next one.
        while (position := self._next_ready()) is not None:
            self._owed[position] -= 1
            stepper = self._steppers[position]
            if not stepper.has_ended:
                self._outcomes.append(stepper.begin_next())
                self._settle()

    def _next_ready(self) -> int | None:
        with self._changed:
            for position, stepper in enumerate(self._steppers):
                if self._owed[position] and stepper.current is None:
                    return position
        return None

    def _settle(self) -> None:
        """Wait until every step under way has ended, or waits for a session that is idle."""
        deadline = time.monotonic() + self._step_timeout_seconds
        pause = _FIRST_LOOK_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._running(), pause)
                running = self._running()
            if not running or not self._moving(running):
                return
            if time.monotonic() > deadline:
                raise UnavailableError(WAIT_TIMEOUT, self._stuck(running))
            pause = _LOOK_SECONDS

    def _running(self) -> list[Stepper]:
        return [stepper for stepper in self._steppers if stepper.current is not None]

    def _moving(self, running: list[Stepper]) -> list[Stepper]:
        """Return the steppers that go on by themselves; deadlocked ones do, with an error."""
        blockers = self._blockers(running)
        with self._changed:
            still = {
                stepper.backend_pid
                for stepper in self._steppers
                if stepper.current is None and not stepper.has_ended
            }
        moving = list(running)
        # Who waits for somebody that stands still, stands still; a circle of waits never does.
        while found := [one for one in moving if still & set(blockers[one.backend_pid])]:
            still |= {one.backend_pid for one in found}
            moving = [one for one in moving if one not in found]
        return moving

    def _blockers(self, running: list[Stepper]) -> dict[int, list[int]]:
        pids = [stepper.backend_pid for stepper in running]
        cursor = self._control.cursor(row_factory=tuple_row).execute(LIST_BLOCKERS, {"pids": pids})
        blockers: dict[int, list[int]] = dict(cursor.fetchall())
        names = {stepper.backend_pid: stepper.session.name for stepper in self._steppers}
        for stepper in running:
            outcome = stepper.current
            found = [names[pid] for pid in blockers[stepper.backend_pid] if pid in names]
            if outcome is not None and found:
                outcome.blocked_by = tuple(dict.fromkeys((*outcome.blocked_by, *found)))
        return blockers

    def _stuck(self, running: list[Stepper]) -> str:
        names = ", ".join(f"{stepper.session.name}" for stepper in running)
        lines = "\n".join(f"  {describe(outcome)}" for outcome in self._outcomes)
        return f"sessions neither end nor wait for each other: {names}; so far:\n{lines}"


def _checked_sizes(sessions: Sequence[Session]) -> list[int]:
    names = [session.name for session in sessions]
    steps = [[step.name for step in session.steps] for session in sessions]
    if len(set(names)) != len(names) or any(len(set(one)) != len(one) for one in steps):
        raise ValidationError(SESSION_INVALID, "sessions and the steps of each need unique names")
    if not sessions or not all(steps):
        raise ValidationError(SESSION_INVALID, "there is no session, or one without a step")
    return [len(one) for one in steps]


def _chosen(sizes: Sequence[int], limit: int | None) -> Iterator[tuple[int, tuple[int, ...]]]:
    total = math.factorial(sum(sizes))
    for size in sizes:
        total //= math.factorial(size)
    wanted = total if limit is None else min(limit, total)
    for number, order in enumerate(interleavings(sizes)):
        # Evenly spread: taken where the running share passes a whole number.
        if (number + 1) * wanted // total > number * wanted // total:
            yield number + 1, order


def _shorten_deadlocks(connection: AnyConnection) -> None:
    try:
        connection.execute(SHORTEN_DEADLOCKS)
        connection.commit()
    except psycopg.errors.InsufficientPrivilege:
        # Only superusers may; for others a deadlock takes its usual second.
        connection.rollback()
