"""Many jobs, then many starts and stops, in one process that measures itself.

`python -m soak.endurance` and one JSON object of settings; prints the measures as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import connect_pool, enqueue_jobs, upsert_job_definition
from runledger_runtime import JobRegistry, JobsConfig, Supervisor

JOB_TYPE = "endurance.work"
PATIENCE_SECONDS = 120
OTHER_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
COUNT_ENDED = "SELECT count(*) FROM runledger.job_queue WHERE finished_at IS NOT NULL"


class Endurance:
    """One process's pool, and a look at the database that is not part of the measure."""

    def __init__(self, dsn: str) -> None:
        self._database = psycopg.connect(dsn, autocommit=True)
        # Of one size, so that its own upkeep changes nothing.
        self._pool = connect_pool(dsn, min_size=2, max_size=2)
        self._pause = threading.Event()
        self._ended = 0
        upsert_job_definition(self._pool, JobDefinitionSpec(JOB_TYPE, max_attempts=1))

    def start(self) -> Supervisor:
        registry = JobRegistry()
        registry.register_function(JOB_TYPE, _fail_three_in_ten)
        config = JobsConfig("endurance", max_global_concurrency=8, reaper_interval_seconds=1)
        return Supervisor.builder(self._pool, config).with_registry(registry).build()

    def run_jobs(self, count: int) -> None:
        for first in range(0, count, 500):
            last = min(first + 500, count)
            enqueue_jobs(self._pool, [JobEnqueue(JOB_TYPE, {"n": n}) for n in range(first, last)])
        self._ended += count
        self._until(lambda: self._count(COUNT_ENDED) == self._ended)

    def measure(self, *, threads: int | None = None, connections: int | None = None) -> Any:
        """Measure now, or once threads and connections are no more than they were before."""
        self._until(
            lambda: (
                (threads is None or threading.active_count() <= threads)
                and (connections is None or self._count(OTHER_CONNECTIONS) <= connections)
            )
        )
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "threads": threading.active_count(),
            "connections": self._count(OTHER_CONNECTIONS),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "objects": len(gc.get_objects()),
            "megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        }

    def close(self) -> None:
        self._pool.close()
        self._database.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        patience = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > patience:
                # The measure will show what is too much.
                return
            self._pause.wait(0.02)

    def _count(self, query: Any) -> int:
        row = self._database.execute(query).fetchone()
        return 0 if row is None else row[0]


def _fail_three_in_ten(context: Any, payload: Any) -> None:
    if payload["n"] % 10 < 3:
        raise LookupError(f"attempt {context.attempt} of {payload['n']}")


def main() -> None:
    """Print measures of each tenth of the jobs, and of each start and stop."""
    settings = json.loads(sys.argv[1])
    endurance = Endurance(settings["dsn"])
    measures: dict[str, list[Any]] = {"working": [], "stopped": []}
    with endurance.start():
        for _ in range(10):
            endurance.run_jobs(settings["jobs"] // 20)
            measures["working"].append(endurance.measure())
    for _ in range(settings["cycles"]):
        with endurance.start():
            endurance.run_jobs(settings["jobs"] // 2 // settings["cycles"])
        first = (measures["stopped"] or [{}])[0]
        wanted = {name: first.get(name) for name in ("threads", "connections")}
        measures["stopped"].append(endurance.measure(**wanted))
    endurance.close()
    print(json.dumps(measures))  # noqa: T201  # for the test


if __name__ == "__main__":
    main()
