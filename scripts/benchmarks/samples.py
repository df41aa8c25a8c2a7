"""What one run measured, and what several runs come to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run of one contender measured.

    Attributes:
        jobs: Jobs enqueued or run in the window.
        seconds: Length of the window, or of the part until the last job.
        client_cpu_seconds: User and system time of the measured clients in the window.
        server_cpu_seconds: The same of all processes of the server.
        wal_bytes: WAL written in the window, full-page images included unless they were off.
        commits_per_job: Over the clients' whole life, which is when the server has counted all.
        statements: Statements run in the window, BEGIN and COMMIT apart; None if not counted.
        values: Other measures, by name.
    """

    jobs: int
    seconds: float
    client_cpu_seconds: float
    server_cpu_seconds: float
    wal_bytes: int
    commits_per_job: float
    statements: int | None = None
    values: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds if self.seconds else 0.0

    def per_job(self, total: float) -> float:
        """Return a sum's share of one job; the whole if there was none."""
        return total / max(1, self.jobs)

    def as_json(self) -> dict[str, object]:
        """Return everything measured."""
        return {**asdict(self), "rate": self.rate}


@dataclass(frozen=True)
class Spread:
    """The middle of some measures, and how far they lie apart."""

    median: float
    low: float
    high: float


def spread_of(measures: Sequence[float]) -> Spread | None:
    """Return the middle and the ends of measures; None if there are none."""
    if not measures:
        return None
    return Spread(statistics.median(measures), min(measures), max(measures))


def ratios(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Divide turn by turn: the machine drifts, so only neighbours in time are compared."""
    return [our / other for our, other in zip(ours, others, strict=True) if other]


def percentile(measures: Sequence[float], share: float) -> float:
    """Return the smallest measure that at least this share of all do not exceed."""
    ordered = sorted(measures)
    index = -(-len(ordered) * share // 1) - 1
    return ordered[max(0, int(index))]
