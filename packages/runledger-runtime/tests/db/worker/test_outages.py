"""The database goes away, answers late, or takes a reply with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, enqueue_jobs
from runledger_runtime.health import LoopState
from runledger_test_support import CutPoint, FaultProxy, ProxyMode

Eventually = Callable[[Callable[[], bool]], None]

SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'runledger %%'"
)


@pytest.mark.core
def test_killed_engine_connections_cost_no_attempt(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    runs: list[int] = []

    def handler(context: Any, payload: Any) -> None:
        runs.append(payload["n"])
        context.wait(0.02)

    start_worker({"jobs.one": handler}, max_global_concurrency=4)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(200)])
    for done in (20, 60, 100, 140):
        eventually(lambda done=done: look(SUCCEEDED) >= done)
        assert look(TERMINATE) > 0

    eventually(lambda: look(SUCCEEDED) == 200)
    assert sorted(runs) == list(range(200))
    assert look("SELECT max(attempt) FROM runledger.job_queue") == 1


@pytest.mark.core
@pytest.mark.parametrize("point", list(CutPoint))
def test_round_whose_reply_is_lost_runs_every_job_once(  # noqa: PLR0917  # fixtures
    point: CutPoint,
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    runs: list[int] = []
    with FaultProxy(runledger_database.dsn) as proxy, connect_pool(proxy.dsn) as pool:
        worker = start_worker(
            {"jobs.one": lambda _context, payload: runs.append(payload["n"])},
            pool=pool,
            wakeups=False,
            max_global_concurrency=2,
        )
        eventually(lambda: worker.health.status(LoopState.RUNNING).last_pass_at is not None)
        for batch in range(5):
            trap = proxy.cut_at_commit(point)
            requests = [
                JobEnqueue("jobs.one", {"n": batch * 10 + n}, max_attempts=1) for n in range(10)
            ]
            enqueue_jobs(runledger_pool, requests)
            trap.wait(30)
            eventually(lambda batch=batch: look(SUCCEEDED) == 10 * (batch + 1))
        worker.end()

    assert sorted(runs) == list(range(50))
    assert look("SELECT max(claim_number) FROM runledger.job_queue") == 1


def test_outage_is_waited_for_and_leases_are_told(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    started, told = threading.Event(), threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        started.set()
        if context.wait(60):
            told.set()

    with FaultProxy(runledger_database.dsn) as proxy, connect_pool(proxy.dsn) as pool:
        worker = start_worker(
            {"jobs.long": handler, "jobs.next": lambda *_: None}, pool=pool, lease_ttl_seconds=1
        )
        enqueue_job(runledger_pool, JobEnqueue("jobs.long", {}))
        assert started.wait(30)

        proxy.set_mode(ProxyMode.RESET)
        proxy.set_mode(ProxyMode.REFUSE)
        assert told.wait(30)
        eventually(lambda: worker.health.status(LoopState.RUNNING).consecutive_errors > 2)
        proxy.set_mode(ProxyMode.PASS)
        enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}))

        eventually(lambda: look(SUCCEEDED) == 1)
        assert worker.thread.is_alive()
        worker.end()


def test_frozen_link_is_noticed_and_replaced(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    with FaultProxy(runledger_database.dsn) as proxy, connect_pool(proxy.dsn) as pool:
        worker = start_worker(
            {"jobs.one": lambda *_: None}, pool=pool, lease_ttl_seconds=3, wakeups=False
        )
        eventually(lambda: worker.health.status(LoopState.RUNNING).last_pass_at is not None)

        proxy.set_mode(ProxyMode.BLACKHOLE)
        eventually(lambda: worker.health.status(LoopState.RUNNING).consecutive_errors > 0)
        proxy.sever()
        proxy.set_mode(ProxyMode.PASS)
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}))

        eventually(lambda: look(SUCCEEDED) == 1)
        worker.end()


def test_row_held_by_the_host_delays_only_its_own_job(
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    started, release = threading.Event(), threading.Event()

    def handler(_context: Any, payload: Any) -> None:
        if payload["n"] == 0:
            started.set()
            release.wait(30)

    start_worker({"jobs.one": handler}, max_global_concurrency=2, lease_ttl_seconds=60)
    held = enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 0})).id
    assert started.wait(30)
    host = runledger_database.connect()
    host.execute("SELECT FROM runledger.job_queue WHERE id = %s FOR UPDATE", [held])

    release.set()
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(1, 100)])

    eventually(lambda: look(SUCCEEDED) == 99)
    assert look("SELECT status::text FROM runledger.job_queue WHERE id = %s", held) == "LEASED"
    host.rollback()
    eventually(lambda: look(SUCCEEDED) == 100)


def test_outcome_that_the_database_refuses_does_not_hold_up_its_neighbours(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    with runledger_pool.connection() as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN IF NEW.payload ->> 'n' = '3' AND NEW.status = 'SUCCEEDED' THEN"
            " RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON runledger.job_queue"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    start_worker({"jobs.one": lambda *_: None})

    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(10)])

    eventually(lambda: look(SUCCEEDED) == 9)
    dead = "SELECT last_error_code FROM runledger.job_queue WHERE status = 'DEAD_LETTERED'"
    eventually(lambda: look(dead) == "job.invalid_output")
