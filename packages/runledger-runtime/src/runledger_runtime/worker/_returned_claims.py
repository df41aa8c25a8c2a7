"""Claims that go back to the queue, so that no attempt is used up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

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
_FORGOTTEN_SECONDS: Final = 60.0
_MOST_AT_ONCE: Final = 1_000
_LEAST_BUSY_SECONDS: Final = 0.05
_MOST_BUSY_SECONDS: Final = 1.0
# After a try in vain the pump has so many times as long as it took for everything else.
_RESTS: Final = 4


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
        self._most = _MOST_AT_ONCE
        self._retry_at = 0.0
        self._busy_seconds = _LEAST_BUSY_SECONDS
        self._claims_from = 0.0
        self._shortage = Outage()

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    def take(self, outcome: Outcome) -> bool:
        """Keep an outcome whose claim goes back; return whether it is kept."""
        if is_unstarted(outcome):
            self._pause_claims(outcome)
        elif not is_shut_down(outcome):
            return False
        self._held.append(outcome)
        return True

    def is_pausing(self) -> bool:
        """Tell whether nothing is to be claimed for now."""
        return self.seconds_of_pause() > 0

    def seconds_of_pause(self) -> float:
        """Return for how long nothing is to be claimed, 0 or more."""
        return max(0.0, self._claims_from - time.monotonic())

    def seconds_until_next(self) -> float | None:
        """Return how long to leave those alone that are held; None if there are none."""
        return max(0.0, self._retry_at - time.monotonic()) if self._held else None

    def give_back(self) -> list[Outcome]:
        """Give some back of those that are held, and hold on to those whose rows others hold.

        Returns:
            What the server refuses to take back, to be stored as it is.

        Raises:
            QueryError: The connection is lost; everything is still held.
        """
        if not self._held or time.monotonic() < self._retry_at:
            return []
        part = self._next_part()
        began = time.monotonic()
        try:
            verdicts = self._give_back(part)
        except QueryError as error:
            self._put_behind(part)
            # One that is refused, or takes too long, must not cost the others their attempts.
            self._most = max(1, len(part) // 2)
            if error.is_transient:
                self._retry_at = began + (1 + _RESTS) * (time.monotonic() - began)
                raise
            if len(part) > 1:
                return []
            verdicts = [WriteVerdict.LEASE_OWNER_MISMATCH]
        else:
            self._most = min(2 * self._most, _MOST_AT_ONCE)
        return self._settle(part, verdicts)

    def _next_part(self) -> list[Outcome]:
        """Return the first ones that go back for the same reason, each of another job."""
        is_of_kind = is_unstarted if is_unstarted(self._held[0]) else is_shut_down
        part: dict[UUID, Outcome] = {}
        for outcome in self._held:
            if len(part) == self._most:
                break
            if is_of_kind(outcome):
                part.setdefault(outcome.execution.job.id, outcome)
        return list(part.values())

    def _give_back(self, part: Sequence[Outcome]) -> list[WriteVerdict]:
        leases = [outcome.execution.job.lease for outcome in part]
        if is_shut_down(part[0]):
            return self._link.give_back(leases, reason=RELEASE_REASON, retry_delay_ms=0)
        # Due once claims are made again here.
        delay_ms = round(1_000 * self.seconds_of_pause())
        return self._link.give_back(leases, reason=_UNSTARTED_REASON, retry_delay_ms=delay_ms)

    def _settle(self, part: Sequence[Outcome], verdicts: Sequence[WriteVerdict]) -> list[Outcome]:
        busy: list[Outcome] = []
        refused: list[Outcome] = []
        for outcome, verdict in zip(part, verdicts, strict=True):
            if verdict is WriteVerdict.BUSY:
                busy.append(outcome)
            elif verdict.is_stored:
                self._settling.let_go(outcome.execution)
            else:
                refused.append(outcome)
        self._put_behind(part)
        self._held[-len(part) :] = busy
        if len(busy) < len(part):
            self._busy_seconds = _LEAST_BUSY_SECONDS
        else:
            self._retry_at = time.monotonic() + spread(self._busy_seconds)
            self._rest_longer(busy)
        return refused

    def _put_behind(self, part: Sequence[Outcome]) -> None:
        moved = {id(outcome) for outcome in part}
        self._held = [*(each for each in self._held if id(each) not in moved), *part]

    def _rest_longer(self, busy: Sequence[Outcome]) -> None:
        longer = min(2 * self._busy_seconds, _MOST_BUSY_SECONDS)
        if self._busy_seconds < longer == _MOST_BUSY_SECONDS:
            job = busy[0].execution.job
            _logger.warning(
                "a job cannot be given back: somebody holds its row, or a trigger keeps it",
                extra={"job_id": str(job.id), "job_type": job.job_type, "jobs": len(busy)},
            )
        self._busy_seconds = longer

    def _pause_claims(self, outcome: Outcome) -> None:
        now = time.monotonic()
        if now - self._claims_from > _FORGOTTEN_SECONDS:
            # Another shortage than the last.
            self._shortage.ended()
        self._claims_from = now + spread(_UNSTARTED_SECONDS)
        step = self._shortage.failed()
        if step.is_worth_logging:
            job = outcome.execution.job
            _logger.error(
                "a handler could not be started; its job is given back, to be tried again",
                extra={"job_id": str(job.id), "job_type": job.job_type, "jobs": step.failures},
            )
