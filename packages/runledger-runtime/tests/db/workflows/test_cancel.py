"""A cancelled run: its running handlers are told at once, other runs go on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from runledger_core import CancelReason, JobCompletion, JobContext, Scope
from runledger_postgres.lifecycle import cancel_workflow_run

from .conftest import ASLEEP_MS, Runs

# Beats of its own come after 200 seconds: what a handler is told sooner, a notification told.
LONG_LEASE_SECONDS = 600
IN_DATABASE = """
SELECT q.status::text || ' ' || coalesce(q.status_reason, '') FROM runledger.job_queue q
WHERE q.id = %s
"""
# Of a worker that sleeps: its listener has heard its echo.
MARKS = """
SELECT count(*)::int4 FROM pg_locks AS k
WHERE k.locktype = 'advisory' AND k.mode = 'ShareLock' AND k.database = (
    SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
)
"""
OUTCOMES = """
SELECT array_agg(a.outcome::text ORDER BY a.claim_number) FROM runledger.job_attempts a
WHERE a.job_id = %s
"""


class Endless:
    """A handler that goes on until it is told to stop."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.told = threading.Semaphore(0)
        self.reasons: list[CancelReason | None] = []

    def __call__(self, context: JobContext, _payload: Any) -> None:
        self.started.release()
        if context.wait(30):
            self.reasons.append(context.cancel_reason)
            self.told.release()


@pytest.mark.core
def test_running_steps_of_a_cancelled_run_are_told_and_the_other_run_goes_on(runs: Runs) -> None:
    endless, let_go = Endless(), threading.Event()
    ran: list[Any] = []

    def patient(context: JobContext, _payload: Any) -> JobCompletion:
        endless.started.release()
        assert let_go.wait(30)
        return JobCompletion.with_output(str(context.cancel_reason))

    def note(context: JobContext, _payload: Any) -> None:
        ran.append((context.workflow_run_id, context.step_key))

    runs.catalog.job("jobs.endless", endless).job("jobs.patient", patient).job("jobs.note", note)
    runs.start(lease_ttl_seconds=LONG_LEASE_SECONDS, poll_interval_ms=ASLEEP_MS)
    # A listener that comes up while jobs run has them beaten for, and so told, once.
    runs.wait_until(lambda: runs.value(MARKS) == 3)
    doomed_dag = runs.dag().job("one", "jobs.endless", {}).job("two", "jobs.endless", {})
    doomed_dag.job("behind", "jobs.note", {}, after_success=["one"])
    doomed_dag.job("cleanup", "jobs.note", {}, after_terminal=["one", "two"])
    doomed = runs.enqueue(doomed_dag)
    other_dag = runs.dag().job("patient", "jobs.patient", {})
    other_dag.job("behind", "jobs.note", {}, after_success=["patient"]).result_step("patient")
    other = runs.enqueue(other_dag)
    for _ in range(3):
        assert endless.started.acquire(timeout=30)

    cancel_workflow_run(runs.pool, doomed, scope=Scope.GLOBAL, reason="not needed")

    for _ in range(2):
        assert endless.told.acquire(timeout=30)
    assert endless.reasons == [CancelReason.CANCELED] * 2
    assert runs.status(doomed) == "CANCELED"
    assert set(runs.steps(doomed).values()) == {"CANCELED"}
    assert runs.value(IN_DATABASE, runs.job_of(doomed, "one")) == "CANCELED not needed"
    assert runs.status(other) == "RUNNING"
    let_go.set()
    assert runs.ended(other) == "SUCCEEDED"
    assert ran == [(other, "behind")]
    assert runs.value("SELECT result FROM runledger.workflow_runs WHERE id = %s", other) == "None"


@pytest.mark.core
def test_coroutine_of_a_cancelled_run_is_really_cancelled(runs: Runs) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless(_context: JobContext, _payload: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    runs.catalog.job("jobs.endless", endless)
    runs.start(lease_ttl_seconds=LONG_LEASE_SECONDS)
    run_id = runs.enqueue(runs.dag().job("a", "jobs.endless", {}))
    assert started.wait(30)

    cancel_workflow_run(runs.pool, run_id, scope=Scope.GLOBAL)

    assert cancelled.wait(30)
    assert runs.status(run_id) == "CANCELED"


def test_what_a_step_of_a_cancelled_run_returns_counts_for_nothing(runs: Runs) -> None:
    started, let_go = threading.Event(), threading.Event()
    ended = threading.Event()

    def deaf(_context: JobContext, _payload: Any) -> JobCompletion:
        started.set()
        assert let_go.wait(30)
        return JobCompletion.with_output("late")

    def last(_context: JobContext, _payload: Any) -> None:
        ended.set()

    runs.catalog.job("jobs.deaf", deaf).job("jobs.last", last)
    # One slot: the job behind it starts once the worker has done with the late result.
    runs.start(lease_ttl_seconds=LONG_LEASE_SECONDS, max_global_concurrency=1)
    dag = runs.dag().job("deaf", "jobs.deaf", {})
    run_id = runs.enqueue(dag.job("behind", "jobs.deaf", {}, after_success=["deaf"]))
    assert started.wait(30)
    job_id = runs.job_of(run_id, "deaf")

    cancel_workflow_run(runs.pool, run_id, scope=Scope.GLOBAL)
    other = runs.enqueue(runs.dag().job("last", "jobs.last", {}))
    let_go.set()

    assert ended.wait(30)
    assert runs.ended(other) == "SUCCEEDED"
    assert runs.status(run_id) == "CANCELED"
    assert runs.steps(run_id) == {"deaf": "CANCELED", "behind": "CANCELED"}
    assert runs.value("SELECT output FROM runledger.job_queue WHERE id = %s", job_id) is None
    assert runs.value(OUTCOMES, job_id) == ["CANCELED"]


def test_step_that_asks_for_outputs_of_its_cancelled_run_is_told_to_leave(runs: Runs) -> None:
    started, left = threading.Event(), threading.Event()
    seen: list[Any] = []

    def curious(context: JobContext, _payload: Any) -> None:
        started.set()
        context.wait(30)
        try:
            _ = context.prerequisite_outputs
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            left.set()

    runs.catalog.job("jobs.curious", curious)
    runs.start(lease_ttl_seconds=LONG_LEASE_SECONDS)
    run_id = runs.enqueue(runs.dag().job("a", "jobs.curious", {}))
    assert started.wait(30)

    cancel_workflow_run(runs.pool, run_id, scope=Scope.GLOBAL)

    assert left.wait(30)
    assert seen == ["JobCancelled"]


def test_run_is_cancelled_from_within_one_of_its_steps(runs: Runs) -> None:
    told = threading.Event()

    def give_up(context: JobContext, _payload: Any) -> None:
        assert context.workflow_run_id is not None
        with context.connection() as connection:
            cancel_workflow_run(
                connection, context.workflow_run_id, scope=Scope.GLOBAL, reason="no use"
            )
        if context.wait(30):
            told.set()

    runs.catalog.job("jobs.give-up", give_up)
    runs.start(lease_ttl_seconds=LONG_LEASE_SECONDS)
    dag = runs.dag().job("a", "jobs.give-up", {})
    run_id = runs.enqueue(dag.job("b", "jobs.give-up", {}, after_terminal=["a"]))

    assert told.wait(30)
    assert runs.ended(run_id) == "CANCELED"
    assert runs.steps(run_id) == {"a": "CANCELED", "b": "CANCELED"}
