"""What a figure is: who is measured, what is read of it, and what it should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, LiteralString

from .samples import Sample

ROWS: Final = "the rows of the fill"
"""An argument of a client that stands for how many rows its database was filled with."""


@dataclass(frozen=True)
class Client:
    """A process that runs a workload of `client.WORKLOADS`, with its arguments."""

    workload: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, kw_only=True)
class Fill:
    """What a database holds before a run.

    Attributes:
        name: Of the template that is made once and cloned for every run.
        statements: SQL on an empty schema; `%(rows)s` is the number of rows.
        rows: At full size; less in a quick run.
    """

    name: str
    statements: tuple[LiteralString, ...] = ()
    rows: int = 0


EMPTY: Final = Fill(name="empty")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to do the work, measured in turns with others.

    Attributes:
        name: As printed.
        clients: Processes whose work is measured.
        helpers: Processes that run beside them and are not.
        fill: What the database holds.
        windows: Length of a run, in multiples of the usual one.
        settle_seconds: Between the start of the clients and the window, at full size.
        runs_out: The run ends when all jobs are done and begins with the first, however long.
        is_counted: One more run counts statements, and WAL without full-page images.
        values: Makes other measures of what clients and helpers tell at the end.
    """

    name: str
    clients: tuple[Client, ...]
    helpers: tuple[Client, ...] = ()
    fill: Fill = EMPTY
    windows: float = 1.0
    settle_seconds: float = 1.0
    runs_out: bool = False
    is_counted: bool = False
    values: Callable[[list[Instants], list[Instants]], dict[str, float]] | None = None


Instants = Mapping[str, float]
"""When something happened, by the clock that all processes share."""


@dataclass(frozen=True)
class Reading:
    """What is read of a run, and its unit.

    Attributes:
        is_counted: It is read of the run that counts, not of those that are timed.
    """

    unit: str
    read: Callable[[Sample], float]
    is_counted: bool = False


RATE: Final = Reading("jobs/s", lambda sample: sample.rate)
COMMITS: Final = Reading("commits/job", lambda sample: sample.commits_per_job)
STATEMENTS: Final = Reading(
    "statements/job", lambda sample: sample.per_job(sample.statements or 0), is_counted=True
)
WAL: Final = Reading("B/job", lambda sample: sample.per_job(sample.wal_bytes), is_counted=True)
CLIENT_CPU: Final = Reading(
    "us/job", lambda sample: sample.per_job(1e6 * sample.client_cpu_seconds)
)
SERVER_CPU: Final = Reading(
    "us/job", lambda sample: sample.per_job(1e6 * sample.server_cpu_seconds)
)


def value_of(name: str, unit: str) -> Reading:
    """Return a reading of one of the other measures."""
    return Reading(unit, lambda sample: sample.values[name])


@dataclass(frozen=True)
class Target:
    """A bound: of the ratio to what a figure is compared with, or of the figure itself."""

    bound: float
    is_ratio: bool = False
    is_upper: bool = False

    def is_met(self, measured: float) -> bool:
        """Whether a median is on the right side."""
        return measured <= self.bound if self.is_upper else measured >= self.bound


def at_least_times(ratio: float) -> Target:
    """Ask for a share of what the figure is compared with."""
    return Target(ratio, is_ratio=True)


def at_most(value: float) -> Target:
    """Ask for a small figure."""
    return Target(value, is_upper=True)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A line of the report.

    Attributes:
        name: For the command line.
        group: Contenders of one group take turns.
        title: As printed.
        ours: What is measured.
        baseline: What it is compared with: hand-written SQL, or ours in other circumstances.
        reading: What is read of both.
        target: What the median should reach.
    """

    name: str
    group: str
    title: str
    ours: Contender
    baseline: Contender | None = None
    reading: Reading = RATE
    target: Target | None = None

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """Who has to run for it."""
        return (self.ours,) if self.baseline is None else (self.baseline, self.ours)
