"""Outcomes that are not stored yet: where each of them waits, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from runledger_postgres.errors import QueryError

from ..backoff import Outage, spread
from ..safe_log import safe_logger
from ._execution import Outcome

_logger = safe_logger(__name__)

_LEAST_REST_SECONDS: Final = 0.005
_MOST_REST_SECONDS: Final = 0.25
# After a try in vain a lone outcome rests this many times as long as the try took.
_ALONE_RESTS: Final = 4


class WaitingOutcomes:
    """Holds outcomes between their rounds, each in one of four places.

    - Fresh: for the next round.
    - Alone: of rounds that were cut off; each for a round of its own, those that are likely to take
      least first. Once all were tried in vain, for a multiple of the time that the last try took.
    - Busy: another transaction held their rows; for a rest that grows while nothing is stored.
    - Refused by the server for a reason that is not theirs: for a pause that grows with each time.

    Only the pump's thread comes here.
    """

    def __init__(self) -> None:
        """Hold none yet."""
        self._fresh: list[Outcome] = []
        self._alone: list[Outcome] = []
        # When one of those that was tried in vain may be tried again.
        self._alone_from = 0.0
        self._busy: list[Outcome] = []
        self._rest_until = 0.0
        self._rest_seconds = _LEAST_REST_SECONDS
        self._refused: list[Outcome] = []
        self._refused_until = 0.0
        self._refusals = Outage()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._fresh) + self.kept_slots

    @property
    def fresh(self) -> int:
        """How many go with the next round, at once."""
        return len(self._fresh)

    @property
    def kept_slots(self) -> int:
        """How many wait for a later round; each keeps its slot."""
        return len(self._alone) + len(self._busy) + len(self._refused)

    @property
    def has_refused(self) -> bool:
        """Whether the server refuses some of them."""
        return bool(self._refused)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Have these sent with the next round, or each in a round of its own."""
        for outcome in outcomes:
            (self._alone if outcome.execution.is_stored_alone else self._fresh).append(outcome)

    def take_round(self) -> list[Outcome]:
        """Return what goes with this round: all that is fresh, and what was busy and has rested."""
        if self._busy and time.monotonic() >= self._rest_until:
            rested, self._busy = self._busy, []
            self.add(rested)
        taken, self._fresh = self._fresh, []
        return taken

    def take_alone(self) -> list[Outcome]:
        """Return the outcome whose round of its own is due; nothing if there is none."""
        if not self._alone or time.monotonic() < self._next_alone_at():
            return []
        taken = min(self._alone, key=lambda outcome: outcome.execution.cut_offs)
        self._alone.remove(taken)
        return [taken]

    def rest_alone(self, seconds: float) -> None:
        """Leave most of the time to others after a try that took so long for nothing."""
        self._alone_from = time.monotonic() + _ALONE_RESTS * seconds

    def put_busy(self, outcomes: Sequence[Outcome]) -> None:
        """Keep outcomes whose rows others hold."""
        self._busy += outcomes

    def rest(self) -> None:
        """Let busy outcomes rest, if there are any, longer each time nothing was stored."""
        if not self._busy:
            return
        self._rest_until = time.monotonic() + spread(self._rest_seconds)
        self._rest_seconds = min(2 * self._rest_seconds, _MOST_REST_SECONDS)

    def rested(self) -> None:
        """Start over with the shortest rest: something was stored or claimed."""
        self._rest_seconds = _LEAST_REST_SECONDS

    def choose_busy(self) -> list[Outcome]:
        """Return busy outcomes that may be sent together; they wait here still."""
        alone = [outcome for outcome in self._busy if outcome.execution.is_stored_alone]
        return alone[:1] or list(self._busy)

    def remove_busy(self, outcomes: Sequence[Outcome]) -> None:
        """Let busy outcomes go that have had an answer."""
        answered = {id(outcome) for outcome in outcomes}
        self._busy = [outcome for outcome in self._busy if id(outcome) not in answered]

    def put_refused(self, outcome: Outcome, error: QueryError) -> None:
        """Keep an outcome, and its lease, until the server takes it."""
        self._refused.append(outcome)
        step = self._refusals.failed()
        self._refused_until = time.monotonic() + step.delay_seconds
        if step.is_worth_logging:
            job = outcome.execution.job
            _logger.error(
                "outcome refused by the server; kept and tried again",
                extra={"job_id": str(job.id), "job_type": job.job_type, "error_code": error.code},
            )

    def take_refused(self) -> list[Outcome]:
        """Return the refused outcomes, once it is time to try them again."""
        if not self._refused or time.monotonic() < self._refused_until:
            return []
        taken, self._refused = self._refused, []
        return taken

    def find_missing(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return those of these outcomes that do not wait here."""
        waiting = (*self._fresh, *self._alone, *self._busy, *self._refused)
        held = {id(outcome) for outcome in waiting}
        return [outcome for outcome in outcomes if id(outcome) not in held]

    def seconds_until_next(self) -> float | None:
        """Return how long until some of them may be sent; None if none waits."""
        starts: list[float] = []
        if self._fresh:
            starts.append(0.0)
        if self._alone:
            starts.append(self._next_alone_at())
        if self._busy:
            starts.append(self._rest_until)
        if self._refused:
            starts.append(self._refused_until)
        return max(0.0, min(starts) - time.monotonic()) if starts else None

    def _next_alone_at(self) -> float:
        if all(outcome.execution.cut_offs for outcome in self._alone):
            return self._alone_from
        return 0.0
