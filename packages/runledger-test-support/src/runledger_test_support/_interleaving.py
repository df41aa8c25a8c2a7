"""Orders of steps, and what happened in one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from runledger_core import ValidationError

from ._stepper import StepOutcome
from .errors import SESSION_INVALID


@dataclass(frozen=True, slots=True)
class Interleaving:
    """What happened in one order of the steps.

    Attributes:
        order: Session names in the order asked for, one for each step.
        outcomes: In the order in which the steps began; that differs from `order` where a session
            was blocked when its turn came. Steps that were skipped come last.
    """

    order: tuple[str, ...]
    outcomes: tuple[StepOutcome, ...]
    _: KW_ONLY
    number: int

    def outcome(self, session: str, step: str) -> StepOutcome:
        """Return the outcome of a step.

        Raises:
            ValidationError: `test_support.session_invalid` if there is no such step.
        """
        for outcome in self.outcomes:
            if (outcome.session, outcome.step) == (session, step):
                return outcome
        raise ValidationError(SESSION_INVALID, f"no step {step!r} in session {session!r}")

    @property
    def deadlocks(self) -> tuple[StepOutcome, ...]:
        """The steps that PostgreSQL ended because of a deadlock."""
        return tuple(outcome for outcome in self.outcomes if outcome.sqlstate == "40P01")

    def __str__(self) -> str:
        lines = [f"interleaving {self.number}: {' '.join(self.order)}"]
        lines += [f"  {describe(outcome)}" for outcome in self.outcomes]
        return "\n".join(lines)


class InterleavingError(AssertionError):
    """A check failed; the message shows the interleaving, the cause is the check's own error."""

    def __init__(self, interleaving: Interleaving, reason: BaseException) -> None:
        super().__init__(f"{type(reason).__name__}: {reason}\n{interleaving}")
        self.interleaving = interleaving


def interleavings(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every order of steps as session positions, given the sessions' numbers of steps."""
    order = sorted(position for position, size in enumerate(sizes) for _ in range(size))
    while True:
        yield tuple(order)
        # The next arrangement in dictionary order: equal items are never swapped, so none repeats.
        pivot = len(order) - 2
        while pivot >= 0 and order[pivot] >= order[pivot + 1]:
            pivot -= 1
        if pivot < 0:
            return
        successor = len(order) - 1
        while order[successor] <= order[pivot]:
            successor -= 1
        order[pivot], order[successor] = order[successor], order[pivot]
        order[pivot + 1 :] = reversed(order[pivot + 1 :])


def describe(outcome: StepOutcome) -> str:
    text = f"{outcome.session}.{outcome.step}: {outcome.state}"
    if outcome.was_blocked:
        text += f", waited for {', '.join(outcome.blocked_by)}"
    if outcome.error is not None:
        text += f", {outcome.sqlstate or type(outcome.error).__name__}: {outcome.error}"
    elif outcome.value is not None:
        text += f", returned {outcome.value!r}"
    return text
