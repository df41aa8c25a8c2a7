"""A slot always comes back, however its handler ended, and an attempt that never began is known."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec, JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.definitions import upsert_job_definition
from runledger_postgres.jobs import list_job_attempts, list_job_events
from runledger_runtime.health import LoopState
from runledger_runtime.worker._context import WorkerJobContext

Eventually = Callable[[Callable[[], bool]], None]


def ends_near(timeout: float, chance: random.Random) -> float:
    """Return how long a handler takes that ends a little before or after its timeout."""
    return timeout + chance.uniform(-0.3, 0.6)


def check_all_slots(
    pool: ConnectionPool[Any], eventually: Eventually, look: Any, *, slots: int
) -> None:
    """Have as many jobs as slots meet: each of them waits until all run at once."""
    enqueue_jobs(pool, [JobEnqueue("jobs.meet", {}, priority=10)] * slots)
    met = (
        "SELECT count(*) FROM runledger.job_queue"
        " WHERE job_type = 'jobs.meet' AND status = 'SUCCEEDED'"
    )
    eventually(lambda: look(met) == slots)


def test_thread_handlers_that_end_around_their_timeout_leave_every_slot_usable(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    scaled: Callable[..., int],
) -> None:
    jobs, slots = 1_000, scaled(ci=250, full=100)
    chance = random.Random(1)
    all_of_them = threading.Barrier(slots)

    def meet(_context: Any, _payload: Any) -> None:
        all_of_them.wait(60)

    def late(_context: Any, _payload: Any) -> None:
        time.sleep(ends_near(1, chance))

    worker = start_worker(
        {"jobs.late": late, "jobs.meet": meet},
        max_global_concurrency=slots,
        max_stuck_handlers=jobs,
        handler_grace_seconds=0,
        lease_ttl_seconds=60,
    )
    enqueue_jobs(
        runledger_pool,
        [JobEnqueue("jobs.late", {}, timeout_seconds=1, max_attempts=1)] * jobs,
    )

    ended = "SELECT count(*) FROM runledger.job_attempts"
    eventually(lambda: look(ended) == jobs)
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 0)

    check_all_slots(runledger_pool, eventually, look, slots=slots)
    outcomes = "SELECT array_agg(DISTINCT outcome::text) FROM runledger.job_attempts"
    assert sorted(look(outcomes)) == ["SUCCEEDED", "TIMEOUT"]


def test_coroutines_that_end_around_their_timeout_leave_every_slot_usable(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
    scaled: Callable[..., int],
) -> None:
    jobs, slots = 1_000, scaled(ci=250, full=100)
    chance = random.Random(2)
    arrived: list[int] = []
    door: list[asyncio.Event] = []

    async def late(_context: Any, _payload: Any) -> None:
        ends_at = time.monotonic() + ends_near(1, chance)
        is_stubborn = chance.random() < 0.3
        while (left := ends_at - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if not is_stubborn:
                    raise

    async def meet(_context: Any, _payload: Any) -> None:
        if not door:
            door.append(asyncio.Event())
        arrived.append(1)
        if len(arrived) == slots:
            door[0].set()
        await door[0].wait()

    worker = start_worker(
        {"jobs.late": late, "jobs.meet": meet},
        max_global_concurrency=slots,
        max_stuck_handlers=jobs,
        handler_grace_seconds=0,
        lease_ttl_seconds=60,
    )
    enqueue_jobs(
        runledger_pool,
        [JobEnqueue("jobs.late", {}, timeout_seconds=1, max_attempts=1)] * jobs,
    )

    eventually(lambda: look("SELECT count(*) FROM runledger.job_attempts") == jobs)
    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 0)

    check_all_slots(runledger_pool, eventually, look, slots=slots)


@pytest.mark.core
@pytest.mark.parametrize("is_async", [False, True])
def test_exit_while_the_context_is_built_is_recorded_and_the_worker_goes_on(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
) -> None:
    entered: list[int] = []
    build = WorkerJobContext.__init__
    exits = [SystemExit(1)]

    def fail_once(self: WorkerJobContext, execution: Any) -> None:
        if exits:
            raise exits.pop()
        build(self, execution)

    def handler(_context: Any, payload: Any) -> None:
        entered.append(payload)

    async def handler_async(context: Any, payload: Any) -> None:
        handler(context, payload)

    monkeypatch.setattr(WorkerJobContext, "__init__", fail_once)
    start_worker({"jobs.one": handler_async if is_async else handler}, max_global_concurrency=1)
    first, second = (
        job.id for job in enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", n) for n in (1, 2)])
    )

    eventually(lambda: _status(runledger_pool, second) is JobStatus.SUCCEEDED)
    assert entered == [2]
    (attempt,) = list_job_attempts(runledger_pool, first, scope=Scope.ADMIN)
    assert (attempt.outcome, attempt.error_code) == ("PANICKED", "job.handler_panic")


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *, most: int) -> list[float]:
    """Have so many threads of handlers fail to start; return when they did."""
    start = threading.Thread.start
    refused: list[float] = []

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("runledger-handler-") and len(refused) < most:
            refused.append(time.monotonic())
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


def test_claim_without_a_thread_is_given_back_and_uses_up_no_attempt(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuse_threads(monkeypatch, most=1)
    start_worker({"jobs.one": lambda *_: None}, max_global_concurrency=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.one", 1, max_attempts=1)).id

    eventually(lambda: _status(runledger_pool, job_id) is JobStatus.SUCCEEDED)

    (attempt,) = list_job_attempts(runledger_pool, job_id, scope=Scope.ADMIN)
    assert (attempt.attempt, attempt.outcome) == (1, "SUCCEEDED")
    released = [
        event.payload
        for event in list_job_events(runledger_pool, job_id, scope=Scope.ADMIN)
        if event.event_type == "REQUEUED"
    ]
    assert [payload["reason"] for payload in released if isinstance(payload, dict)] == [
        "NOT_STARTED"
    ]
    assert caplog.messages == [
        "a handler could not be started; its job is given back, to be tried again"
    ]


def test_worker_without_threads_claims_no_more_for_a_moment(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = refuse_threads(monkeypatch, most=2)
    enqueued = [JobEnqueue("jobs.one", number) for number in range(3)]
    upsert_job_definition(runledger_pool, JobDefinitionSpec("jobs.one"))
    jobs = enqueue_jobs(runledger_pool, enqueued)

    # One that only polls would leave what is due for a minute.
    start_worker({"jobs.one": lambda *_: None}, max_global_concurrency=1, poll_interval_ms=60_000)

    eventually(lambda: {_status(runledger_pool, job.id) for job in jobs} == {JobStatus.SUCCEEDED})
    first, second = refused
    assert second - first >= 0.9


def test_attempt_that_cannot_be_given_back_is_on_record(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_threads(monkeypatch, most=1)
    with runledger_pool.connection() as connection:
        connection.execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
            " BEGIN RAISE EXCEPTION 'no'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON runledger.job_queue FOR EACH ROW"
            " WHEN (new.status_reason = 'NOT_STARTED') EXECUTE FUNCTION public.refuse()"
        )
    start_worker({"jobs.one": lambda *_: None}, max_global_concurrency=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.one", 1)).id

    eventually(lambda: bool(list_job_attempts(runledger_pool, job_id, scope=Scope.ADMIN)))

    (attempt,) = list_job_attempts(runledger_pool, job_id, scope=Scope.ADMIN)
    assert (attempt.outcome, attempt.error_code) == ("RETRYABLE", "job.handler_not_started")


@pytest.mark.parametrize("is_async", [False, True])
def test_context_variables_of_one_job_do_not_reach_the_next(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    is_async: bool,
) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    def handler(_context: Any, payload: Any) -> None:
        seen.append(variable.get())
        variable.set(payload)

    async def handler_async(context: Any, payload: Any) -> None:
        handler(context, payload)
        await asyncio.sleep(0)
        assert variable.get() == payload

    start_worker({"jobs.one": handler_async if is_async else handler}, max_global_concurrency=1)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", number) for number in (1, 2, 3)])

    eventually(lambda: len(seen) == 3)
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_handler_that_is_told_and_then_raises_something_else_gives_its_slot_back(
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    is_async: bool,
) -> None:
    ran = threading.Event()

    def handler(context: Any, _payload: Any) -> None:
        try:
            context.wait(60)
            context.raise_if_cancelled()
        finally:
            raise LookupError("while cleaning up")

    async def handler_async(_context: Any, _payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while cleaning up")

    start_worker(
        {"jobs.one": handler_async if is_async else handler, "jobs.next": lambda *_: ran.set()},
        max_global_concurrency=1,
    )
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.one", {}, timeout_seconds=1)).id
    enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}))

    assert ran.wait(30)
    (attempt,) = list_job_attempts(runledger_pool, job_id, scope=Scope.ADMIN)
    assert (attempt.outcome, attempt.error_code) == ("TIMEOUT", "job.timeout_exceeded")


def _status(pool: ConnectionPool[Any], job_id: Any) -> JobStatus | None:
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    return job.status if job else None
