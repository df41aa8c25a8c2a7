"""Every figure, in the order of the report."""

from __future__ import annotations

from typing import Final

from . import contenders as who
from .graphs import DIAMOND_STEPS
from .model import (
    CLIENT_CPU,
    COMMITS,
    WAL,
    Figure,
    Reading,
    Target,
    at_least_times,
    at_most,
    value_of,
)

_IDLE_CPU: Final = Reading("%", lambda sample: 100 * sample.client_cpu_seconds / sample.seconds)

_WORKFLOWS_PER_SECOND: Final = Reading("workflows/s", lambda sample: sample.rate / DIAMOND_STEPS)
_STEPS_PER_SECOND: Final = Reading("steps/s", lambda sample: sample.rate)

_ENQUEUE: Final = (
    Figure(
        name="enqueue-one",
        group="enqueue",
        title="enqueue one, own transaction",
        ours=who.ENQUEUE_ONE,
        baseline=who.HAND_ONE,
        target=at_least_times(0.70),
    ),
    Figure(
        name="enqueue-many",
        group="enqueue",
        title="enqueue many, 1,000 a call",
        ours=who.ENQUEUE_MANY,
        baseline=who.HAND_MANY,
        target=at_least_times(0.35),
    ),
)

_DRAIN: Final = (
    Figure(
        name="drain-10",
        group="drain",
        title="drain, concurrency 10",
        ours=who.WORKER_10,
        baseline=who.HAND_BATCHES,
        target=at_least_times(0.15),
    ),
    Figure(
        name="drain-10-singles",
        group="drain",
        title="drain, concurrency 10, to a commit per job by hand",
        ours=who.WORKER_10,
        baseline=who.HAND_SINGLES,
    ),
    Figure(
        name="drain-32",
        group="drain",
        title="drain, concurrency 32, the default",
        ours=who.WORKER_32,
        baseline=who.HAND_BATCHES,
        target=at_least_times(0.30),
    ),
    Figure(
        name="drain-100",
        group="drain",
        title="drain, concurrency 100",
        ours=who.WORKER_100,
        baseline=who.HAND_BATCHES,
        target=at_least_times(0.45),
    ),
    Figure(
        name="drain-2x32",
        group="drain",
        title="drain, two workers of 32, to one",
        ours=who.TWO_WORKERS,
        baseline=who.WORKER_32,
        target=at_least_times(1.2),
    ),
)

_PER_JOB: Final = tuple(
    Figure(
        name=name,
        group="drain",
        title=f"{title}, concurrency 100",
        ours=who.WORKER_100,
        baseline=who.HAND_BATCHES,
        reading=reading,
        target=at_most(bound),
    )
    for name, title, reading, bound in (
        ("commits", "commits per job", COMMITS, 0.03),
        ("wal", "WAL per job, claim to finish", WAL, 1_700),
        ("cpu", "worker CPU per job", CLIENT_CPU, 90),
    )
)

_IDLE: Final = (
    *(
        Figure(
            name=f"pick-up-{share}",
            group="pick-up",
            title=f"idle pick-up, commit to handler start, {share}",
            ours=who.PICK_UP,
            baseline=who.HAND_PICK_UP,
            reading=value_of(f"{share}_ms", "ms"),
            target=at_most(bound),
        )
        for share, bound in (("p50", 4), ("p99", 20))
    ),
    Figure(
        name="idle-cpu",
        group="pick-up",
        title="idle worker, CPU",
        ours=who.IDLE,
        reading=_IDLE_CPU,
        target=at_most(1),
    ),
    Figure(
        name="wake-ups",
        group="wake-ups",
        title="32 producers, wake-ups on, to off",
        ours=who.WAKING,
        baseline=who.POLLING,
        target=at_least_times(0.90),
    ),
)

_LARGE: Final = (
    *(
        Figure(
            name=f"claim-{name}",
            group="claim",
            title=f"claim and complete beside 1,000,000 {name} rows, to a small table",
            ours=contender,
            baseline=who.SMALL,
            target=at_least_times(0.8),
        )
        for name, contender in who.AMONG.items()
    ),
    Figure(
        name="old-snapshot",
        group="old-snapshot",
        title="drain of 200,000 under an old snapshot, last tenth to first",
        ours=who.OLD_SNAPSHOT,
        reading=value_of("last_to_first", "x"),
        target=Target(0.7),
    ),
    Figure(
        name="memory",
        group="memory",
        title="worker's memory after 100,000 jobs",
        ours=who.MEMORY,
        reading=value_of("memory_mb", "MB"),
        target=at_most(60),
    ),
)

_WORKFLOWS: Final = (
    Figure(
        name="workflow-diamond",
        group="workflows",
        title="workflow, diamond of four, 100 in flight",
        ours=who.DIAMONDS,
        baseline=who.HAND_DIAMONDS,
        reading=_WORKFLOWS_PER_SECOND,
        target=at_least_times(0.25),
    ),
    Figure(
        name="workflow-fan",
        group="workflows",
        title="workflow, fan of 100 and join, 10 in flight",
        ours=who.FANS,
        baseline=who.HAND_FANS,
        reading=_STEPS_PER_SECOND,
        target=at_least_times(0.25),
    ),
    Figure(
        name="workflow-one-run",
        group="one-run",
        title="one run of 10,000 steps, two workers, to one",
        ours=who.ONE_RUN_SHARED,
        baseline=who.ONE_RUN_ALONE,
        reading=_STEPS_PER_SECOND,
        target=at_least_times(0.8),
    ),
)

FIGURES: Final = (*_ENQUEUE, *_DRAIN, *_PER_JOB, *_IDLE, *_LARGE, *_WORKFLOWS)
