"""The threads beside the pump: a host that raises does not end them, and no end goes unnoticed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import enqueue_job
from runledger_postgres.definitions import upsert_job_definition
from runledger_runtime import JobRegistry, JobsConfig, Supervisor, TaskFailedError
from runledger_runtime.worker._attempt import TIMEOUT_CODE
from runledger_runtime.worker._helper import Helper
from runledger_runtime.worker._lease_keeper import LeaseKeeper
from runledger_runtime.worker._timekeeper import Timekeeper
from runledger_runtime.worker._wakeup import Listener

Eventually = Callable[[Callable[[], bool]], None]

BEAT = "SELECT last_heartbeat_at FROM runledger.job_queue"
STATUS = "SELECT status::text FROM runledger.job_queue"
CODE = "SELECT last_error_code FROM runledger.job_queue"
KILL_THE_KEEPER = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'runledger lease keeper'
"""


class Refuse(logging.Filter):
    """A filter of the host's that fails at every record."""

    def __init__(self) -> None:
        super().__init__()
        self.met = threading.Semaphore(0)

    def filter(self, record: logging.LogRecord) -> bool:
        self.met.release()
        raise LookupError(record.getMessage())


@pytest.fixture
def refuse() -> Iterator[Refuse]:
    """The filter, at what the two keepers log."""
    refuse = Refuse()
    loggers = [
        logging.getLogger(f"runledger_runtime.worker.{name}")
        for name in ("_lease_keeper", "_timekeeper")
    ]
    for logger in loggers:
        logger.addFilter(refuse)
    yield refuse
    for logger in loggers:
        logger.removeFilter(refuse)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets handlers end that do not mind their token."""
    event = threading.Event()
    yield event
    event.set()


def outlasting(release: threading.Event) -> Callable[..., None]:
    """Return a handler that does not mind its token."""

    def handler(_context: Any, _payload: Any) -> None:
        release.wait(60)

    return handler


def test_log_record_that_a_filter_fails_at_does_not_end_the_heartbeats(  # noqa: PLR0917  # fixtures
    refuse: Refuse,
    release: threading.Event,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    look: Any,
    eventually: Eventually,
) -> None:
    start_worker({"jobs.long": outlasting(release)}, lease_ttl_seconds=2)
    enqueue_job(runledger_pool, JobEnqueue("jobs.long", {}))
    eventually(lambda: look(BEAT) is not None)
    assert look(KILL_THE_KEEPER) == 1
    assert refuse.met.acquire(timeout=30)
    before = look(BEAT)

    eventually(lambda: look(BEAT) > before)

    release.set()
    eventually(lambda: look(STATUS) == "SUCCEEDED")
    assert look("SELECT claim_number FROM runledger.job_queue") == 1


def test_log_record_that_a_filter_fails_at_does_not_keep_a_stuck_attempt_from_its_end(  # noqa: PLR0917  # fixtures
    refuse: Refuse,
    release: threading.Event,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    look: Any,
    eventually: Eventually,
) -> None:
    worker = start_worker({"jobs.stuck": outlasting(release)}, handler_grace_seconds=0)
    enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}, timeout_seconds=1))

    assert refuse.met.acquire(timeout=30)

    eventually(lambda: look(CODE) == TIMEOUT_CODE)
    assert "runledger-timekeeper" in {thread.name for thread in threading.enumerate()}
    release.set()
    worker.end()


@pytest.mark.core
@pytest.mark.parametrize("helper", [LeaseKeeper, Timekeeper, Listener])
def test_thread_that_ends_all_the_same_ends_the_worker_and_is_told(  # noqa: PLR0917  # fixtures
    helper: type[Helper],
    release: threading.Event,
    runledger_pool: ConnectionPool[Any],
    runledger_database: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = threading.Event()

    def end_it(_self: Helper) -> None:
        began.wait(60)
        raise SystemExit

    def overstay(*_: Any) -> None:
        began.set()
        release.wait(60)

    monkeypatch.setattr(helper, "work", end_it)
    registry = JobRegistry()
    registry.register_function("jobs.stuck", overstay)
    upsert_job_definition(runledger_pool, JobDefinitionSpec("jobs.stuck", max_attempts=3))
    enqueue_job(runledger_pool, JobEnqueue("jobs.stuck", {}))
    config = JobsConfig(
        "test",
        poll_interval_ms=50,
        handler_grace_seconds=1,
        direct_database_url=runledger_database.direct_dsn,
    )
    supervisor = Supervisor.builder(runledger_pool, config).with_registry(registry).build()

    eventually(lambda: not supervisor.health().is_healthy)

    with pytest.raises(TaskFailedError) as caught:
        supervisor.run_until_shutdown(threading.Event(), timeout=30)
    assert (caught.value.task, type(caught.value.source)) == ("worker", SystemExit)
