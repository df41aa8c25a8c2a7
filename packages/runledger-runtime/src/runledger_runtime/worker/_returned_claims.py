"""Claims that go back to the queue, so that no attempt is used up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Final

from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import WriteVerdict

from ..backoff import Outage, spread
from ..safe_log import safe_logger
from ._attempt import RELEASE_REASON, is_shut_down, is_unstarted
from ._execution import Outcome
from ._link import PumpLink
from ._settling import Settling

_logger = safe_logger(__name__)

_UNSTARTED_REASON: Final = "NOT_STARTED"
_UNSTARTED_SECONDS: Final = 1.0
_BUSY_SECONDS: Final = 0.05
_FORGOTTEN_SECONDS: Final = 60.0


class ReturnedClaims:
    """Gives claims back: of handlers that were not started, or that an aborted stop told to leave.

    After one that could not be started nothing is claimed for a moment. Without that pause the pump
    would take every job that waits and give it back, again and again.
    """

    def __init__(self, link: PumpLink, settling: Settling) -> None:
        """Hold none yet."""
        self._link = link
        self._settling = settling
        self._held: list[Outcome] = []
        self._retry_at = 0.0
        self._rest_until = 0.0
        self._shortage = Outage()

    def take(self, outcome: Outcome) -> bool:
        """Keep an outcome whose claim goes back; return whether it is kept."""
        if is_unstarted(outcome):
            self._rest(outcome)
        elif not is_shut_down(outcome):
            return False
        self._held.append(outcome)
        return True

    def seconds_of_rest(self) -> float:
        """Return for how long nothing is to be claimed, 0 or more."""
        return max(0.0, self._rest_until - time.monotonic())

    def seconds_until_next(self) -> float | None:
        """Return how long to wait with those whose rows others hold; None if there are none."""
        return max(0.0, self._retry_at - time.monotonic()) if self._held else None

    def give_back(self) -> list[Outcome]:
        """Give back what is held, and hold on to those whose rows others hold.

        Returns:
            What the server refuses to take back, to be stored as it is.

        Raises:
            QueryError: The connection is lost; everything is still held.
        """
        if not self._held or time.monotonic() < self._retry_at:
            return []
        unstarted = [outcome for outcome in self._held if is_unstarted(outcome)]
        shut_down = [outcome for outcome in self._held if is_shut_down(outcome)]
        delay_ms = round(1_000 * spread(_UNSTARTED_SECONDS))
        refused = [
            *self._give_back(unstarted, _UNSTARTED_REASON, delay_ms),
            *self._give_back(shut_down, RELEASE_REASON, 0),
        ]
        self._retry_at = time.monotonic() + spread(_BUSY_SECONDS)
        return refused

    def _give_back(self, outcomes: Sequence[Outcome], reason: str, delay_ms: int) -> list[Outcome]:
        if not outcomes:
            return []
        leases = [outcome.execution.job.lease for outcome in outcomes]
        try:
            verdicts = self._link.give_back(leases, reason=reason, retry_delay_ms=delay_ms)
        except QueryError as error:
            if error.is_transient:
                raise
            if len(outcomes) > 1:
                # One that is refused must not cost the others their attempts.
                parts = [self._give_back([outcome], reason, delay_ms) for outcome in outcomes]
                return list(chain.from_iterable(parts))
            verdicts = [WriteVerdict.LEASE_OWNER_MISMATCH]
        answered = [
            (outcome, verdict)
            for outcome, verdict in zip(outcomes, verdicts, strict=True)
            if verdict is not WriteVerdict.BUSY
        ]
        gone = {id(outcome) for outcome, _ in answered}
        self._held = [outcome for outcome in self._held if id(outcome) not in gone]
        for outcome, verdict in answered:
            if verdict.is_stored:
                self._settling.let_go(outcome.execution)
        return [outcome for outcome, verdict in answered if not verdict.is_stored]

    def _rest(self, outcome: Outcome) -> None:
        now = time.monotonic()
        if now - self._rest_until > _FORGOTTEN_SECONDS:
            # Another shortage than the last.
            self._shortage.ended()
        self._rest_until = now + spread(_UNSTARTED_SECONDS)
        step = self._shortage.failed()
        if step.is_worth_logging:
            job = outcome.execution.job
            _logger.error(
                "a handler could not be started; its job is given back, to be tried again",
                extra={"job_id": str(job.id), "job_type": job.job_type, "jobs": step.failures},
            )
