"""A handler that forks: its child ends with it, and does nothing that is the worker's."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job

from ..._forks import FORKS, end_of

pytestmark = FORKS

Eventually = Callable[[Callable[[], bool]], None]
EXIT_CODES = pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda: None, 0),
        (sys.exit, 0),
        (lambda: sys.exit(7), 7),
        (lambda: sys.exit("enough"), 1),
        (lambda: 1 / 0, 1),
    ],
    ids=["return", "exit", "exit with a code", "exit with a text", "exception"],
)


def output_of(
    pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, handler: Any
) -> Any:
    """Run one job with this handler and return its output."""
    start_worker({"jobs.forks": handler})
    job_id = enqueue_job(pool, JobEnqueue("jobs.forks", {})).id

    def job() -> Any:
        return get_job(pool, job_id, scope=Scope.ADMIN)

    eventually(lambda: job().status is JobStatus.SUCCEEDED)
    return job().output


@EXIT_CODES
def test_child_of_a_thread_handler_ends_as_a_program_would(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    leave: Callable[[], None],
    code: int,
) -> None:
    def handler(_context: Any, _payload: Any) -> JobCompletion | None:
        child = os.fork()
        if child == 0:
            return leave()
        return JobCompletion.with_output(end_of(child))

    assert output_of(runledger_pool, start_worker, eventually, handler) == code


@EXIT_CODES
def test_child_of_a_coroutine_ends_as_a_program_would(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    leave: Callable[[], None],
    code: int,
) -> None:
    async def handler(_context: Any, _payload: Any) -> JobCompletion | None:
        child = os.fork()
        if child == 0:
            return leave()
        return JobCompletion.with_output(end_of(child))

    assert output_of(runledger_pool, start_worker, eventually, handler) == code


@EXIT_CODES
def test_child_of_a_call_in_a_thread_ends_as_a_program_would(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    leave: Callable[[], None],
    code: int,
) -> None:
    def fork() -> int | str | None:
        child = os.fork()
        return leave() if child == 0 else end_of(child)

    async def handler(_context: Any, _payload: Any) -> JobCompletion:
        return JobCompletion.with_output(await asyncio.to_thread(fork))

    assert output_of(runledger_pool, start_worker, eventually, handler) == code


def test_child_that_awaits_ends_instead_of_running_the_loop_of_its_parent(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def handler(_context: Any, _payload: Any) -> JobCompletion:
        child = os.fork()
        if child == 0:
            while True:  # noqa: ASYNC110  # the loop must come back to the child
                await asyncio.sleep(0)
        return JobCompletion.with_output(end_of(child))

    assert output_of(runledger_pool, start_worker, eventually, handler) == 1


def test_child_that_awaits_does_nothing_that_was_ready_beside_it(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ran_in = tmp_path / "ran-in"

    async def other(door: asyncio.Event) -> None:
        await door.wait()
        with ran_in.open("a") as file:  # a line
            file.write(f"{os.getpid()}\n")

    async def handler(_context: Any, _payload: Any) -> JobCompletion:
        loop, door = asyncio.get_running_loop(), asyncio.Event()
        beside = loop.create_task(other(door))
        # Both are ready in one round of the loop, the handler first.
        loop.call_later(0.05, door.set)
        await door.wait()
        child = os.fork()
        if child == 0:
            while True:  # noqa: ASYNC110  # the loop must come back to the child
                await asyncio.sleep(0)
        end = end_of(child)
        await beside
        return JobCompletion.with_output(end)

    assert output_of(runledger_pool, start_worker, eventually, handler) == 1
    assert ran_in.read_text() == f"{os.getpid()}\n"
    assert capfd.readouterr().err.endswith("the event loop is its parent's\n")


def test_child_says_what_it_raised_on_its_stderr(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def handler(_context: Any, _payload: Any) -> JobCompletion:
        child = os.fork()
        if child == 0:
            raise LookupError("in the child")
        return JobCompletion.with_output(end_of(child))

    assert output_of(runledger_pool, start_worker, eventually, handler) == 1

    said = capfd.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("LookupError: in the child\n")
