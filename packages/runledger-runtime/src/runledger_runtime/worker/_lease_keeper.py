"""The lease keeper: one beat for all leases of the process."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from runledger_core import CancelReason, RunledgerError
from runledger_postgres import workers
from runledger_postgres.lifecycle import HeartbeatVerdict, heartbeat_jobs

from .._version import __version__
from ..backoff import Outage
from ..engine import Connection, EngineConnections
from ._book import LeaseBook
from ._execution import Execution, ExecutionState

logger = logging.getLogger(__name__)


class LeaseKeeper(threading.Thread):
    """Renews every lease each third of its TTL, and shows the worker in `job_workers`.

    A beat that failed is tried again with back-off; one whose row was busy comes again after a
    thirtieth of the TTL. A handler is told only when its lease is truly gone.
    """

    def __init__(
        self,
        book: LeaseBook,
        connections: EngineConnections,
        *,
        worker_id: str,
        job_types: Sequence[str],
        concurrency: int,
        lease_ttl_seconds: int,
    ) -> None:
        """Prepare the thread; `start()` begins to beat."""
        super().__init__(name="runledger-lease-keeper", daemon=True)
        self._book = book
        self._connections = connections
        self._worker_id = worker_id
        self._job_types = list(job_types)
        self._concurrency = concurrency
        self._ttl = lease_ttl_seconds
        self._finished = threading.Event()
        self._connection: Connection | None = None
        self.state = workers.WorkerState.RUNNING

    def finish(self) -> None:
        """Stop beating and remove the worker's row."""
        self._finished.set()
        self.join(timeout=5.0)

    def run(self) -> None:
        """Beat until finished; never ends by an error."""
        wait = 0.0
        outage = Outage()
        while not self._finished.wait(wait):
            try:
                busy = self._beat(self._book.executions())
                self._record()
            except (RunledgerError, psycopg.Error):
                self._drop_connection()
                step = outage.failed()
                # A lease is short: try often enough to save it.
                wait = min(step.delay_seconds, self._ttl / 10)
                if step.is_worth_logging:
                    logger.warning(
                        "heartbeats wait for the database", extra={"failures": step.failures}
                    )
                self._tell_expired()
                continue
            outage.ended()
            wait = self._ttl / 30 if busy else self._ttl / 3
        with suppress(RunledgerError, psycopg.Error):
            workers.remove_worker(self._open(), self._worker_id)
        self._drop_connection()

    def _beat(self, executions: list[Execution]) -> bool:
        """Renew leases; tell whether one was busy and must come again soon."""
        if not executions:
            return False
        asked_at = time.monotonic()
        connection = self._open()
        with self._connections.deadline(connection, max(1.0, self._ttl / 3)):
            verdicts = heartbeat_jobs(
                connection,
                [execution.job.lease for execution in executions],
                lease_ttl_seconds=self._ttl,
            )
        busy = False
        for execution, verdict in zip(executions, verdicts, strict=True):
            match verdict:
                case HeartbeatVerdict.RENEWED:
                    execution.lease_ends_at = asked_at + self._ttl
                case HeartbeatVerdict.BUSY:
                    busy = True
                case HeartbeatVerdict.CANCELED:
                    execution.cancel(CancelReason.CANCELED)
                case HeartbeatVerdict.LOST:
                    self._lose(execution)
        return busy

    def _record(self) -> None:
        connection = self._open()
        with self._connections.deadline(connection, max(1.0, self._ttl / 3)):
            workers.record_worker(
                connection,
                workers.WorkerReport(
                    self._worker_id,
                    socket.gethostname(),
                    pid=os.getpid(),
                    version=__version__,
                    job_types=self._job_types,
                    concurrency=self._concurrency,
                    state=self.state,
                ),
            )

    def _tell_expired(self) -> None:
        now = time.monotonic()
        for execution in self._book.executions():
            if execution.lease_ends_at <= now:
                self._lose(execution)

    def _lose(self, execution: Execution) -> None:
        # An ended attempt whose outcome was stored meanwhile looks lost too.
        if execution.state is ExecutionState.RUNNING:
            logger.warning("lease lost", extra={"job_id": str(execution.job.id)})
            execution.cancel(CancelReason.LEASE_LOST)

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connections.connect("lease keeper")
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
