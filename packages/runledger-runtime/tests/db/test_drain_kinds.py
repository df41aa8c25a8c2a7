"""A drain runs handlers of every kind, with middleware, typed payloads and hooks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobFailure, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job
from runledger_runtime import JobCatalog, JobMiddleware
from runledger_runtime.testing import drain


@dataclass
class Order:
    number: int


class Noting(JobMiddleware):
    def __init__(self) -> None:
        self.seen: list[object] = []

    @contextmanager
    def around(self, context: Any, payload: Any) -> Generator[None]:
        self.seen.append(payload)
        yield


def enqueue(pool: ConnectionPool[Any], catalog: JobCatalog, payload: Any, **values: Any) -> Any:
    catalog.sync_definitions(pool)
    return enqueue_job(pool, JobEnqueue("orders", payload, **values)).id


def job_of(pool: ConnectionPool[Any], job_id: Any) -> Any:
    return get_job(pool, job_id, scope=Scope.ADMIN)


def test_coroutine_is_run_with_its_payload_and_middleware(
    runledger_pool: ConnectionPool[Any],
) -> None:
    catalog, noting = JobCatalog(), Noting()
    catalog.middleware(noting)

    @catalog.job("orders")
    async def handle(context: Any, order: Order) -> JobCompletion:
        await asyncio.to_thread(context.progress, 1, 1)
        return JobCompletion.with_output(order.number)

    job_id = enqueue(runledger_pool, catalog, {"number": 7})

    report = drain(runledger_pool, catalog)

    assert report.succeeded == 1
    assert job_of(runledger_pool, job_id).output == 7
    assert noting.seen == [{"number": 7}]
    assert "runledger-event-loop" not in [thread.name for thread in threading.enumerate()]


def test_typed_function_is_run_in_the_calling_thread(runledger_pool: ConnectionPool[Any]) -> None:
    catalog, threads = JobCatalog(), list[threading.Thread]()

    @catalog.job("orders")
    def handle(context: Any, order: Order) -> JobCompletion:
        threads.append(threading.current_thread())
        return JobCompletion.with_output(order.number)

    job_id = enqueue(runledger_pool, catalog, {"number": 7})

    drain(runledger_pool, catalog)

    assert threads == [threading.current_thread()]
    assert job_of(runledger_pool, job_id).output == 7


@pytest.mark.core
def test_payload_that_does_not_fit_is_a_dead_letter_and_the_hook_gets_it_as_it_is(
    runledger_pool: ConnectionPool[Any],
) -> None:
    class Handler:
        job_type = "orders"

        async def execute(self, context: Any, payload: Order) -> None:
            raise AssertionError

        async def on_dead_letter(self, context: Any, payload: Any, info: Any) -> None:
            await asyncio.sleep(0)
            told.append((payload, info.failure.code))

    told: list[object] = []
    catalog = JobCatalog().job("orders", Handler())
    job_id = enqueue(runledger_pool, catalog, {"number": "secret"})

    report = drain(runledger_pool, catalog)

    job = job_of(runledger_pool, job_id)
    assert report.dead_lettered == 1
    assert (job.status, job.last_error_code) == (JobStatus.DEAD_LETTERED, "job.invalid_payload")
    assert "secret" not in job.last_error_message
    assert told == [({"number": "secret"}, "job.invalid_payload")]


def test_coroutines_of_one_drain_share_their_loop_and_no_context_variables(
    runledger_pool: ConnectionPool[Any],
) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(5)
    catalog, loops, seen = JobCatalog(), set[Any](), list[int]()

    @catalog.job("orders")
    async def handle(context: Any, payload: Any) -> None:
        loops.add(asyncio.get_running_loop())
        seen.append(variable.get())
        variable.set(payload)

    for number in (1, 2):
        enqueue(runledger_pool, catalog, number)

    drain(runledger_pool, catalog)

    assert len(loops) == 1
    assert seen == [5, 5]


def test_coroutine_is_run_by_a_drain_inside_of_a_running_loop(
    runledger_pool: ConnectionPool[Any],
) -> None:
    catalog = JobCatalog()

    @catalog.job("orders")
    async def handle(context: Any, payload: Any) -> None:
        await asyncio.sleep(0)
        raise JobFailure.terminal("test.no", "no")

    enqueue(runledger_pool, catalog, 1)

    async def test() -> int:
        return drain(runledger_pool, catalog).dead_lettered

    assert asyncio.run(test()) == 1
