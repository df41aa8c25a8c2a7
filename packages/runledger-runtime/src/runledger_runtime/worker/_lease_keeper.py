"""The lease keeper: one beat for all leases of the process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from runledger_core import CancelReason
from runledger_postgres import workers
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import HeartbeatVerdict, heartbeat_jobs

from .._version import __version__
from ..backoff import Outage
from ..engine import EngineConnections, KeptConnection
from ..failure_log import failure_fields
from ..safe_log import safe_logger
from ._book import LeaseBook
from ._execution import Execution, ExecutionState
from ._helper import Helper

_logger = safe_logger(__name__)

_LOST: Final = frozenset({"db.unavailable", "db.outcome_unknown"})
_RECORD_WAIT_MS: Final = 250
_LEAST_USE_SECONDS: Final = 1.0
# `finish()` waits for the last of these.
_LONGEST_RECORD_SECONDS: Final = 4.0


class LeaseKeeper(Helper):
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
        state: Callable[[], workers.WorkerState],
    ) -> None:
        """Prepare the thread; `begin()` starts to beat, and each beat asks for the state."""
        super().__init__("lease-keeper")
        self._book = book
        self._worker_id = worker_id
        self._job_types = list(job_types)
        self._concurrency = concurrency
        self._ttl = lease_ttl_seconds
        self._beat_seconds = max(_LEAST_USE_SECONDS, lease_ttl_seconds / 3)
        # Far less: the beats must not wait for a row that is for eyes only.
        self._record_seconds = min(
            _LONGEST_RECORD_SECONDS, max(_LEAST_USE_SECONDS, lease_ttl_seconds / 10)
        )
        self._state = state
        self._is_finished = False
        self._wake = threading.Event()
        self._connection = KeptConnection(connections, "lease keeper")
        self._outage = Outage()
        self._unrecorded = Outage()

    def finish(self) -> None:
        """Stop beating and remove the worker's row."""
        self._is_finished = True
        self._wake.set()
        self.join(timeout=5.0)

    def beat_soon(self) -> None:
        """Beat now, from any thread: something may have happened to a lease."""
        self._wake.set()

    def work(self) -> None:
        """Beat until finished; never ends by an error."""
        wait = 0.0
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            if self._is_finished:
                break
            try:
                wait = self._turn()
            except Exception as error:  # noqa: BLE001  # `configure` and callables of the user's, too
                wait = self._failed(error)
        with suppress(Exception), self._connection.use(self._record_seconds) as connection:
            workers.remove_worker(connection, self._worker_id)
        self._connection.close()

    def _turn(self) -> float:
        """Beat, and show the worker; return how long to wait for the next beat."""
        is_any_busy = self._beat(self._book.executions())
        beaten_at = time.monotonic()
        # Opened here: without a connection the next beat would fail, too.
        self._connection.open()
        self._record()
        self._outage.ended()
        pause = self._ttl / 30 if is_any_busy else self._ttl / 3
        return max(0.0, beaten_at + pause - time.monotonic())

    def _failed(self, error: Exception) -> float:
        """Tell whose lease is gone; return how long to wait for the next beat."""
        self._connection.close()
        step = self._outage.failed()
        self._lose_expired()
        if step.is_worth_logging:
            _logger.warning(
                "heartbeats wait for the database",
                extra=failure_fields(error) | {"failures": step.failures},
            )
        # A lease is short: try often enough to save it.
        return min(step.delay_seconds, self._ttl / 10)

    def _beat(self, executions: list[Execution]) -> bool:
        """Renew leases; tell whether one was busy and must come again soon."""
        if not executions:
            return False
        asked_at = time.monotonic()
        try:
            verdicts = self._renew(executions)
        except QueryError as error:
            if error.is_transient or len(executions) == 1:
                raise
            # One row that refuses must not cost the others their leases.
            return self._beat_apart(executions)
        is_any_busy = False
        for execution, verdict in zip(executions, verdicts, strict=True):
            match verdict:
                case HeartbeatVerdict.RENEWED:
                    execution.lease_ends_at = asked_at + self._ttl
                case HeartbeatVerdict.BUSY:
                    is_any_busy = True
                case HeartbeatVerdict.CANCELED:
                    _cancel(execution, CancelReason.CANCELED)
                case HeartbeatVerdict.LOST:
                    self._lose(execution)
        return is_any_busy

    def _beat_apart(self, executions: list[Execution]) -> bool:
        is_any_busy = False
        for execution in executions:
            try:
                is_any_busy |= self._beat([execution])
            except QueryError as error:
                if error.is_transient:
                    raise
                _logger.error(  # noqa: TRY400  # the driver's text may hold values
                    "a lease cannot be renewed",
                    extra={"job_id": str(execution.job.id), "error_code": error.code},
                )
        return is_any_busy

    def _renew(self, executions: list[Execution]) -> list[HeartbeatVerdict]:
        with self._connection.use(self._beat_seconds) as connection:
            return heartbeat_jobs(
                connection,
                [execution.job.lease for execution in executions],
                lease_ttl_seconds=self._ttl,
            )

    def _record(self) -> None:
        """Show the worker; that this fails while the link lives is no matter of the beats."""
        report = workers.WorkerReport(
            self._worker_id,
            socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            job_types=self._job_types,
            concurrency=self._concurrency,
            state=self._state(),
        )
        try:
            with self._connection.use(self._record_seconds) as connection:
                workers.record_worker(connection, report, lock_timeout_ms=_RECORD_WAIT_MS)
        except QueryError as error:
            if error.code in _LOST:
                raise
            step = self._unrecorded.failed()
            if step.is_worth_logging:
                _logger.warning(
                    "this worker is not shown in job_workers",
                    extra={"error_code": error.code, "failures": step.failures},
                )
        else:
            self._unrecorded.ended()

    def _lose_expired(self) -> None:
        now = time.monotonic()
        for execution in self._book.executions():
            if execution.lease_ends_at <= now:
                self._lose(execution)

    def _lose(self, execution: Execution) -> None:
        # An ended attempt whose outcome was stored meanwhile looks lost too.
        if execution.state is not ExecutionState.RUNNING:
            return
        _cancel(execution, CancelReason.LEASE_LOST)
        _logger.warning("lease lost", extra={"job_id": str(execution.job.id)})


def _cancel(execution: Execution, reason: CancelReason) -> None:
    # It takes a thread to cancel what runs on a lent connection; where there is none, the other
    # leases must be kept all the same.
    with suppress(RuntimeError):
        execution.cancel(reason)
