"""What a handler is told of the step that it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from runledger_core import (
    InternalError,
    JobCancelled,
    JobCompletion,
    JobContext,
    JobEnqueue,
    JobFailure,
    ValidationError,
)
from runledger_postgres import enqueue_job
from runledger_postgres.workflows import get_step_inputs, get_step_key
from runledger_runtime.testing import drain
from runledger_runtime.worker import _step_context as step_context

from .conftest import Runs


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs whose keys or inputs were read, in order."""
    seen: list[Any] = []

    def counted(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def reading(db: Any, job_id: Any) -> Any:
            seen.append(job_id)
            return read(db, job_id)

        return reading

    monkeypatch.setattr(step_context, "get_step_inputs", counted(get_step_inputs))
    monkeypatch.setattr(step_context, "get_step_key", counted(get_step_key))
    return seen


def give(value: Any) -> Callable[[Any, Any], JobCompletion]:
    return lambda _context, _payload: JobCompletion.with_output(value)


@pytest.mark.core
def test_step_sees_its_run_its_key_and_what_came_before(runs: Runs) -> None:
    seen: list[Any] = []

    def join(context: JobContext, _payload: Any) -> None:
        seen.append((context.workflow_run_id, context.step_key, context.prerequisite_outputs))

    runs.catalog.job("jobs.a", give({"n": 1})).job("jobs.b", give(None)).job("jobs.join", join)
    runs.sync()
    dag = runs.dag().job("a", "jobs.a", {}).job("b", "jobs.b", {})
    run_id = runs.enqueue(dag.job("join", "jobs.join", {}, after_success=["a", "b"]))

    drain(runs.pool, runs.catalog)

    assert seen == [(run_id, "join", {"a": {"n": 1}, "b": None})]


@pytest.mark.core
def test_direct_job_is_no_step_and_nothing_is_read_for_it(runs: Runs, reads: list[Any]) -> None:
    seen: list[Any] = []

    def direct(context: JobContext, _payload: Any) -> None:
        seen.append((context.workflow_run_id, context.step_key, context.prerequisite_outputs))

    runs.catalog.job("jobs.one", direct)
    runs.sync()
    enqueue_job(runs.pool, JobEnqueue("jobs.one", {}))

    drain(runs.pool, runs.catalog)

    assert seen == [(None, None, {})]
    assert reads == []


def test_one_query_is_made_when_first_asked_and_none_for_those_who_do_not_ask(
    runs: Runs, reads: list[Any]
) -> None:
    seen: list[Any] = []

    def curious(context: JobContext, _payload: Any) -> None:
        seen.append([context.prerequisite_outputs, context.step_key, context.prerequisite_outputs])

    runs.catalog.job("jobs.silent", give(1)).job("jobs.curious", curious)
    runs.sync()
    dag = runs.dag().job("a", "jobs.silent", {})
    run_id = runs.enqueue(dag.job("b", "jobs.curious", {}, after_success=["a"]))

    drain(runs.pool, runs.catalog)

    assert seen == [[{"a": 1}, "b", {"a": 1}]]
    assert reads == [runs.job_of(run_id, "b")]


@pytest.mark.core
def test_key_is_read_once_and_without_outputs_that_python_cannot_read(
    runs: Runs, reads: list[Any]
) -> None:
    seen: list[Any] = []

    def curious(context: JobContext, _payload: Any) -> None:
        # A number of more digits than Python reads.
        digits = "9" * 5_000
        with runs.pool.connection() as connection:
            connection.execute(
                "UPDATE runledger.job_queue SET output = %s WHERE id <> %s",
                [digits, context.job_id],
            )
        seen.append((context.step_key, context.step_key))
        with pytest.raises(InternalError) as caught:
            _ = context.prerequisite_outputs
        seen.append(caught.value.code)

    runs.catalog.job("jobs.a", give(1)).job("jobs.curious", curious)
    runs.sync()
    dag = runs.dag().job("a", "jobs.a", {})
    run_id = runs.enqueue(dag.job("b", "jobs.curious", {}, after_success=["a"]))

    report = drain(runs.pool, runs.catalog)

    assert report.succeeded == 2
    assert seen == [("b", "b"), "job.undecodable_row"]
    assert reads == [runs.job_of(run_id, "b")] * 2


def test_each_attempt_reads_anew(runs: Runs, reads: list[Any]) -> None:
    def again(context: JobContext, _payload: Any) -> None:
        assert context.step_key == "a"
        if context.attempt < 3:
            raise JobFailure.retryable("test.again", "not yet")

    runs.catalog.job("jobs.one", again)
    runs.sync()
    runs.enqueue(runs.dag().job("a", "jobs.one", {}))

    report = drain(runs.pool, runs.catalog, retry_at_once=True)

    assert (report.retry_scheduled, report.succeeded) == (2, 1)
    assert len(reads) == 3


@pytest.mark.core
def test_coroutine_asks_in_a_thread_and_is_refused_on_the_loop(runs: Runs) -> None:
    seen: list[Any] = []

    async def join(context: JobContext, _payload: Any) -> None:
        for name in ("step_key", "prerequisite_outputs"):
            with pytest.raises(ValidationError) as caught:
                getattr(context, name)
            seen.append(caught.value.code)
        seen.append(await asyncio.to_thread(lambda: context.prerequisite_outputs))
        # Known by now: nothing waits for the database.
        seen.append((context.step_key, context.prerequisite_outputs))

    async def first(_context: JobContext, _payload: Any) -> JobCompletion:
        await asyncio.sleep(0)
        return JobCompletion.with_output("x")

    runs.catalog.job("jobs.a", first).job("jobs.join", join)
    runs.sync()
    runs.enqueue(
        runs.dag().job("a", "jobs.a", {}).job("join", "jobs.join", {}, after_success=["a"])
    )

    drain(runs.pool, runs.catalog)

    blocked = "job.blocks_event_loop"
    assert seen == [blocked, blocked, {"a": "x"}, ("join", {"a": "x"})]


def test_coroutine_of_a_direct_job_may_ask_anywhere(runs: Runs) -> None:
    seen: list[Any] = []

    async def direct(context: JobContext, _payload: Any) -> None:
        await asyncio.sleep(0)
        seen.append((context.step_key, context.prerequisite_outputs))

    runs.catalog.job("jobs.one", direct)
    runs.sync()
    enqueue_job(runs.pool, JobEnqueue("jobs.one", {}))

    drain(runs.pool, runs.catalog)

    assert seen == [(None, {})]


def test_attempt_that_has_ended_is_refused_unless_it_has_read(runs: Runs) -> None:
    contexts: list[JobContext] = []

    def keep(context: JobContext, payload: Any) -> None:
        if payload["asks"]:
            assert context.step_key is not None
        contexts.append(context)

    runs.catalog.job("jobs.one", keep)
    runs.sync()
    dag = runs.dag().job("asked", "jobs.one", {"asks": True})
    runs.enqueue(dag.job("silent", "jobs.one", {"asks": False}, after_success=["asked"]))

    drain(runs.pool, runs.catalog)

    asked, silent = contexts
    assert asked.step_key == "asked"
    with pytest.raises(JobCancelled):
        _ = silent.step_key


def test_two_threads_of_a_handler_see_the_same(runs: Runs) -> None:
    seen: list[Any] = []

    def join(context: JobContext, _payload: Any) -> None:
        barrier = threading.Barrier(2)

        def ask() -> None:
            barrier.wait(10)
            seen.append(context.prerequisite_outputs)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

    runs.catalog.job("jobs.a", give(1)).job("jobs.join", join)
    runs.sync()
    runs.enqueue(
        runs.dag().job("a", "jobs.a", {}).job("join", "jobs.join", {}, after_success=["a"])
    )

    drain(runs.pool, runs.catalog)

    assert seen == [{"a": 1}, {"a": 1}]
