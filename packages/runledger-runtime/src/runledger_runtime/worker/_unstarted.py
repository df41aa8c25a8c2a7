"""Claims whose handlers could not be started: given back, so that no attempt is used up."""

from __future__ import annotations

import time
from typing import Final

from runledger_postgres.errors import QueryError

from ..backoff import Outage, spread
from ..safe_log import safe_logger
from ._attempt import is_unstarted
from ._execution import Outcome
from ._link import PumpLink
from ._settling import Settling

_logger = safe_logger(__name__)

_REASON: Final = "NOT_STARTED"
_REST_SECONDS: Final = 1.0


class UnstartedClaims:
    """Gives claims back that could not be started, and has the pump claim no more for a moment.

    Without that pause the pump would take every job that waits and give it back, again and again.
    """

    def __init__(self, link: PumpLink, settling: Settling) -> None:
        """Hold none yet."""
        self._link = link
        self._settling = settling
        self._held: list[Outcome] = []
        self._rest_until = 0.0
        self._shortage = Outage()

    def take(self, outcome: Outcome) -> bool:
        """Keep the outcome if its handler was not started; return whether it is kept."""
        if not is_unstarted(outcome):
            return False
        self._held.append(outcome)
        self._rest_until = time.monotonic() + spread(_REST_SECONDS)
        step = self._shortage.failed()
        if step.is_worth_logging:
            job = outcome.execution.job
            _logger.error(
                "a handler could not be started; its job is given back, to be tried again",
                extra={"job_id": str(job.id), "job_type": job.job_type, "jobs": step.failures},
            )
        return True

    def seconds_left(self) -> float:
        """Return for how long nothing is to be claimed, 0 or more."""
        return max(0.0, self._rest_until - time.monotonic())

    def give_back(self) -> list[Outcome]:
        """Give back what is held; return what that failed for, to be stored as it is.

        Raises:
            QueryError: The connection is lost; everything is still held.
        """
        if not self._held:
            return []
        leases = [outcome.execution.job.lease for outcome in self._held]
        delay_ms = round(1_000 * spread(_REST_SECONDS))
        try:
            left = self._link.release(leases, reason=_REASON, retry_delay_ms=delay_ms)
        except QueryError as error:
            if error.is_transient:
                raise
            left = leases
        held, self._held = self._held, []
        for outcome in held:
            if outcome.execution.job.lease not in left:
                self._settling.let_go(outcome.execution)
        return [outcome for outcome in held if outcome.execution.job.lease in left]
