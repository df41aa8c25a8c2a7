"""What `worker --burst` waits for, seen on a worker of this process."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job
from runledger_runtime import JobsConfig, Supervisor
from runledger_runtime.catalog import JobCatalog
from runledger_runtime.cli._burst import Burst


@pytest.mark.core
def test_burst_runs_a_job_whose_handler_could_not_be_started_at_first(
    runledger_pool: ConnectionPool[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    catalog = JobCatalog()
    catalog.job("jobs.one", lambda _context, payload: ran.append(payload))
    catalog.sync_definitions(runledger_pool)
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", "first"))
    refused: list[str] = []
    start = threading.Thread.start

    def start_at_the_second_try(thread: threading.Thread) -> None:
        if thread.name.startswith("runledger-handler") and not refused:
            refused.append(thread.name)
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_at_the_second_try)
    supervisor = Supervisor.builder(runledger_pool, JobsConfig()).with_catalog(catalog).build()
    burst = Burst(supervisor, runledger_pool, ["jobs.one"])
    burst.stop_when_idle()
    supervisor.run_until_shutdown(threading.Event(), 30)

    assert len(refused) == 1
    assert ran == ["first"]
    assert burst.jobs_left is None
