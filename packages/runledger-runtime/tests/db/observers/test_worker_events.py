"""What observers are told of a worker's attempts is what is stored, and comes after the commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import (
    JobCompletion,
    JobDeadLetterReason,
    JobEnqueue,
    JobFailure,
    JobFailureKind,
    Scope,
)
from runledger_postgres import cancel_job, enqueue_job, enqueue_jobs
from runledger_runtime.observers import (
    DeadLettered,
    JobCompletionPersistenceOperation,
    JobCompletionPersistFailedEvent,
    JobFailedEvent,
    JobLeaseLostEvent,
    JobLifecycleObserver,
    JobRunningEvent,
    JobSucceededEvent,
    RetryScheduled,
    _delivery,
)
from runledger_test_support import expire_lease

WAIT_SECONDS = 30.0
TOO_SLOW = "lifecycle observers are too slow; the newest event was dropped"

JOB = "SELECT status::text, progress_done, progress_total, next_run_at FROM runledger.job_queue"
ATTEMPT = "SELECT outcome::text, retry_delay_ms FROM runledger.job_attempts"

Look = Callable[..., Any]


def enqueue(pool: ConnectionPool[Any]) -> Any:
    return enqueue_job(pool, JobEnqueue("jobs.one", {"n": 1})).id


class Stored(JobLifecycleObserver):
    """Reads the job's row, as others see it, whenever it is told something."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.seen: list[tuple[str, Any]] = []
        self.has_ended = threading.Event()

    def on_job_running(self, event: JobRunningEvent) -> None:
        self.seen.append(("running", self.look(JOB)[0]))

    def on_job_succeeded(self, event: JobSucceededEvent) -> None:
        self.seen.append(("succeeded", self.look(JOB)[0]))
        self.has_ended.set()

    def on_job_failed(self, event: JobFailedEvent) -> None:
        self.seen.append(("failed", self.look(JOB)[0]))
        self.has_ended.set()


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, ("succeeded", "SUCCEEDED")),
        (JobFailure.retryable("test.again", "not yet"), ("failed", "PENDING")),
        (JobFailure.terminal("test.never", "never"), ("failed", "DEAD_LETTERED")),
    ],
)
def test_events_come_after_the_commit(
    result: Any,
    expected: tuple[str, str],
    runledger_pool: ConnectionPool[Any],
    start_observed: Any,
    look: Look,
) -> None:
    stored = Stored(look)
    may_end = threading.Event()

    def handler(_context: Any, _payload: Any) -> Any:
        assert may_end.wait(WAIT_SECONDS)
        return result

    start_observed(handler, stored)
    enqueue(runledger_pool)
    while not stored.seen:
        threading.Event().wait(0.005)
    may_end.set()

    assert stored.has_ended.wait(WAIT_SECONDS)
    assert stored.seen == [("running", "LEASED"), expected]


