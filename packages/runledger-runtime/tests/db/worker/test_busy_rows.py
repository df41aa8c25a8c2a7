"""Outcomes whose rows somebody else holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.definitions import upsert_job_definition
from runledger_postgres.lifecycle import run_worker_round
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_runtime.errors import LoopExit
from runledger_runtime.health import LoopState
from runledger_runtime.worker import _link

Eventually = Callable[[Callable[[], bool]], None]

HOLD_ALL = "SELECT FROM runledger.job_queue FOR UPDATE"
LEASED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'LEASED'"
GIVEN_BACK = "SELECT count(*) FROM runledger.job_queue WHERE status = 'PENDING' AND attempt = 0"
REFUSE_TO_GIVE_BACK = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''not this one''; END';
CREATE TRIGGER refuse BEFORE UPDATE ON runledger.job_queue FOR EACH ROW
    WHEN (NEW.attempt < OLD.attempt AND OLD.payload = 'true') EXECUTE FUNCTION public.refuse();
"""
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


@pytest.mark.parametrize("is_stopped", [False, True])
def test_failure_of_a_job_that_python_cannot_read_is_kept_while_its_run_is_held(  # noqa: PLR0917  # fixtures
    is_stopped: bool,
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    upsert_job_definition(runledger_pool, JobDefinitionSpec("jobs.one", max_attempts=3))
    run = WorkflowDagBuilder("flows.one", {}).job("a", "jobs.one", {}).build()
    enqueue_workflow_run(runledger_pool, run)
    look("UPDATE runledger.job_queue SET payload = repeat('9', 5000)::jsonb RETURNING 1")
    holder = runledger_database.connect()
    holder.execute("SELECT FROM runledger.workflow_runs FOR UPDATE")

    worker = start_worker({"jobs.one": lambda *_: None}, wakeups=False, lease_ttl_seconds=2)
    eventually(lambda: look(LEASED) == 1)
    if is_stopped:
        worker.stop.request("while the run is held")
    # Longer than the lease: that is renewed, as any other.
    first_end = look("SELECT lease_expires_at FROM runledger.job_queue")
    eventually(lambda: look("SELECT clock_timestamp() > %s", first_end))
    assert worker.thread.is_alive()
    holder.rollback()

    eventually(lambda: look("SELECT status = 'DEAD_LETTERED' FROM runledger.job_queue"))
    assert look("SELECT error_code FROM runledger.job_attempts") == "job.undecodable_row"
    assert look("SELECT claim_number FROM runledger.job_queue") == 1
    worker.end()


@pytest.fixture
def stop_at_the_answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have the next claims meet a stop: after their commit, before the worker sees them."""

    def install(stop: Callable[[], object]) -> None:
        def run_and_stop(*arguments: Any, **named: Any) -> Any:
            result = run_worker_round(*arguments, **named)
            if result.claimed:
                stop()
            return result

        monkeypatch.setattr(_link, "run_worker_round", run_and_stop)

    return install


def test_claim_that_meets_a_stop_goes_back_when_its_row_is_let_go(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    stop_at_the_answer: Any,
) -> None:
    ran: list[object] = []
    holder = runledger_pool.getconn()
    worker = start_worker({"jobs.one": lambda _context, payload: ran.append(payload)})

    def hold_and_stop() -> None:
        holder.execute("SELECT FROM runledger.job_queue WHERE payload = '2' FOR UPDATE")
        worker.stop.request("between a claim and its answer")

    stop_at_the_answer(hold_and_stop)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", number) for number in (1, 2, 3)])

    eventually(lambda: worker.stop.is_requested and look(GIVEN_BACK) == 2)
    assert look(LEASED) == 1
    assert worker.thread.is_alive()
    runledger_pool.putconn(holder)

    assert worker.end() is LoopExit.SHUTDOWN
    assert look(GIVEN_BACK) == 3
    assert ran == []


def test_claim_that_meets_a_stop_and_cannot_go_back_is_tried_again_later(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    stop_at_the_answer: Any,
) -> None:
    with runledger_pool.connection() as connection:
        connection.execute(REFUSE_TO_GIVE_BACK)
    worker = start_worker({"jobs.one": lambda *_: None})
    stop_at_the_answer(lambda: worker.stop.request("between a claim and its answer"))
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", is_kept) for is_kept in (True, False)])
    eventually(lambda: worker.stop.is_requested)

    assert worker.end() is LoopExit.SHUTDOWN

    assert look(GIVEN_BACK) == 1
    refused = "SELECT (status, attempt) FROM runledger.job_queue WHERE payload = 'true'"
    assert look(refused) == ("PENDING", "1")
    assert look("SELECT error_code FROM runledger.job_attempts") == "job.worker_shutdown"


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
