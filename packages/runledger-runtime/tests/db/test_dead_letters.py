"""Handlers are told after a job was given up, by the worker or by the reaper."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core import (
    JobCancelled,
    JobContext,
    JobDeadLetterInfo,
    JobDeadLetterReason,
    JobDefinitionSpec,
    JobEnqueue,
    JobFailure,
    JobProgressUpdate,
)
from runledger_postgres import (
    claim_jobs,
    complete_job_failure,
    connect_pool,
    enqueue_job,
    enqueue_jobs,
    update_job_progress,
    upsert_job_definition,
)
from runledger_runtime import JobRegistry, JobsConfig, Supervisor
from runledger_test_support import expire_lease

from .._nameless import NamelessError


class Payments:
    """Fails for good and remembers what it was told."""

    job_type = "payments.capture"

    def __init__(self) -> None:
        self.told: list[tuple[JobContext, object, JobDeadLetterInfo]] = []
        self.was_told = threading.Event()

    def execute(self, context: JobContext, payload: Any) -> None:
        context.progress(done=1, checkpoint={"step": 2})
        raise JobFailure.terminal("payments.declined", "declined")

    def on_dead_letter(self, context: JobContext, payload: Any, info: JobDeadLetterInfo) -> None:
        self.told.append((context, payload, info))
        self.was_told.set()


@contextmanager
def running(
    pool: ConnectionPool[Any], handler: object, *, worker: bool = True
) -> Generator[Supervisor]:
    registry = JobRegistry()
    registry.register(handler)  # pyright: ignore[reportArgumentType]  # a handler by shape
    upsert_job_definition(pool, JobDefinitionSpec("payments.capture", max_attempts=1))
    builder = Supervisor.builder(pool, JobsConfig(reaper_interval_seconds=1))
    if not worker:
        builder = builder.disable_worker()
    with builder.with_registry(registry).build() as supervisor:
        yield supervisor


def test_worker_tells_with_the_committed_checkpoint_and_the_reason(
    runledger_pool: ConnectionPool[Any],
) -> None:
    payments = Payments()

    with running(runledger_pool, payments):
        enqueue_job(runledger_pool, JobEnqueue("payments.capture", {"order": 7}))
        assert payments.was_told.wait(30)

    ((context, payload, info),) = payments.told
    assert payload == {"order": 7}
    assert context.checkpoint == {"step": 2}
    assert info.failure == JobFailure.terminal("payments.declined", "declined")
    assert (info.reason, info.max_attempts) == (
        JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE,
        1,
    )


def test_services_of_an_ended_attempt_are_refused_but_the_pool_is_lent(
    runledger_pool: ConnectionPool[Any],
) -> None:
    payments = Payments()
    with running(runledger_pool, payments):
        enqueue_job(runledger_pool, JobEnqueue("payments.capture", {}))
        assert payments.was_told.wait(30)
    context = payments.told[0][0]

    with pytest.raises(JobCancelled):
        context.progress(done=1)
    with pytest.raises(JobCancelled):
        context.log("INFO", "late")
    with context.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_what_a_hook_sets_on_a_connection_does_not_reach_the_next_borrower(
    runledger_database: Any,
) -> None:
    payments = Payments()
    with connect_pool(runledger_database.dsn, min_size=1, max_size=1) as single:
        with running(single, payments):
            enqueue_job(single, JobEnqueue("payments.capture", {}))
            assert payments.was_told.wait(30)
        with single.connection() as connection:
            connection.execute("CREATE TABLE told (n int)")

        with payments.told[0][0].connection() as connection:
            connection.execute("INSERT INTO told VALUES (1)")
            connection.execute("SET search_path TO nowhere")
            connection.execute("LISTEN gossip")
            connection.execute("SELECT pg_advisory_lock(7)")

        with single.connection() as connection:
            left = connection.execute(
                "SELECT current_setting('search_path'),"
                " (SELECT count(*) FROM pg_listening_channels()),"
                " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                "  AND pid = pg_backend_pid()),"
                " (SELECT count(*) FROM public.told)"
            ).fetchone()
    assert left == ('"$user", public', 0, 0, 1)


def test_hook_whose_exception_cannot_be_named_ends_no_thread(
    runledger_pool: ConnectionPool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Unkind(Payments):
        def on_dead_letter(
            self, context: JobContext, payload: Any, info: JobDeadLetterInfo
        ) -> None:
            super().on_dead_letter(context, payload, info)
            raise NamelessError

    unkind = Unkind()
    with running(runledger_pool, unkind):
        enqueue_job(runledger_pool, JobEnqueue("payments.capture", {}))
        assert unkind.was_told.wait(30)

    assert "a dead-letter hook failed" in caplog.messages


def test_reaper_tells_of_a_lease_that_expired_on_the_last_attempt(
    runledger_pool: ConnectionPool[Any],
) -> None:
    payments = Payments()
    upsert_job_definition(runledger_pool, JobDefinitionSpec("payments.capture", max_attempts=3))
    enqueue_job(runledger_pool, JobEnqueue("payments.capture", {"order": 8}))
    (first,) = claim_jobs(runledger_pool, worker_id="first", limit=1, lease_ttl_seconds=60)
    again = JobFailure.retryable("payments.busy", "busy")
    complete_job_failure(runledger_pool, first.lease, again, retry_delay_ms=1)
    (job,) = claim_jobs(runledger_pool, worker_id="gone", limit=1, lease_ttl_seconds=60)
    update_job_progress(runledger_pool, job.lease, JobProgressUpdate(checkpoint={"step": 2}))
    with runledger_pool.connection() as connection:
        # Lowered while it runs, so that it is neither the number of the attempt nor the claim's.
        connection.execute("UPDATE runledger.job_queue SET max_attempts = 1")
        expire_lease(connection, job.id)

    with running(runledger_pool, payments, worker=False):
        assert payments.was_told.wait(30)

    ((context, payload, info),) = payments.told
    assert payload == {"order": 8}
    assert (info.failure.code, info.reason) == (
        "job.lease_expired",
        JobDeadLetterReason.LEASE_EXPIRED,
    )
    assert (context.job_id, context.worker_id, context.run_number) == (job.id, "gone", 1)
    assert context.checkpoint == {"step": 2}
    assert (context.attempt, context.max_attempts, info.max_attempts) == (2, 1, 1)


def test_hook_that_raises_or_hangs_holds_up_neither_jobs_nor_the_stop(
    runledger_pool: ConnectionPool[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runledger_runtime.dead_letters.DEAD_LETTER_SECONDS", 0.2)
    release = threading.Event()

    class Awkward(Payments):
        def on_dead_letter(
            self, context: JobContext, payload: Any, info: JobDeadLetterInfo
        ) -> None:
            super().on_dead_letter(context, payload, info)
            if payload["n"] % 2:
                release.wait(60)
            raise SystemExit(1)

    awkward = Awkward()
    with running(runledger_pool, awkward) as supervisor:
        requests = [JobEnqueue("payments.capture", {"n": n}) for n in range(20)]
        enqueue_jobs(runledger_pool, requests)
        assert awkward.was_told.wait(30)
        while len(awkward.told) < 20:
            assert awkward.was_told.wait(1)
        supervisor.shutdown_with_timeout(20)
    release.set()

    with runledger_pool.connection() as connection:
        query = "SELECT status::text, count(*) FROM runledger.job_queue GROUP BY status"
        assert connection.execute(query).fetchall() == [("DEAD_LETTERED", 20)]
    assert sorted(payload["n"] for _, payload, _ in awkward.told) == list(range(20))  # type: ignore[index]  # a dict


def test_without_a_thread_hooks_are_skipped_and_neither_worker_nor_stop_suffers(
    runledger_pool: ConnectionPool[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("runledger_runtime.dead_letters.DEAD_LETTER_SECONDS", 0.2)
    start = threading.Thread.start
    refused: list[str] = []
    release = threading.Event()

    class Hanging(Payments):
        def on_dead_letter(
            self, context: JobContext, payload: Any, info: JobDeadLetterInfo
        ) -> None:
            super().on_dead_letter(context, payload, info)
            release.wait(60)

    hanging = Hanging()

    def refuse(thread: threading.Thread) -> None:
        # All watches, and the hooks behind the first.
        if thread.name == "runledger-dead-letters" or (
            thread.name.startswith("runledger-dead-letter-") and refused
        ):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with running(runledger_pool, hanging) as supervisor:
        enqueue_jobs(runledger_pool, [JobEnqueue("payments.capture", {"n": n}) for n in range(20)])
        assert hanging.was_told.wait(30)
        with runledger_pool.connection() as connection:
            query = "SELECT count(*) FROM runledger.job_queue WHERE status = 'DEAD_LETTERED'"
            while connection.execute(query).fetchone() != (20,):
                connection.rollback()
        supervisor.shutdown_with_timeout(20)
    release.set()

    assert len(hanging.told) == 1
    assert len(refused) >= 20
    assert caplog.text.count("no thread for a dead-letter hook; skipped") == 19


def test_hook_gets_the_payload_as_it_is_stored_whatever_the_handler_made_of_its_own(
    runledger_pool: ConnectionPool[Any],
) -> None:
    class Consuming(Payments):
        def execute(self, context: JobContext, payload: Any) -> None:
            payload.pop("order")
            payload["lines"].clear()
            raise JobFailure.terminal("payments.declined", "declined")

    consuming = Consuming()
    with running(runledger_pool, consuming):
        enqueue_job(runledger_pool, JobEnqueue("payments.capture", {"order": 7, "lines": [1]}))
        assert consuming.was_told.wait(30)

    assert [payload for _, payload, _ in consuming.told] == [{"order": 7, "lines": [1]}]


def test_statement_of_a_hook_is_cancelled_when_its_time_is_over(
    runledger_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runledger_runtime.dead_letters.DEAD_LETTER_SECONDS", 0.5)
    errors: list[BaseException] = []
    is_over = threading.Event()

    class Slow(Payments):
        def on_dead_letter(
            self, context: JobContext, payload: Any, info: JobDeadLetterInfo
        ) -> None:
            try:
                with context.connection() as connection:
                    connection.execute("SELECT pg_sleep(60)")
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                is_over.set()

    with connect_pool(runledger_database.dsn, min_size=1, max_size=1) as single:
        with running(single, Slow()):
            enqueue_job(single, JobEnqueue("payments.capture", {}))
            assert is_over.wait(10)
        # The only connection is back.
        with single.connection(timeout=5) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert [type(error) for error in errors] == [psycopg.errors.QueryCanceled]
