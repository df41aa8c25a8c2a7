"""A server process that stops answering: deadlines break its connection, all others go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from _faults import SUCCEEDED, Outside, define, eventually, run_again_at_once, supervised

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime import loop_link
from runledger_runtime.worker import _wakeup
from runledger_test_support import DatabaseServer, TemporaryDatabase
from runledger_test_support.server import ServerOrigin

ENGINE = ("pump", "lease keeper", "listener", "sleep marks", "scheduler", "reaper")


@pytest.fixture
def frozen(runledger_server: DatabaseServer) -> Iterator[list[int]]:
    """Server processes that a test has stopped; they go on after it."""
    if runledger_server.origin is not ServerOrigin.BINARIES:
        pytest.skip("the server's processes are not ours to stop")
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def shorter_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that do not follow from the lease, in seconds instead of half a minute."""
    monkeypatch.setattr(loop_link, "_PASS_SECONDS", 2.0)
    monkeypatch.setattr(_wakeup, "_ROUND_TRIP_SECONDS", 0.5)
    monkeypatch.setattr(_wakeup, "_DEADLINE_SECONDS", 1.0)
    monkeypatch.setattr(_wakeup, "_MARK_RETRY_SECONDS", 0.5)


@pytest.mark.usefixtures("shorter_deadlines")
def test_each_frozen_backend_is_given_up_and_costs_neither_lease_nor_attempt(
    runledger_pool: Any, runledger_database: TemporaryDatabase, frozen: list[int]
) -> None:
    outside = Outside(runledger_database.connect_directly(autocommit=True))
    define(runledger_pool, "jobs.long", "jobs.short")
    began, end = threading.Event(), threading.Event()
    told: list[Any] = []

    def outlast(context: Any, _payload: Any) -> None:
        began.set()
        end.wait(120)
        if context.cancelled.is_set():
            told.append(context.cancel_reason)

    with supervised(
        runledger_pool,
        {"jobs.long": outlast, "jobs.short": lambda *_: None},
        lease_ttl_seconds=6,
        poll_interval_ms=100,
    ):
        enqueue_job(runledger_pool, JobEnqueue("jobs.long", {}))
        assert began.wait(30)
        for number, name in enumerate(ENGINE, 1):
            eventually(lambda name=name: outside.backend(name))
            backend = outside.backend(name)
            assert backend is not None
            os.kill(backend, signal.SIGSTOP)
            frozen.append(backend)
            # More than one connection uses while it is frozen.
            enqueue_jobs(runledger_pool, [JobEnqueue("jobs.short", {})] * 5)

            eventually(lambda name=name, old=backend: outside.backend(name) not in {None, old})
            eventually(lambda number=number: outside.value(SUCCEEDED) == 5 * number)
        end.set()
        eventually(lambda: outside.value(SUCCEEDED) == 5 * len(ENGINE) + 1)

    assert told == []
    assert outside.value("SELECT max(attempt) FROM runledger.job_queue") == 1
    assert outside.value("SELECT max(claim_number) FROM runledger.job_queue") == 1


def test_lease_that_a_frozen_server_took_is_told_as_lost_and_run_again(
    runledger_pool: Any, runledger_database: TemporaryDatabase, frozen: list[int]
) -> None:
    outside = Outside(runledger_database.connect_directly(autocommit=True))
    define(runledger_pool, "jobs.long")
    began, told = threading.Event(), threading.Event()

    def outlast(context: Any, _payload: Any) -> None:
        if context.attempt > 1:
            return
        began.set()
        if context.wait(60):
            told.set()

    # A row lock keeps every beat busy, which no deadline can help: the lease runs out.
    with supervised(runledger_pool, {"jobs.long": outlast}, lease_ttl_seconds=2):
        lost = enqueue_job(runledger_pool, JobEnqueue("jobs.long", {})).id
        assert began.wait(30)
        host = runledger_database.connect_directly()
        host.execute("SELECT FROM runledger.job_queue FOR UPDATE")
        os.kill(host.info.backend_pid, signal.SIGSTOP)
        frozen.append(host.info.backend_pid)
        eventually(
            lambda: outside.value("SELECT lease_expires_at < now() FROM runledger.job_queue")
        )

        os.kill(host.info.backend_pid, signal.SIGCONT)
        host.rollback()

        assert told.wait(30)
        run_again_at_once(outside.connection, lost)
        eventually(lambda: outside.value(SUCCEEDED) == 1)
    assert outside.value("SELECT attempt FROM runledger.job_queue") == 2
