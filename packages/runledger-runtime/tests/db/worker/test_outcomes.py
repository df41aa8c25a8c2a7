"""Whatever a handler does becomes the outcome of its attempt."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import (
    CancelReason,
    JobCancelled,
    JobCompletion,
    JobEnqueue,
    JobFailure,
    JobStatus,
    Scope,
)
from runledger_postgres import enqueue_job, get_job
from runledger_postgres.jobs import JobRecord, list_job_attempts, list_job_logs

pytestmark = pytest.mark.core

Eventually = Callable[[Callable[[], bool]], None]


class OwnExit(BaseException):
    """An application's exception that is not an Exception."""


def run_one(
    pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, handler: Any
) -> JobRecord:
    """Run one job with this handler and return it when its first attempt has ended."""
    start_worker({"jobs.one": handler})
    job_id = enqueue_job(pool, JobEnqueue("jobs.one", {"n": 1})).id

    def record() -> JobRecord:
        job = get_job(pool, job_id, scope=Scope.ADMIN)
        assert job is not None
        return job

    eventually(lambda: bool(list_job_attempts(pool, job_id, scope=Scope.ADMIN)))
    return record()


def test_none_is_success_without_output(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    job = run_one(runledger_pool, start_worker, eventually, lambda _context, _payload: None)

    assert (job.status, job.stage, job.worker_id) == (JobStatus.SUCCEEDED, "completed", None)


def test_completion_stores_output_progress_and_checkpoint(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    completion = JobCompletion.with_output({"a": 1}).with_progress(2, 3).with_checkpoint([None])

    job = run_one(runledger_pool, start_worker, eventually, lambda *_: completion)

    assert (job.output, job.progress_done, job.progress_total) == ({"a": 1}, 2, 3)
    assert job.checkpoint == [None]


def test_terminal_failure_is_a_dead_letter_whether_raised_or_returned(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(_context: Any, _payload: Any) -> JobFailure:
        return JobFailure.terminal("mail.no_recipient", "no recipient")

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (JobStatus.DEAD_LETTERED, "mail.no_recipient")


def test_retryable_failure_runs_again_until_it_succeeds(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        if context.attempt < context.max_attempts:
            raise JobFailure.retryable("test.again", "not yet")

    job = run_one(runledger_pool, start_worker, eventually, handler)

    status = "SELECT status::text FROM runledger.job_queue"
    eventually(lambda: look(status) == "SUCCEEDED")
    outcomes = [
        (attempt.attempt, attempt.outcome.value)
        for attempt in list_job_attempts(runledger_pool, job.id, scope=Scope.ADMIN)
    ]
    assert sorted(outcomes) == [(1, "RETRYABLE"), (2, "RETRYABLE"), (3, "SUCCEEDED")]


def test_exhausted_attempts_make_a_dead_letter(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise JobFailure.retryable("test.again", "never")

    run_one(runledger_pool, start_worker, eventually, handler)

    eventually(lambda: look("SELECT status::text FROM runledger.job_queue") == "DEAD_LETTERED")
    assert look("SELECT attempt FROM runledger.job_dead_letters") == 3


def test_unexpected_exception_is_retryable_and_leaves_a_traceback_in_the_log(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise ValueError("boom")

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (JobStatus.PENDING, "job.handler_exception")
    assert job.last_error_message == "ValueError: boom"
    (line,) = list_job_logs(runledger_pool, job.id, scope=Scope.ADMIN, limit=10)
    assert isinstance(line.payload, dict)
    assert "in handler\nValueError: boom" in str(line.payload["traceback"])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("m"),
        RecursionError("r"),
        SystemExit(0),
        SystemExit(1),
        GeneratorExit(),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        OwnExit("own"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_leave_the_process_in_doubt_are_panics(
    error: BaseException,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise error

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (JobStatus.DEAD_LETTERED, "job.handler_panic")
    assert job.status_reason == "PANICKED"


@pytest.mark.parametrize(
    "result",
    [socket.socket, (n for n in ()), lambda: None, {"a": 1}, True],
    ids=lambda value: type(value).__name__,
)
def test_other_results_are_terminal_and_the_worker_goes_on(
    result: object, runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    job = run_one(runledger_pool, start_worker, eventually, lambda *_: result)

    assert job.last_error_code == "job.invalid_handler_result"
    assert job.status is JobStatus.DEAD_LETTERED


def test_output_that_is_no_json_is_terminal(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    job = run_one(
        runledger_pool,
        start_worker,
        eventually,
        lambda *_: JobCompletion.with_output({"nested": [object()]}),  # type: ignore[arg-type]  # the fault
    )

    assert (job.status, job.last_error_code) == (JobStatus.DEAD_LETTERED, "job.invalid_output")
    assert "output.nested[0]" in (job.last_error_message or "")


def test_progress_beyond_its_stored_total_ends_the_job_without_a_retry(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(context: Any, _payload: Any) -> JobCompletion:
        context.progress(done=1, total=2)
        return JobCompletion(progress_done=5)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert job.last_error_code == "job.invalid_completion_progress"
    assert job.status is JobStatus.DEAD_LETTERED


def test_fifty_megabytes_of_error_text_are_cut(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise ValueError("é" * 30_000_000)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert job.last_error_message is not None
    assert job.last_error_message.startswith("ValueError: éé")
    assert len(job.last_error_message.encode()) <= 8_192


def test_a_thousand_frames_and_a_long_chain_are_stored_by_head_and_tail(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def deep(level: int) -> None:
        if level == 0:
            raise ValueError("bottom")
        deep(level - 1)

    def handler(_context: Any, _payload: Any) -> None:
        error: BaseException | None = None
        for number in range(500):
            link = ValueError(str(number))
            link.__cause__ = error
            error = link
        try:
            deep(800)
        except ValueError as bottom:
            raise bottom from error

    job = run_one(runledger_pool, start_worker, eventually, handler)

    (line,) = list_job_logs(runledger_pool, job.id, scope=Scope.ADMIN, limit=10)
    assert isinstance(line.payload, dict)
    assert "frames ..." in str(line.payload["traceback"])
    assert len(str(line.payload["traceback"])) < 40_000


def test_an_exception_that_cannot_be_printed_or_rebuilt_is_stored_by_its_type(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    class AwkwardError(Exception):
        def __init__(self, one: int, two: int, three: int) -> None:
            self.sum = one + two + three

        def __str__(self) -> str:
            raise RuntimeError("no text")

    def handler(_context: Any, _payload: Any) -> None:
        raise AwkwardError(1, 2, 3)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.last_error_message or "").startswith("AwkwardError: ")


def test_failed_attempts_are_logged_by_code_and_never_by_message(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "runledger_runtime")

    def handler(_context: Any, _payload: Any) -> None:
        raise JobFailure.terminal("mail.no_recipient", "secret@example.com")

    job = run_one(runledger_pool, start_worker, eventually, handler)

    eventually(lambda: "attempt failed" in caplog.messages)
    (record,) = [record for record in caplog.records if record.message == "attempt failed"]
    assert (record.levelname, record.__dict__["failure_code"]) == ("WARNING", "mail.no_recipient")
    assert record.__dict__["job_id"] == str(job.id)
    assert "secret@example.com" not in str(record.__dict__)


GONE = JobFailure.terminal("test.gone", "gone")
AGAIN = JobFailure.retryable("test.later", "later")


@pytest.mark.parametrize(
    ("members", "end"),
    [
        ([GONE], ("DEAD_LETTERED", "test.gone")),
        ([AGAIN], ("PENDING", "test.later")),
        ([BaseExceptionGroup("inner", [GONE])], ("DEAD_LETTERED", "test.gone")),
        ([GONE, JobCancelled(CancelReason.SHUTDOWN)], ("DEAD_LETTERED", "test.gone")),
        ([asyncio.CancelledError(), AGAIN], ("PENDING", "test.later")),
        # What says that another attempt would not help goes before the rest.
        ([AGAIN, GONE], ("DEAD_LETTERED", "test.gone")),
        ([ValueError("x"), GONE], ("DEAD_LETTERED", "test.gone")),
        ([AGAIN, MemoryError("m")], ("DEAD_LETTERED", "job.handler_panic")),
        # The handler's own code says more than an exception that leads to as much.
        ([ValueError("x"), AGAIN], ("PENDING", "test.later")),
        ([ValueError("x"), KeyError("y")], ("PENDING", "job.handler_exception")),
    ],
)
def test_group_counts_as_the_gravest_of_its_members(
    members: list[BaseException],
    end: tuple[str, str],
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise BaseExceptionGroup("members", members)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == end


def test_failure_raised_in_a_task_group_keeps_its_meaning(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def fail() -> None:
        raise GONE

    async def handler(_context: Any, _payload: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(fail())

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (JobStatus.DEAD_LETTERED, "test.gone")
    assert job.last_error_message == "gone"
    # As of one that is raised alone.
    assert list_job_logs(runledger_pool, job.id, scope=Scope.ADMIN, limit=10) == []


def test_group_that_holds_more_than_the_failure_leaves_a_traceback_in_the_log(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise ExceptionGroup("both", [ValueError("beside"), GONE])

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert job.last_error_code == "test.gone"
    lines = list_job_logs(runledger_pool, job.id, scope=Scope.ADMIN, limit=10)
    assert ["ValueError: beside" in str(line.payload) for line in lines] == [True]


def test_coroutine_of_a_function_that_does_not_show_it_is_terminal_and_says_what_to_write(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually
) -> None:
    async def work(_context: Any, _payload: Any) -> None: ...

    def handler(context: Any, payload: Any) -> Any:
        return work(context, payload)

    job = run_one(runledger_pool, start_worker, eventually, handler)

    assert (job.status, job.last_error_code) == (
        JobStatus.DEAD_LETTERED,
        "job.invalid_handler_result",
    )
    assert job.last_error_message == (
        "the handler returned a coroutine, which was not awaited: write an async def, or a class"
        " with an async __call__"
    )
