"""Dead-letter hooks: those that hang are bounded and told, and nobody waits for their lock."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
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
from runledger_runtime.dead_letters import DeadLetter, DeadLetterHooks, ReadJson, reader_of
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
    monkeypatch.setattr("runledger_runtime.dead_letters.DEAD_LETTER_SECONDS", 0.1)
    registry = JobRegistry()
    registry.register(hanging)
    return DeadLetterHooks(registry, ConnectionPool(open=False))


def letter(payload: ReadJson | None = None) -> DeadLetter:
    failure = JobFailure.terminal("jobs.failed", "failed")
    return DeadLetter(
        JobLease(uuid.uuid4(), 1, attempt=1, claim_number=1, worker_id="worker-1"),
        "jobs.hanging",
        organization_id=None,
        payload=payload or reader_of({}),
        checkpoint=reader_of(None),
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

    # As who starts a thread does, for as long as the system takes.
    with hooks._lock:
        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        asker.join(10)

    assert answers == [False, False]


class Listener(logging.Handler):
    """Calls something for each record, as a handler of the host may."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        super().__init__()
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard(record.getMessage())


@contextmanager
def listening(heard: Callable[[str], None]) -> Generator[None]:
    listener, logger = Listener(heard), logging.getLogger("runledger_runtime.dead_letters")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


def test_what_is_called_when_hooks_are_over_may_submit_others(
    hooks: DeadLetterHooks, hanging: Hanging
) -> None:
    hanging.release.set()
    next_over = threading.Event()

    hooks.submit_all([letter()], then=lambda: hooks.submit_all([letter()], then=next_over.set))

    assert next_over.wait(10)
    assert len(hanging.threads) == 2


def test_log_may_ask_the_hooks_whatever_it_is_told(
    hooks: DeadLetterHooks, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[str, bool]] = []
    start = threading.Thread.start

    def heard(message: str) -> None:
        # Not for ever, and only until it fails once: this test must end.
        is_free = all(free for _, free in answers) and hooks._lock.acquire(timeout=5)
        if is_free:
            hooks._lock.release()
        answers.append((message, is_free))

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("runledger-dead-letter-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with listening(heard):
        all_over = threading.Event()
        hooks.submit_all([letter() for _ in range(20)], then=all_over.set)
        assert all_over.wait(60)
        hanging.release.set()
        for thread in list(hanging.threads):
            thread.join(60)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            hooks.submit(letter())
        hooks.stop()
        hooks.submit_all([letter() for _ in range(20)])
        hooks.finish()

    assert dict(answers) == {
        "a dead-letter hook takes too long": True,
        "dead-letter hooks hang; others are skipped until some have returned": True,
        "dead-letter hooks are called again": True,
        "no thread for a dead-letter hook; skipped": True,
        "dead-letter hooks skipped at the stop": True,
    }


def test_end_waits_for_what_is_called_when_hooks_are_over_unless_it_is_aborted(
    hooks: DeadLetterHooks, hanging: Hanging
) -> None:
    hanging.release.set()
    began, may_return = threading.Event(), threading.Event()

    def then() -> None:
        began.set()
        may_return.wait(60)

    hooks.submit_all([letter()], then=then)
    assert began.wait(10)
    finisher = threading.Thread(target=hooks.finish, daemon=True)
    finisher.start()
    finisher.join(0.3)
    is_waited_for = finisher.is_alive()
    hooks.abandon()
    finisher.join(10)

    assert is_waited_for
    assert not finisher.is_alive()
    may_return.set()


def test_stop_that_comes_while_hooks_are_waited_for_skips_those_that_wait(
    hooks: DeadLetterHooks, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runledger_runtime.dead_letters.DEAD_LETTER_SECONDS", 60.0)
    stopped = threading.Event()

    def heard(message: str) -> None:
        if message == "dead-letter hooks skipped at the stop" and not stopped.is_set():
            stopped.set()
            hooks.stop()
            hanging.release.set()

    hooks.submit_all([letter() for _ in range(17)])
    with listening(heard):
        # One is skipped at once; eight run, and eight wait when the stop comes.
        finisher = threading.Thread(target=hooks.finish, daemon=True)
        finisher.start()
        finisher.join(10)

    assert stopped.is_set()
    assert not finisher.is_alive()
    assert len(hanging.threads) == 8
