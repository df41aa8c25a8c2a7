"""Dead-letter hooks that hang: their threads are bounded, and they are told."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import (
    CancelReason,
    JobCancelled,
    JobContext,
    JobDeadLetterInfo,
    JobDeadLetterReason,
    JobFailure,
    JobLease,
)
from runledger_runtime.dead_letters import DeadLetter, DeadLetterHooks, Decode, decoded
from runledger_runtime.registry import JobRegistry


class Hanging:
    """Hangs in its hook until it is released, whatever it is told."""

    job_type = "jobs.hanging"

    def __init__(self) -> None:
        self.release = threading.Event()
        self.threads: list[threading.Thread] = []
        self.contexts: list[JobContext] = []

    def execute(self, context: JobContext, payload: Any) -> None: ...

    def on_dead_letter(self, context: JobContext, payload: Any, info: JobDeadLetterInfo) -> None:
        self.threads.append(threading.current_thread())
        self.contexts.append(context)
        self.release.wait(60)


@pytest.fixture
def hanging() -> Hanging:
    return Hanging()


@pytest.fixture
def hooks(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> DeadLetterHooks:
    monkeypatch.setattr("runledger_runtime.dead_letters.HOOK_SECONDS", 0.1)
    registry = JobRegistry()
    registry.register(hanging)
    return DeadLetterHooks(registry, ConnectionPool(open=False))


def letter(payload: Decode | None = None) -> DeadLetter:
    failure = JobFailure.terminal("jobs.failed", "failed")
    return DeadLetter(
        JobLease(uuid.uuid4(), 1, attempt=1, claim_number=1, worker_id="worker-1"),
        "jobs.hanging",
        organization_id=None,
        payload=payload or decoded({}),
        checkpoint=decoded(None),
        info=JobDeadLetterInfo(
            failure, JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE, max_attempts=1
        ),
    )


def test_while_more_than_eight_hooks_hang_the_others_are_skipped_and_counted(
    hooks: DeadLetterHooks, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    all_over, next_over = threading.Event(), threading.Event()
    hooks.submit_all([letter() for _ in range(40)], then=all_over.set)
    assert all_over.wait(30)
    started = len(hanging.threads)
    hooks.submit_all([letter()], then=next_over.set)

    # At once: nobody waits for a thread.
    assert next_over.is_set()
    assert 8 < len(hanging.threads) == started <= 16
    assert (
        caplog.messages.count("dead-letter hooks hang; others are skipped until some have returned")
        == 1
    )

    hanging.release.set()
    for thread in list(hanging.threads):
        thread.join(30)
    hooks.submit_all([letter()])
    hooks.finish()

    assert len(hanging.threads) == started + 1
    (again,) = [
        record
        for record in caplog.records
        if record.message == "dead-letter hooks are called again"
    ]
    assert again.__dict__["skipped"] == 41 - started


def test_hook_is_told_when_its_time_is_over_and_gets_no_more_connections(
    hooks: DeadLetterHooks, hanging: Hanging
) -> None:
    hooks.submit_all([letter()])
    hooks.finish()

    (context,) = hanging.contexts
    assert context.cancelled.is_set()
    assert context.cancel_reason is CancelReason.TIMEOUT
    with pytest.raises(JobCancelled), context.connection():
        pass
    hanging.release.set()


def test_hook_whose_payload_cannot_be_decoded_any_more_is_not_called(
    hooks: DeadLetterHooks, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Any:
        raise RecursionError

    hooks.submit_all([letter(fail)])
    hooks.finish()

    assert hanging.threads == []
    assert caplog.messages == ["a dead-letter hook failed"]


def test_who_holds_the_hooks_up_keeps_neither_health_nor_the_end_of_the_process(
    hooks: DeadLetterHooks,
) -> None:
    answers: list[bool] = []

    def ask() -> None:
        answers.append(hooks.has_work)
        hooks.abandon()
        answers.append(hooks.has_work)

    # As who logs does, for as long as nobody reads the log.
    with hooks._lock:
        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        asker.join(10)

    assert answers == [False, False]
