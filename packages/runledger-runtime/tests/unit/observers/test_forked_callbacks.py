"""Observers and dead-letter hooks that fork: the child ends with the call."""

from __future__ import annotations

import os
import threading
import uuid
from queue import SimpleQueue
from typing import Any

from psycopg_pool import ConnectionPool

from runledger_core import (
    JobContext,
    JobDeadLetterInfo,
    JobDeadLetterReason,
    JobFailure,
    JobLease,
)
from runledger_runtime.dead_letters import DeadLetter, DeadLetterHooks, reader_of
from runledger_runtime.observers import JobLifecycleObserver
from runledger_runtime.registry import JobRegistry

from ..._forks import FORKS, end_of

pytestmark = FORKS

WAIT_SECONDS = 30.0


def test_child_of_an_observer_ends_with_its_call(attempt: Any, deliver_to: Any):
    ends: SimpleQueue[int | str] = SimpleQueue()

    class Forking(JobLifecycleObserver):
        def on_job_running(self, event: object) -> None:
            child = os.fork()
            if child:
                ends.put(end_of(child))

    one = attempt(1)
    deliver_to(Forking()).started(one.lease, one.running)

    assert ends.get(timeout=WAIT_SECONDS) == 0


def test_child_of_a_dead_letter_hook_ends_with_its_call():
    ends: SimpleQueue[int | str] = SimpleQueue()
    is_over = threading.Event()

    class Forking:
        job_type = "jobs.forking"

        def execute(self, context: JobContext, payload: Any) -> None: ...

        def on_dead_letter(
            self, context: JobContext, payload: Any, info: JobDeadLetterInfo
        ) -> None:
            child = os.fork()
            if child:
                ends.put(end_of(child))

    registry = JobRegistry()
    registry.register(Forking())
    reason = JobDeadLetterReason.FAILURE_KIND_NON_RETRYABLE
    letter = DeadLetter(
        JobLease(uuid.uuid4(), 1, attempt=1, claim_number=1, worker_id="worker-1"),
        "jobs.forking",
        organization_id=None,
        payload=reader_of({}),
        checkpoint=reader_of(None),
        info=JobDeadLetterInfo(JobFailure.terminal("jobs.failed", "no"), reason, max_attempts=1),
    )

    DeadLetterHooks(registry, ConnectionPool(open=False)).submit_all([letter], then=is_over.set)

    assert ends.get(timeout=WAIT_SECONDS) == 0
    assert is_over.wait(WAIT_SECONDS)
