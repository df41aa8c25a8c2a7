"""The delay of a retry is what the policy of its type says, unless its code has one of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec, JobEnqueue, JobFailure, JobStatus, Scope
from runledger_postgres import claim_jobs, enqueue_job, get_job, upsert_job_definition
from runledger_postgres.jobs import list_job_attempts
from runledger_runtime.backoff import BackoffPolicy, FixedBackoff, ListBackoff
from runledger_runtime.config import JobsConfig
from runledger_runtime.health import LoopHealth
from runledger_runtime.reaper import run_reaper_loop
from runledger_runtime.registry import JobRegistry
from runledger_runtime.shutdown import StopToken
from runledger_runtime.testing import drain
from runledger_runtime.worker import run_worker_loop
from runledger_test_support import expire_lease, make_due

WAIT_SECONDS = 30.0


class Broken(BackoffPolicy):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def delay_ms(self, attempt: int) -> int:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def failing(policy: BackoffPolicy | None, *, code: str = "test.again") -> JobRegistry:
    """Return a registry whose only handler fails, with a policy."""

    def handler(_context: Any, _payload: Any) -> None:
        raise JobFailure.retryable(code, "not yet")

    registry = JobRegistry()
    registry.register_function("jobs.one", handler)
    if policy is not None:
        registry.register_backoff("jobs.one", policy)
    return registry


def enqueue(pool: ConnectionPool[Any]) -> Any:
    upsert_job_definition(pool, JobDefinitionSpec("jobs.one", max_attempts=4))
    return enqueue_job(pool, JobEnqueue("jobs.one", {})).id


def stored_delays(pool: ConnectionPool[Any], job_id: Any) -> list[int | None]:
    attempts = list_job_attempts(pool, job_id, scope=Scope.ADMIN)
    return [each.retry_delay_ms for each in sorted(attempts, key=lambda each: each.attempt)]


@contextmanager
def running(run: Any) -> Any:
    stop = StopToken()
    thread = threading.Thread(target=run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.request("end of test")
        thread.join(WAIT_SECONDS)


def run_once(pool: ConnectionPool[Any], registry: JobRegistry, job_id: Any) -> None:
    """Run a worker until the job has an attempt that ended."""
    config = JobsConfig("worker-1", poll_interval_ms=200, lease_ttl_seconds=10)
    with running(lambda stop: run_worker_loop(pool, registry, config, stop)):
        pause = threading.Event()
        while not stored_delays(pool, job_id):
            assert not pause.wait(0.01)


def test_worker_stores_the_delay_of_the_policy(runledger_pool: ConnectionPool[Any]) -> None:
    job_id = enqueue(runledger_pool)

    run_once(runledger_pool, failing(FixedBackoff(123_456)), job_id)

    job = get_job(runledger_pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    assert job.status is JobStatus.PENDING
    assert job.next_run_at - job.updated_at == timedelta(milliseconds=123_456)
    assert stored_delays(runledger_pool, job_id) == [123_456]


def test_delay_of_a_code_goes_before_the_policy(runledger_pool: ConnectionPool[Any]) -> None:
    job_id = enqueue(runledger_pool)
    registry = failing(FixedBackoff(123_456))
    registry.register_retry_delay_override("jobs.one", "test.again", 654_321)
    registry.register_retry_delay_override("jobs.one", "test.other", 1)
    registry.register_retry_delay_override("jobs.two", "test.again", 2)

    run_once(runledger_pool, registry, job_id)

    assert stored_delays(runledger_pool, job_id) == [654_321]


def test_policy_applies_where_the_code_has_no_delay_of_its_own(
    runledger_pool: ConnectionPool[Any],
) -> None:
    job_id = enqueue(runledger_pool)
    registry = failing(FixedBackoff(123_456))
    registry.register_retry_delay_override("jobs.one", "test.other", 1)
    registry.register_retry_delay_override("jobs.two", "test.again", 2)

    run_once(runledger_pool, registry, job_id)

    assert stored_delays(runledger_pool, job_id) == [123_456]


def test_terminal_failure_gets_no_delay_of_any_kind(runledger_pool: ConnectionPool[Any]) -> None:
    job_id = enqueue(runledger_pool)
    registry = JobRegistry()
    registry.register_function("jobs.one", lambda *_: JobFailure.terminal("test.never", "never"))
    registry.register_backoff("jobs.one", FixedBackoff(1))
    registry.register_retry_delay_override("jobs.one", "test.never", 1)

    run_once(runledger_pool, registry, job_id)

    job = get_job(runledger_pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    assert job.status is JobStatus.DEAD_LETTERED
    assert stored_delays(runledger_pool, job_id) == [None]


def test_each_attempt_has_its_own_delay_in_a_drain(runledger_pool: ConnectionPool[Any]) -> None:
    job_id = enqueue(runledger_pool)
    registry = failing(ListBackoff([1_000_000, 2_000_000]))

    for _ in range(4):
        assert len(drain(runledger_pool, registry).attempts) == 1
        with runledger_pool.connection() as connection:
            job = get_job(connection, job_id, scope=Scope.ADMIN)
            if job is not None and job.status is JobStatus.PENDING:
                make_due(connection, job_id)

    assert stored_delays(runledger_pool, job_id) == [1_000_000, 2_000_000, 2_000_000, None]


@pytest.mark.parametrize(
    "answer",
    [0, -5, 2**31, 1.5, True, None, ValueError("never shown"), SystemExit("never shown")],
    ids=repr,
)
def test_policy_that_fails_is_logged_and_the_default_is_used(
    answer: Any, runledger_pool: ConnectionPool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    job_id = enqueue(runledger_pool)

    drain(runledger_pool, failing(Broken(answer)))

    (delay,) = stored_delays(runledger_pool, job_id)
    assert delay is not None
    assert 9_000 <= delay <= 11_000
    assert "a backoff policy failed; the default delay is used" in caplog.text
    assert "never shown" not in caplog.text


def test_reaper_has_its_own_rule_whatever_the_policy(runledger_pool: ConnectionPool[Any]) -> None:
    job_id = enqueue(runledger_pool)
    (job,) = claim_jobs(runledger_pool, worker_id="gone", limit=1, lease_ttl_seconds=60)
    expire_lease(runledger_pool, job.id)
    config = JobsConfig("reaper", reaper_retry_delay_ms=30_000)
    registry = failing(FixedBackoff(1))

    with running(
        lambda stop: run_reaper_loop(
            runledger_pool, config, stop, registry=registry, health=LoopHealth("reaper")
        )
    ):
        pause = threading.Event()
        while not stored_delays(runledger_pool, job_id):
            assert not pause.wait(0.01)

    assert stored_delays(runledger_pool, job_id) == [30_000]