def test_success_shows_the_progress_that_was_merged_and_stored(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    def handler(context: Any, _payload: Any) -> JobCompletion:
        context.progress(1, 5)
        return JobCompletion(progress_done=3)

    start_observed(handler, events)
    job_id = enqueue(runledger_pool)

    running = events.next(JobRunningEvent)
    succeeded = events.next(JobSucceededEvent)
    assert succeeded.job == running.job
    assert (running.job.job_id, running.job.job_type) == (job_id, "jobs.one")
    assert (running.job.run_number, running.job.attempt, running.job.max_attempts) == (1, 1, 3)
    assert (running.job.worker_id, running.job.organization_id) == ("worker-1", None)
    assert (succeeded.progress_done, succeeded.progress_total) == (3, 5)
    assert look(JOB)[1:3] == (3, 5)
    assert timedelta(0) < succeeded.duration < timedelta(seconds=WAIT_SECONDS)


def test_retry_shows_the_delay_and_the_time_that_are_stored(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise JobFailure.retryable("test.again", "not yet")

    start_observed(handler, events)
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    failed = events.next(JobFailedEvent)
    assert failed.failure == JobFailure.retryable("test.again", "not yet")
    assert failed.disposition == RetryScheduled(look(ATTEMPT)[1], look(JOB)[3])
    assert failed.disposition.delay_ms >= 9_000


def test_dead_letter_shows_its_reason(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any
) -> None:
    start_observed(lambda *_: JobFailure.terminal("test.never", "never"), events)
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    failed = events.next(JobFailedEvent)
    assert failed.disposition == DeadLettered(JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE)


def test_exhausted_attempts_are_reported_with_the_stored_maximum_and_not_the_claims(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    told: list[Any] = []
    was_told = threading.Event()

    class Payments:
        job_type = "jobs.one"

        def execute(self, context: Any, _payload: Any) -> None:
            look("UPDATE runledger.job_queue SET max_attempts = 1 RETURNING 1")
            raise JobFailure.retryable("test.again", f"{context.max_attempts}")

        def on_dead_letter(self, _context: Any, _payload: Any, info: Any) -> None:
            told.append(info)
            was_told.set()

    start_observed(Payments(), events)
    enqueue(runledger_pool)

    assert events.next(JobRunningEvent).job.max_attempts == 3
    failed = events.next(JobFailedEvent)
    assert failed.failure.message == "3"
    assert failed.job.max_attempts == 1
    assert failed.disposition == DeadLettered(JobDeadLetterReason.ATTEMPTS_EXHAUSTED)
    assert was_told.wait(WAIT_SECONDS)
    (info,) = told
    assert (info.reason, info.max_attempts) == (JobDeadLetterReason.ATTEMPTS_EXHAUSTED, 1)


def test_timeout_is_reported_with_its_retry(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    start_observed(lambda context, _payload: context.wait(WAIT_SECONDS), events)
    look("UPDATE runledger.job_definitions SET default_timeout_seconds = 1 RETURNING 1")
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    failed = events.next(JobFailedEvent)
    assert failed.failure.kind is JobFailureKind.TIMEOUT
    assert failed.failure.code == "job.timeout_exceeded"
    assert isinstance(failed.disposition, RetryScheduled)
    assert failed.duration >= timedelta(seconds=1)


def test_panic_is_reported_and_stored_as_one(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise SystemExit(3)

    start_observed(handler, events)
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    failed = events.next(JobFailedEvent)
    assert failed.failure.kind is JobFailureKind.PANICKED
    assert failed.disposition == DeadLettered(JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE)
    assert look(ATTEMPT)[0] == "PANICKED"


@pytest.mark.parametrize("result", [None, JobFailure.terminal("test.never", "never")])
def test_outcome_of_a_lost_lease_is_a_lost_lease_and_no_failure_to_store(
    result: Any,
    runledger_pool: ConnectionPool[Any],
    start_observed: Any,
    events: Any,
    look: Look,
) -> None:
    may_end = threading.Event()

    def handler(_context: Any, _payload: Any) -> Any:
        assert may_end.wait(WAIT_SECONDS)
        return result

    # No beat before the handler ends: the fence of the outcome is what notices.
    start_observed(handler, events, lease_ttl_seconds=600)
    job_id = enqueue(runledger_pool)
    running = events.next(JobRunningEvent)
    expire_lease(runledger_pool, job_id)
    may_end.set()

    lost = events.next(JobLeaseLostEvent)
    assert lost.job == running.job
    assert lost.failure == JobFailure(
        JobFailureKind.LEASE_EXPIRED, "job.lease_owner_mismatch", "the lease was lost"
    )
    assert look(JOB)[0] == "LEASED"
    assert look(ATTEMPT) is None


def test_lease_that_a_heartbeat_finds_gone_is_told_when_the_handler_has_ended(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any
) -> None:
    start_observed(lambda context, _: context.wait(WAIT_SECONDS), events, lease_ttl_seconds=1)
    job_id = enqueue(runledger_pool)
    events.next(JobRunningEvent)

    expire_lease(runledger_pool, job_id)

    assert events.next(JobLeaseLostEvent).failure.message == "the lease was lost"


def test_job_that_is_canceled_while_it_runs_is_told_as_a_lost_lease(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any
) -> None:
    start_observed(lambda context, _payload: context.wait(WAIT_SECONDS), events)
    job_id = enqueue(runledger_pool)
    events.next(JobRunningEvent)

    cancel_job(runledger_pool, job_id, scope=Scope.ADMIN)

    lost = events.next(JobLeaseLostEvent)
    assert (lost.failure.code, lost.failure.message) == (
        "job.lease_owner_mismatch",
        "the job was canceled",
    )


def test_failure_with_the_code_of_a_lost_lease_is_an_ordinary_failure(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    failure = JobFailure.terminal("job.lease_owner_mismatch", "mine")
    start_observed(lambda *_: failure, events)
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    assert events.next(JobFailedEvent).failure == failure
    assert look(JOB)[0] == "DEAD_LETTERED"


def test_outcome_that_can_never_be_stored_is_told_in_public_words_only(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    def handler(context: Any, _payload: Any) -> None:
        # The attempt row that the outcome needs is there already.
        look(
            "INSERT INTO runledger.job_attempts (job_id, claim_number, run_number, attempt,"
            " outcome, leased_at, finished_at, worker_id)"
            " VALUES (%s, 1, 1, 1, 'SUCCEEDED', now(), now(), 'other') RETURNING 1",
            context.job_id,
        )

    start_observed(handler, events)
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    unstorable = events.next(JobCompletionPersistFailedEvent)
    assert unstorable.operation is JobCompletionPersistenceOperation.FAILURE
    assert unstorable.error == "db.unique_violation: a row with these values exists"
    assert look(JOB)[0] == "LEASED"


def test_success_with_impossible_progress_is_one_failure(
    runledger_pool: ConnectionPool[Any], start_observed: Any, events: Any, look: Look
) -> None:
    def handler(context: Any, _payload: Any) -> JobCompletion:
        context.progress(1, 5)
        return JobCompletion(progress_done=6)

    start_observed(handler, events)
    enqueue(runledger_pool)

    events.next(JobRunningEvent)
    failed = events.next(JobFailedEvent)
    assert failed.failure.code == "job.invalid_completion_progress"
    assert failed.disposition == DeadLettered(JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE)
    assert look("SELECT count(*) FROM runledger.job_attempts") == (1,)


def test_worker_without_observers_has_no_threads_for_them(
    runledger_pool: ConnectionPool[Any], start_observed: Any
) -> None:
    names: list[str] = []
    has_run = threading.Event()

    def handler(_context: Any, payload: Any) -> None:
        if payload == {"n": 2}:
            names.extend(thread.name for thread in threading.enumerate())
            has_run.set()

    before = [each.name for each in threading.enumerate() if "observer" in each.name]
    start_observed(handler)
    enqueue(runledger_pool)
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 2}))

    assert has_run.wait(WAIT_SECONDS)
    assert [name for name in names if "observer" in name] == before


def test_as_many_starts_and_ends_as_there_are_slots_wait_for_a_slow_observer(  # fixtures
    runledger_pool: ConnectionPool[Any],
    start_observed: Any,
    look: Look,
    *,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_delivery, "OBSERVER_SECONDS", WAIT_SECONDS)
    begun, may_end = threading.Semaphore(0), threading.Event()
    is_next_begun, may_go = threading.Event(), threading.Event()
    told: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    class Slow(JobLifecycleObserver):
        def on_job_running(self, event: JobRunningEvent) -> None:
            assert may_go.wait(WAIT_SECONDS)
            told.put(("running", event.job.job_id))

        def on_job_succeeded(self, event: JobSucceededEvent) -> None:
            told.put(("succeeded", event.job.job_id))

    def handler(_context: Any, payload: Any) -> None:
        if payload == {"n": "next"}:
            is_next_begun.set()
            return
        begun.release()
        assert may_end.wait(WAIT_SECONDS)

    start_observed(handler, Slow(), max_global_concurrency=100, lease_ttl_seconds=600)
    requests = [JobEnqueue("jobs.one", {"n": n}) for n in range(100)]
    ids = [job.id for job in enqueue_jobs(runledger_pool, requests)]
    for _ in ids:
        assert begun.acquire(timeout=WAIT_SECONDS)
    may_end.set()
    ended = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
    eventually(lambda: look(ended) == (100,))
    # Who claims the next job has handed over what was told of those before.
    ids.append(enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": "next"})).id)
    assert is_next_begun.wait(WAIT_SECONDS)

    may_go.set()
    assert TOO_SLOW not in caplog.messages
    found = {told.get(timeout=WAIT_SECONDS) for _ in range(2 * len(ids))}

    assert found == {(kind, job_id) for kind in ("running", "succeeded") for job_id in ids}
