"""Jobs whose claim the server refuses: they are found and left out, so that the others run.

A trigger or a constraint of the host may refuse the lease of one job, or that it becomes ready, and
with it the whole claim. So a claim that was refused is made again for one job. If that is refused
too it is made without the flip, which tells the two apart. The claims after it ask for twice as
many each, so that a queue with few such jobs is claimed at nearly its usual pace.
"""

from __future__ import annotations

from enum import Enum
from typing import Final
from uuid import UUID

from runledger_postgres.lifecycle import ClaimRequest

# What a claim and a flip take at most.
_ANY_NUMBER: Final = 1_000
# Then they are tried again: somebody may have mended what refused them.
_LEFT_OUT_SECONDS: Final = 30.0
# As many as this are no single jobs any more.
MOST_LEFT_OUT: Final = 1_000


class RefusedPart(Enum):
    """Which part of a claim for one job was refused."""

    FLIP = "FLIP"
    """The next waiting job cannot become ready."""
    CLAIM = "CLAIM"
    """The next ready job cannot be leased."""


class RefusedClaims:
    """What the claims of one worker ask for after some of them were refused."""

    def __init__(self) -> None:
        """Begin with claims of any size."""
        self.most: int = _ANY_NUMBER
        """Most jobs to lease, and to ready, in the next claim."""
        self.has_flip: bool = True
        """Whether the next claim may have a flip."""
        self._left_out: dict[UUID, float] = {}

    @property
    def is_full(self) -> bool:
        """Whether so many jobs are left out that the reason must be another."""
        return len(self._left_out) >= MOST_LEFT_OUT

    def left_out(self, now: float) -> list[UUID]:
        """Return the jobs that the next claim leaves out."""
        if self._left_out:
            self._left_out = {job_id: at for job_id, at in self._left_out.items() if at > now}
        return list(self._left_out)

    def leave_out(self, job_id: UUID, now: float) -> None:
        """Leave a job out for half a minute."""
        self._left_out[job_id] = now + _LEFT_OUT_SECONDS

    def after_refusal(self, request: ClaimRequest) -> RefusedPart | None:
        """Take note of a claim that was refused; return which part it was, once that is known."""
        if request.limit > 1 or (request.has_flip and request.flip_limit > 1):
            self.most = 1
            return None
        if request.has_flip:
            self.has_flip = False
            return None
        self.has_flip = True
        return RefusedPart.CLAIM

    def after_claim(self) -> RefusedPart | None:
        """Take note of a claim that went through; return which part it was that had not."""
        self.most = min(2 * self.most, _ANY_NUMBER)
        if self.has_flip:
            return None
        self.has_flip, self.most = True, 1
        return RefusedPart.FLIP
