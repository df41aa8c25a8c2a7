"""The pump's connection: rounds under a deadline, and what is not known after it broke."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg

from runledger_core import JobLease
from runledger_postgres.errors import QueryError, QueryUnavailableError, classify_query_error
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    FailureEntry,
    RoundResult,
    fail_jobs,
    find_claims,
    release_jobs,
    run_waiting_round,
    run_worker_round,
)

from ..backoff import Outage
from ..engine import Connection, EngineConnections
from ._book import LeaseBook
from ._execution import Execution
from ._settling import Batch

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = logging.getLogger(__name__)

_WAIT_FOR_BUSY_MS: Final = 50
OUTCOME_UNKNOWN: Final = "db.outcome_unknown"


class PumpLink:
    """Runs the pump's statements on a connection of its own, and reconnects with back-off."""

    def __init__(
        self,
        connections: EngineConnections,
        pool: ConnectionPool[Any],
        *,
        worker_id: str,
        lease_ttl_seconds: int,
    ) -> None:
        """Connect at first use."""
        self.worker_id = worker_id
        self._connections = connections
        self._pool = pool
        self._ttl = lease_ttl_seconds
        self._deadline_seconds = max(1.0, min(10.0, lease_ttl_seconds / 3))
        self._connection: Connection | None = None
        self._outage = Outage()
        self._retry_at = 0.0
        self._claimed_at = 0.0
        # When to ask for claims of ours that nobody knows; empty when all are known.
        self._find_at: list[float] = []
        self._is_unanswered = False

    def is_down(self) -> bool:
        """Whether the next try has to wait."""
        return self.seconds_until_retry() > 0

    def is_recovering(self) -> bool:
        """Whether no round has succeeded since the connection was lost."""
        return self._outage.is_going_on

    def seconds_until_retry(self) -> float:
        """Return how long to leave the database alone, 0 or more."""
        return max(0.0, self._retry_at - time.monotonic())

    def execution(self, job: ClaimedJob) -> Execution:
        """Return the execution of a job claimed in the last round."""
        return Execution(job, self._pool, lease_ends_at=self._claimed_at + self._ttl)

    def round(self, batch: Batch, claim: ClaimRequest | None) -> RoundResult:
        """Run one round.

        Raises:
            QueryError: Nothing is stored, unless the outcome is unknown.
        """
        connection = self._open()
        self._claimed_at = time.monotonic()
        try:
            with self._connections.deadline(connection, self._deadline_seconds):
                result = run_worker_round(
                    connection, successes=batch.successes, failures=batch.failures, claim=claim
                )
        except QueryError as error:
            # Anything else is an answer: nothing was sent, or the server rolled it back.
            if claim is not None and error.code == OUTCOME_UNKNOWN:
                self.expect_unknown_claims(error)
            raise
        self._outage.ended()
        return result

    def waiting_round(self, batch: Batch) -> RoundResult:
        """Store outcomes that were all busy, waiting a little for the first one's row."""
        connection = self._open()
        with self._connections.deadline(connection, self._deadline_seconds):
            return run_waiting_round(
                connection,
                successes=batch.successes,
                failures=batch.failures,
                wait_ms=_WAIT_FOR_BUSY_MS,
            )

    def release(self, leases: Sequence[JobLease], *, reason: str) -> None:
        """Give claims back that were not entered."""
        connection = self._open()
        with self._connections.deadline(connection, self._deadline_seconds):
            release_jobs(connection, leases, reason=reason)

    def fail(self, entries: Sequence[FailureEntry]) -> None:
        """Store failures of jobs that have no execution."""
        connection = self._open()
        with self._connections.deadline(connection, self._deadline_seconds):
            fail_jobs(connection, entries)

    def has_unknown_claims(self) -> bool:
        """Whether a claim may have committed without our knowing, and it is time to ask."""
        return bool(self._find_at) and self._find_at[0] <= time.monotonic()

    def has_unanswered_claim(self) -> bool:
        """Whether nobody has yet answered if the last claim was committed."""
        return self._is_unanswered

    def find_claims(self, book: LeaseBook) -> tuple[list[ClaimedJob], list[FailureEntry]]:
        """Return jobs that are leased to us and known to nobody."""
        connection = self._open()
        self._claimed_at = time.monotonic()
        with self._connections.deadline(connection, self._deadline_seconds):
            found = find_claims(connection, worker_id=self.worker_id, known=book.leases())
        self._is_unanswered = False
        now = time.monotonic()
        self._find_at = [at for at in self._find_at if at > now]
        return found

    def lost(self, error: QueryError) -> None:
        """Take a fresh connection, after a wait that grows with each failure."""
        step = self._outage.failed()
        if step.is_worth_logging:
            _logger.log(
                logging.WARNING if error.is_transient else logging.ERROR,
                "the worker waits for the database: %s",
                error,
                extra={"failures": step.failures, "sqlstate": error.sqlstate},
            )
        self._retry_at = time.monotonic() + step.delay_seconds
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def expect_unknown_claims(self, error: QueryError) -> None:
        """Ask for leases of ours that nobody here knows: at once, soon, and once more."""
        # The first answer may come before a delayed server got to our COMMIT: ask again, and once
        # more while the lease would still be ours to keep.
        now = time.monotonic()
        self._is_unanswered = True
        self._find_at = [now, now + 1.0, now + self._ttl / 2]
        _logger.warning("a claim's reply was lost", extra={"code": error.code})

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = self._connections.connect("pump")
            except psycopg.Error as error:
                raise classify_query_error(error) from error
            except Exception as error:  # `configure` and callables of the user's
                raise QueryUnavailableError(
                    "db.unavailable", "a connection could not be made with the pool's settings"
                ) from error
        return self._connection
