"""Who takes part: hand-written SQL and ours, on which databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, LiteralString

from . import by_hand
from .model import ROWS, Client, Contender, Fill, Instants
from .samples import percentile


def jobs_fill(values: LiteralString) -> LiteralString:
    """Return the statement that makes rows: type, status, readiness, time, priority, end."""
    return f"""
        INSERT INTO runledger.job_queue (
            job_type, status, is_ready, next_run_at, priority, finished_at, max_attempts, payload
        )
        SELECT {values}, 3, jsonb_build_object('customer', 4711, 'text', repeat('x', 171))
        FROM generate_series(1, %(rows)s)
    """


# Of the million that is in the way, not of the scale.
_OWN_ROWS: Final = """
    INSERT INTO runledger.job_queue (job_type, priority, max_attempts, payload)
    SELECT 'bench.noop', 0, 3, jsonb_build_object('customer', 4711, 'text', repeat('x', 171))
    FROM generate_series(1, least(%(rows)s, 100000))
"""
_READY: Final = jobs_fill("'bench.noop', 'PENDING', true, now(), 0, NULL")
QUEUE: Final = Fill(name="queue", statements=(_READY,), rows=150_000)
_HAND_QUEUE: Final = Fill(name="hand", statements=(by_hand.FILL,), rows=150_000)
_WHOLE_QUEUE: Final = Fill(name="whole", statements=(_READY,), rows=200_000)
_MEMORY_QUEUE: Final = Fill(name="memory", statements=(_READY,), rows=100_000)


def worker(concurrency: int, **arguments: object) -> Client:
    """Return a worker process on a filled queue."""
    return Client("worker", {"concurrency": concurrency, "rows": ROWS, **arguments})


def _tenths(clients: list[Instants], helpers: list[Instants]) -> dict[str, float]:
    del helpers
    (at,) = clients
    return {"last_to_first": (at["tenth 1"] - at["first"]) / (at["tenth 10"] - at["tenth 9"])}


def _pick_up(clients: list[Instants], helpers: list[Instants]) -> dict[str, float]:
    (started,), (committed,) = clients, helpers
    waits = [1e3 * (started[job] - at) for job, at in committed.items() if job in started]
    return {"p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}


HAND_ONE: Final = Contender(
    name="by hand: insert", clients=(Client("hand.enqueue_one"),), is_counted=True
)
ENQUEUE_ONE: Final = Contender(
    name="enqueue_job", clients=(Client("enqueue_one"),), is_counted=True
)
HAND_MANY: Final = Contender(
    name="by hand: COPY of 1,000",
    clients=(Client("hand.enqueue_many", {"batch": 1_000}),),
    is_counted=True,
)
ENQUEUE_MANY: Final = Contender(
    name="enqueue_jobs of 1,000",
    clients=(Client("enqueue_many", {"batch": 1_000}),),
    is_counted=True,
)
HAND_BATCHES: Final = Contender(
    name="by hand: batches of 100, one connection",
    clients=(Client("hand.drain", {"batch": 100}),),
    fill=_HAND_QUEUE,
    is_counted=True,
)
HAND_SINGLES: Final = Contender(
    name="by hand: a commit per job, 10 connections",
    clients=(Client("hand.drain", {"batch": 1, "connections": 10}),),
    fill=_HAND_QUEUE,
    is_counted=True,
)
WORKER_10, WORKER_32, WORKER_100 = (
    Contender(
        name=f"worker, concurrency {concurrency}",
        clients=(worker(concurrency),),
        fill=QUEUE,
        is_counted=True,
    )
    for concurrency in (10, 32, 100)
)
TWO_WORKERS: Final = replace(
    WORKER_32, name="two workers, concurrency 32", clients=(worker(32), worker(32))
)
HAND_PICK_UP: Final = Contender(
    name="by hand: LISTEN",
    clients=(Client("hand.listener"),),
    helpers=(Client("hand.trickle"),),
    windows=4,
    values=_pick_up,
)
PICK_UP: Final = Contender(
    name="idle worker, a job now and then",
    clients=(Client("worker", {"concurrency": 32, "tells_starts": True}),),
    helpers=(Client("trickle"),),
    windows=4,
    values=_pick_up,
)
IDLE: Final = Contender(
    name="idle worker, no jobs",
    clients=(Client("worker", {"concurrency": 32}),),
    windows=2,
    settle_seconds=3,
)
WAKING, POLLING = (
    Contender(
        name=f"32 producers, wake-ups {'on' if wakeups else 'off'}",
        clients=(Client("enqueue_one", {"threads": 32}),),
        helpers=(
            Client("worker", {"concurrency": 32, "wakeups": wakeups}),
            Client("worker", {"concurrency": 32, "wakeups": wakeups, "job_type": "bench.other"}),
        ),
    )
    for wakeups in (True, False)
)
OLD_SNAPSHOT: Final = Contender(
    name="worker, concurrency 32, under an old snapshot",
    clients=(worker(32),),
    helpers=(Client("old_snapshot"),),
    fill=_WHOLE_QUEUE,
    runs_out=True,
    values=_tenths,
)
MEMORY: Final = Contender(
    name="worker, concurrency 32, to the end",
    clients=(worker(32),),
    fill=_MEMORY_QUEUE,
    runs_out=True,
)


def _rounds(name: str, fill: Fill) -> Contender:
    return Contender(
        name=f"claim and complete 100, {name}",
        clients=(Client("rounds", {"batch": 100}),),
        fill=fill,
    )


def _in_the_way(name: str, values: LiteralString) -> Contender:
    statements = (jobs_fill(values), _OWN_ROWS)
    return _rounds(f"beside {name}", Fill(name=name, statements=statements, rows=1_000_000))


SMALL: Final = _rounds("small table", Fill(name="small", statements=(_READY,), rows=100_000))
AMONG: Final = {
    "pending": _in_the_way("pending", "'bench.noop', 'PENDING', true, now(), -1, NULL"),
    "terminal": _in_the_way("terminal", "'bench.noop', 'SUCCEEDED', false, now(), 0, now()"),
    "future": _in_the_way(
        "future", "'bench.noop', 'PENDING', false, now() + interval '1 day', 0, NULL"
    ),
    "foreign": _in_the_way("foreign", "'bench.other', 'PENDING', true, now(), 0, NULL"),
}


def _flow(name: str, *, graph: str, open_runs: int) -> tuple[Contender, Contender]:
    """Return the hand-written contender and ours for many runs of a graph."""
    arguments = {"graph": graph, "open_runs": open_runs}
    return (
        Contender(
            name=f"by hand: {name}, batches of 100, one connection",
            clients=(Client("hand.flow", arguments | {"batch": 100}),),
            is_counted=True,
        ),
        Contender(
            name=f"worker, concurrency 100, {name}",
            clients=(Client("flow", arguments | {"concurrency": 100}),),
            is_counted=True,
        ),
    )


HAND_DIAMONDS, DIAMONDS = _flow("100 diamonds", graph="diamond", open_runs=100)
HAND_FANS, FANS = _flow("10 fans of 100", graph="fan", open_runs=10)

# No rows are filled in: it is how many steps the run has.
_ONE_RUN: Final = Fill(name="one_run", rows=10_000)


def _one_run(name: str, workers: int) -> Contender:
    """Return so many workers on one run, which the last of them enqueues."""
    steps = [0] * (workers - 1) + [ROWS]
    return Contender(
        name=f"{name} of 32, one run",
        clients=tuple(
            Client("one_run", {"concurrency": 32, "steps": share, "workers": workers})
            for share in steps
        ),
        fill=_ONE_RUN,
        runs_out=True,
    )


ONE_RUN_ALONE: Final = _one_run("one worker", 1)
ONE_RUN_SHARED: Final = _one_run("two workers", 2)
