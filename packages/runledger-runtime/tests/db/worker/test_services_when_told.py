"""An attempt that was told to stop is refused its services, whatever the reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from psycopg_pool import ConnectionPool

from runledger_core import CancelReason, JobCancelled, JobEnqueue, Scope
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import cancel_job
from runledger_runtime.health import LoopState
from runledger_test_support import expire_lease

WAIT_SECONDS = 30
REPORTED = (
    "SELECT coalesce(progress_done, 0) + (SELECT count(*) FROM runledger.job_logs)"
    " FROM runledger.job_queue"
)


def borrow(context: Any) -> None:
    with context.connection():
        pass


SERVICES: dict[str, Callable[[Any], object]] = {
    "progress": lambda context: context.progress(done=1),
    "log": lambda context: context.log("INFO", "late"),
    "connection": borrow,
}


class Asking:
    """A handler that asks for every service, once it may, and keeps how each was refused."""

    def __init__(self, may_ask: Callable[[Any], object]) -> None:
        self._may_ask = may_ask
        self.began = threading.Event()
        self.asked = threading.Event()
        self.answers: dict[str, object] = {}

    def __call__(self, context: Any, _payload: Any) -> None:
        self.began.set()
        assert self._may_ask(context)
        for name, service in SERVICES.items():
            try:
                self.answers[name] = service(context)
            except JobCancelled as told:
                self.answers[name] = told.reason
            except Exception as error:  # noqa: BLE001  # an answer as well, for the test to see
                self.answers[name] = error
        self.asked.set()

    def check(self, reason: CancelReason) -> None:
        """Wait until it has asked; every service must have been refused for this reason."""
        assert self.asked.wait(WAIT_SECONDS)
        assert self.answers == dict.fromkeys(SERVICES, reason)


def asking_when_told() -> Asking:
    return Asking(lambda context: context.wait(WAIT_SECONDS))


def test_services_are_refused_within_the_grace_of_a_timeout(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    handler = asking_when_told()
    start_worker({"jobs.asks": handler}, handler_grace_seconds=WAIT_SECONDS)
    enqueue_job(runledger_pool, JobEnqueue("jobs.asks", {}, max_attempts=1, timeout_seconds=1))

    handler.check(CancelReason.TIMEOUT)
    assert look(REPORTED) == 0


def test_services_are_refused_once_the_job_is_canceled(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    handler = asking_when_told()
    start_worker({"jobs.asks": handler})
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.asks", {})).id
    assert handler.began.wait(WAIT_SECONDS)

    cancel_job(runledger_pool, job_id, scope=Scope.ADMIN)

    handler.check(CancelReason.CANCELED)
    assert look(REPORTED) == 0


def test_services_are_refused_once_the_lease_is_known_to_be_lost(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    handler = asking_when_told()
    start_worker({"jobs.asks": handler}, lease_ttl_seconds=1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.asks", {})).id
    assert handler.began.wait(WAIT_SECONDS)

    expire_lease(runledger_pool, job_id)

    handler.check(CancelReason.LEASE_LOST)
    assert look(REPORTED) == 0


def test_services_are_refused_once_the_stop_is_aborted(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    handler = asking_when_told()
    worker = start_worker({"jobs.asks": handler}, handler_grace_seconds=WAIT_SECONDS)
    enqueue_job(runledger_pool, JobEnqueue("jobs.asks", {}))
    assert handler.began.wait(WAIT_SECONDS)

    worker.stop.abort()

    handler.check(CancelReason.SHUTDOWN)
    assert look(REPORTED) == 0


def test_services_of_a_stuck_handler_are_refused_with_the_reason_that_it_was_told(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any, eventually: Any
) -> None:
    is_stuck = threading.Event()
    # Deaf to its token, so that its attempt has ended before it asks.
    handler = Asking(lambda _context: is_stuck.wait(WAIT_SECONDS))
    worker = start_worker({"jobs.asks": handler}, handler_grace_seconds=0)
    enqueue_job(runledger_pool, JobEnqueue("jobs.asks", {}, max_attempts=1, timeout_seconds=1))

    eventually(lambda: worker.health.status(LoopState.RUNNING).stuck_handlers == 1)
    eventually(lambda: look("SELECT count(*) FROM runledger.job_attempts") == 1)
    is_stuck.set()

    handler.check(CancelReason.TIMEOUT)
    assert look(REPORTED) == 0


def test_services_are_given_until_then(
    runledger_pool: ConnectionPool[Any], start_worker: Any, look: Any
) -> None:
    handler = Asking(lambda _context: True)
    start_worker({"jobs.asks": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.asks", {}))

    assert handler.asked.wait(WAIT_SECONDS)
    assert handler.answers == dict.fromkeys(SERVICES)
    assert look(REPORTED) == 2
