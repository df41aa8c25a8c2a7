"""Random graphs, run by real workers while connections break, and by a crowd all at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from _crowd import ANSWERS, Crowd, Member, run_to_the_end
from _faults import define, eventually, registry_of
from _workflows import (
    COUNT_OPEN,
    JOB_TYPE,
    OPEN_GATES,
    Plan,
    add_steps,
    complete_gate,
    disagreements,
    enqueue,
    random_plan,
    work,
)

from runledger_core import Scope
from runledger_postgres import connect_pool
from runledger_postgres.lifecycle import cancel_jobs
from runledger_runtime import JobsConfig, Supervisor
from runledger_test_support import CutPoint, FaultProxy, TemporaryDatabase

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

WORKERS = 4
CROWD = 32
OPEN_RUNS = 20
TERMINATE_ENGINE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runledger%%'
"""
TO_BE_CANCELED = """
SELECT id FROM runledger.job_queue
WHERE status IN ('PENDING', 'LEASED') AND payload ->> 'end' = 'CANCELED'
"""
# A retry after a lost lease waits ten seconds and more; nothing is proved by waiting for it.
MAKE_WAITING_DUE = """
UPDATE runledger.job_queue SET next_run_at = clock_timestamp(), is_ready = true
WHERE status = 'PENDING' AND NOT is_ready
"""


@contextmanager
def four_workers(dsn: str) -> Iterator[list[Supervisor]]:
    """Run four engines in this process, each with a pool of its own."""
    with ExitStack() as stack:
        running = []
        for number in range(WORKERS):
            pool = stack.enter_context(connect_pool(dsn, max_size=2))
            config = JobsConfig(
                f"worker-{number}",
                max_global_concurrency=8,
                poll_interval_ms=100,
                lease_ttl_seconds=3,
                reaper_interval_seconds=1,
                reaper_retry_delay_ms=100,
            )
            builder = Supervisor.builder(pool, config).with_registry(registry_of({JOB_TYPE: work}))
            running.append(stack.enter_context(builder.disable_scheduler().build()))
        yield running


class Caretaker:
    """Enqueues runs, completes and uses gates, cancels what is to be canceled."""

    def __init__(self, db: psycopg.Connection[Any], chance: random.Random, *, runs: int) -> None:
        self.db, self.chance, self.left = db, chance, runs
        self.plans: dict[UUID, Plan] = {}
        define(db, JOB_TYPE, max_attempts=1_000)

    def open_runs(self) -> int:
        """Return how many runs have not ended."""
        row = self.db.execute(COUNT_OPEN).fetchone()
        assert row is not None
        return row[0]

    def look(self) -> bool:
        """Do what is to be done; tell whether anything is left."""
        open_runs = self.open_runs()
        for _ in range(min(self.left, OPEN_RUNS - open_runs)):
            plan = random_plan(self.chance, steps=40)
            self.plans[enqueue(self.db, plan)] = plan
            self.left -= 1
        self.db.execute(MAKE_WAITING_DUE)
        doomed = [row[0] for row in self.db.execute(TO_BE_CANCELED)]
        cancel_jobs(self.db, doomed, scope=Scope.ADMIN)
        for run_id, gate, end in self.db.execute(OPEN_GATES).fetchall():
            if added := self.plans[run_id].additions.pop(gate, []):
                add_steps(self.db, run_id, gate, added)
                self.plans[run_id].steps += added
            complete_gate(self.db, run_id, gate, end)
        return self.left > 0 or open_runs > 0


def test_four_workers_end_runs_as_planned_while_connections_break(
    runledger_database: TemporaryDatabase, seed: int, scaled: Callable[..., int]
) -> None:
    chance, faults = random.Random(seed), 0
    db = runledger_database.connect_directly(autocommit=True, application_name="soak")
    caretaker = Caretaker(db, chance, runs=scaled(ci=60, full=3_000))
    pause, patience = threading.Event(), time.monotonic() + scaled(ci=120, full=1_500)
    with FaultProxy(runledger_database.dsn) as proxy, four_workers(proxy.dsn) as running:
        next_fault_at = time.monotonic() + 1
        while caretaker.look():
            assert time.monotonic() < patience, f"{caretaker.open_runs()} runs do not end"
            if time.monotonic() >= next_fault_at:
                if faults % 3 == 0:
                    db.execute(TERMINATE_ENGINE)
                else:
                    point = chance.choice(list(CutPoint))
                    proxy.cut_at_commit(point, occurrence=chance.randint(1, 20))
                faults += 1
                next_fault_at = time.monotonic() + 1
            pause.wait(0.02)
        eventually(lambda: all(one.health().is_healthy for one in running))

    assert faults > 2
    assert disagreements(db, caretaker.plans, is_as_planned=True) == []


def test_crowd_deadlocks_nobody_and_strands_no_run(
    runledger_database: TemporaryDatabase, seed: int, scaled: Callable[..., int]
) -> None:
    db = runledger_database.connect_directly(autocommit=True)
    define(db, JOB_TYPE, max_attempts=5)
    crowd = Crowd(open_runs=50)
    members = [
        Member(crowd, runledger_database.connect_directly(autocommit=True), number, seed)
        for number in range(CROWD)
    ]
    deadline = time.monotonic() + scaled(ci=6, full=60)
    with ThreadPoolExecutor(CROWD) as threads:
        ends = [threads.submit(member.act_until, deadline) for member in members]
    for end in ends:
        end.result()
    print(len(crowd.plans), "runs", crowd.done, crowd.answers)  # noqa: T201  # with a failure
    assert crowd.answers.keys() <= ANSWERS
    run_to_the_end(db)

    assert disagreements(db, crowd.plans, is_as_planned=False) == []
    assert {member.__name__ for member, _ in members[0].actions} <= crowd.done.keys()
