"""Where claims begin while dead entries fill the heads of the indexes.

As long as anybody holds an old snapshot, the index entries of jobs that were claimed since cannot
be removed, and a claim from the start walks all of them. A claim from a mark behind them does not,
but misses what sorts before it: a higher priority, or a commit that came late. So marks are used
only while walks from the start are slow, and even then one from the start is made again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from runledger_postgres.lifecycle import Backlog, ClaimRequest, ReadyMark, RoundResult, Walk

_SLOW_SECONDS: Final = 0.005
# A busy machine makes any walk slow now and then; a walk of few entries is not made faster by a
# mark, and order must not suffer for it.
_MANY_ENTRIES: Final = 2_000
_COST_FACTOR: Final = 20
# Jobs become ready in another order than that of their instants: commits take a while, and so does
# the next flip.
_SLACK: Final = timedelta(milliseconds=100)
_NO_JOB: Final = UUID(int=0)
# A guess for types of which nothing was taken yet; if it is wrong, the first of their jobs waits
# for a claim from the start.
_USUAL_RANK: Final = ~0


class WalkPace:
    """Says of one index when a walk from its start is due: always, unless the last one was slow."""

    def __init__(self, *, least_interval_seconds: float) -> None:
        """Begin with a walk from the start."""
        self._least_interval = least_interval_seconds
        self._is_slow = False
        self._start_at = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether the last walk from the start was slow."""
        return self._is_slow

    def is_start_due(self, now: float) -> bool:
        """Whether to begin at the start now."""
        return not self._is_slow or now >= self._start_at

    def seconds_until_start(self, now: float) -> float | None:
        """Return how long until a walk has to begin at the start; None if each does."""
        return max(0.0, self._start_at - now) if self._is_slow else None

    def after_start(self, walk: Walk, now: float) -> None:
        """Take note of a walk from the start."""
        self._is_slow = walk.seconds > _SLOW_SECONDS and walk.entries >= _MANY_ENTRIES
        self._start_at = now + max(self._least_interval, _COST_FACTOR * walk.seconds)


class LowMark:
    """Where the next claim begins: by type among ready jobs, and among waiting ones.

    Attributes:
        ready: When claims begin at the start.
        waiting: When the flip does.
    """

    def __init__(self, job_types: Sequence[str], *, poll_interval_seconds: float) -> None:
        """Begin at the start."""
        self._job_types = job_types
        self.ready = WalkPace(least_interval_seconds=poll_interval_seconds)
        self.waiting = WalkPace(least_interval_seconds=poll_interval_seconds)
        self._marks: dict[str, ReadyMark] = {}
        self._ranks: dict[str, int] = {}
        self._waiting_from: datetime | None = None

    def marks(self, now: float) -> Mapping[str, ReadyMark]:
        """Return where a claim begins by type; nothing if it begins at the start."""
        return {} if self.ready.is_start_due(now) else dict(self._marks)

    def waiting_from(self, now: float) -> datetime | None:
        """Return where a flip begins; None if at the start."""
        return None if self.waiting.is_start_due(now) else self._waiting_from

    def is_look_due(self, now: float) -> bool:
        """Whether the next claim needs a look: one from the start, while such are slow."""
        return any(pace.is_slow and pace.is_start_due(now) for pace in (self.ready, self.waiting))

    def seconds_until_start(self, now: float) -> float | None:
        """Return how long until a claim has to begin at the start; None if each does."""
        waits = [pace.seconds_until_start(now) for pace in (self.ready, self.waiting)]
        return min((wait for wait in waits if wait is not None), default=None)

    def after_claim(self, request: ClaimRequest, result: RoundResult, *, now: float) -> None:
        """Take note of what a claim saw, and move the marks."""
        backlog = result.backlog
        if backlog is not None:
            if not request.marks:
                self.ready.after_start(backlog.ready_walk, now)
            if request.waiting_from is None:
                self.waiting.after_start(backlog.waiting_walk, now)
        if self.ready.is_slow:
            self._move(result.last_taken, backlog)
        else:
            self._ranks |= {job_type: mark.rank for job_type, mark in result.last_taken.items()}
        if backlog is not None:
            recent = backlog.looked_at - _SLACK
            self._waiting_from = min(backlog.next_due_at or recent, recent)

    def _move(self, last_taken: Mapping[str, ReadyMark], backlog: Backlog | None) -> None:
        self._note_ranks(last_taken)
        if backlog is None:
            self._marks.update(last_taken)
            return
        self._note_ranks(backlog.best)
        for job_type in self._job_types:
            self._marks[job_type] = self._mark_of(job_type, backlog)

    def _note_ranks(self, seen: Mapping[str, ReadyMark]) -> None:
        for job_type, mark in seen.items():
            self._ranks[job_type] = max(self._ranks.get(job_type, mark.rank), mark.rank)

    def _mark_of(self, job_type: str, backlog: Backlog) -> ReadyMark:
        # The best job that is left; but what is made ready from now on sorts behind what was just
        # taken, by whomever, so a mark that nothing is left at need not stay at the last job.
        left = backlog.best.get(job_type)
        rank = self._ranks.get(job_type, _USUAL_RANK)
        recent = ReadyMark(rank, backlog.looked_at - _SLACK, id=_NO_JOB)
        return recent if left is None else min(left, recent)
