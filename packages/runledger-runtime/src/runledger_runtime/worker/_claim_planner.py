"""What the next claim asks for: how far it looks, where it begins, and what goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from runledger_postgres.lifecycle import ClaimRequest, RoundResult

from ._low_mark import LowMark
from ._refused_claims import RefusedClaims

# Of flips, and of looks while every claim comes back full.
_INTERVAL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """What a claim says about when to claim again.

    Attributes:
        claimed: How many jobs were claimed.
        may_find_more: Whether another claim could find something at once.
        has_ready: Whether ready jobs are left, claimable or held by others.
        due_in_seconds: Until the next waiting job of any type is due.
        latest_seconds: Until a claim has to begin at the start; None if each does.
    """

    claimed: int
    may_find_more: bool
    _: KW_ONLY
    has_ready: bool = False
    due_in_seconds: float | None = None
    latest_seconds: float | None = None


class ClaimPlanner:
    """Makes the requests of one worker's claims, each from what the ones before it found.

    While claims come back full there is more to do than to look: the flip and the look then go with
    a claim now and then. A worker sleeps only after a look that saw no waiting job due, or after a
    flip.
    """

    def __init__(
        self,
        worker_id: str,
        job_types: Sequence[str],
        *,
        lease_ttl_seconds: int,
        poll_interval_seconds: float,
    ) -> None:
        """Begin with a claim from the start that flips and looks."""
        self._worker_id = worker_id
        self._job_types = job_types
        self._ttl = lease_ttl_seconds
        self._low_mark = LowMark(job_types, poll_interval_seconds=poll_interval_seconds)
        self.refused = RefusedClaims()
        """Jobs that cannot be claimed."""
        self._window = 1
        self._is_full = False
        self._is_flip_missing = True
        self._flip_at = 0.0
        self._look_at = 0.0

    def request(self, limit: int, *, now: float) -> ClaimRequest:
        """Return what to claim next.

        Args:
            limit: Most jobs to lease.
            now: By the monotonic clock.
        """
        low_mark, refused = self._low_mark, self.refused
        limit = min(limit, refused.most)
        is_look_due = low_mark.is_look_due(now)
        is_flip_due = self._is_flip_missing or is_look_due or now >= self._flip_at
        return ClaimRequest(
            self._worker_id,
            self._job_types,
            limit=limit,
            window=limit * self._window,
            lease_ttl_seconds=self._ttl,
            marks=low_mark.marks(now),
            waiting_from=low_mark.waiting_from(now),
            left_out=refused.left_out(now),
            flip_limit=refused.most,
            has_flip=is_flip_due and refused.has_flip,
            has_look=not self._is_full or is_look_due or now >= self._look_at,
        )

    def report(self, request: ClaimRequest, result: RoundResult, *, now: float) -> ClaimReport:
        """Take note of what a claim found, and tell what it means for the next."""
        claimed = len(result.claimed) + len(result.undecodable)
        due_in_seconds = result.due_in_seconds
        self._is_full = claimed == request.limit
        # Others held what was found: look twice as far next time.
        self._window = 2 if claimed == 0 and result.has_ready else 1
        if request.has_flip:
            self._flip_at = now + _INTERVAL_SECONDS
        if result.backlog is not None:
            self._look_at = now + _INTERVAL_SECONDS
        self._is_flip_missing = (
            not request.has_flip and due_in_seconds is not None and due_in_seconds <= 0
        )
        self._low_mark.after_claim(request, result, now=now)
        return ClaimReport(
            claimed,
            may_find_more=self._is_full or self._is_flip_missing or result.backlog is None,
            has_ready=result.has_ready,
            due_in_seconds=due_in_seconds,
            latest_seconds=self._low_mark.seconds_until_start(now),
        )
