"""Outcomes whose rows somebody else holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime.health import LoopState

Eventually = Callable[[Callable[[], bool]], None]

HOLD_ALL = "SELECT FROM runledger.job_queue FOR UPDATE"
LEASED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'LEASED'"
SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
PUMP_WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'runledger pump' AND wait_event_type = 'Lock'"
)
TERMINATE_WAITING_PUMP = PUMP_WAITS.replace("count(*)", "count(pg_terminate_backend(pid))")


def test_outcome_of_a_held_row_is_stored_when_it_is_let_go(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    release = threading.Event()
    start_worker({"jobs.one": lambda *_: release.wait(30) and None}, wakeups=False)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {})])
    eventually(lambda: look(LEASED) == 1)

    holder = runledger_database.connect()
    holder.execute(HOLD_ALL)
    release.set()
    eventually(lambda: look(PUMP_WAITS) == 1)
    holder.rollback()

    eventually(lambda: look(SUCCEEDED) == 1)


def test_outcomes_of_held_rows_outlive_the_connections_that_wait_for_them(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    releases = [threading.Event() for _ in range(6)]

    def handler(_context: Any, payload: int) -> None:
        releases[payload].wait(30)

    start_worker({"jobs.one": handler}, wakeups=False, lease_ttl_seconds=60)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", n) for n in range(len(releases))])
    eventually(lambda: look(LEASED) == len(releases))

    holder = runledger_database.connect()
    holder.execute(HOLD_ALL)
    for release in releases:
        release.set()
    for _ in releases:
        eventually(lambda: look(TERMINATE_WAITING_PUMP) == 1)
    holder.rollback()

    eventually(lambda: look(SUCCEEDED) == len(releases))


def test_outcome_of_a_held_row_keeps_its_slot(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    release = threading.Event()
    ran: list[str] = []

    def handler(_context: Any, payload: str) -> None:
        ran.append(payload)
        release.wait(30)

    worker = start_worker(
        {"jobs.one": handler}, wakeups=False, poll_interval_ms=10, max_global_concurrency=1
    )
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", "first"))
    eventually(lambda: look(LEASED) == 1)
    holder = runledger_database.connect()
    holder.execute(HOLD_ALL)
    release.set()
    eventually(lambda: look(PUMP_WAITS) == 1)

    enqueue_job(runledger_pool, JobEnqueue("jobs.one", "second"))
    for _ in range(5):
        last = worker.health.status(LoopState.RUNNING).last_pass_at
        eventually(lambda last=last: worker.health.status(LoopState.RUNNING).last_pass_at != last)
    ran_meanwhile = list(ran)
    holder.rollback()

    assert ran_meanwhile == ["first"]
    eventually(lambda: look(SUCCEEDED) == 2)
