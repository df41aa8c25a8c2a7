"""The pump's connection: rounds under a deadline, and what is not known after it broke."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg

from runledger_core import JobLease
from runledger_postgres.direct import Connection, shut_down
from runledger_postgres.errors import QueryError, QueryUnavailableError, classify_query_error
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    RoundResult,
    UndecodableJob,
    WriteVerdict,
    find_claimable_jobs,
    find_claims,
    find_due_jobs,
    give_back_jobs,
    run_waiting_round,
    run_worker_round,
)

from ..backoff import Outage
from ..engine import EngineConnections, KeptConnection, answer_seconds_of
from ..safe_log import safe_logger
from ._book import LeaseBook
from ._execution import Execution
from ._refused_claims import RefusedPart
from ._settling import Batch

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = safe_logger(__name__)

_WAIT_FOR_BUSY_MS: Final = 50
_OUTCOME_UNKNOWN: Final = "db.outcome_unknown"
_CANCELED: Final = "db.statement_timeout"
# Between two tries of a process that is about to end.
_HURRIED_SECONDS: Final = 0.05


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
        self._answer_seconds = answer_seconds_of(self._deadline_seconds)
        self.claim_cut_offs = 0
        """How many rounds with a claim were cut off, in a row."""
        self._long_use: Connection | None = None
        self._connection = KeptConnection(connections, "pump")
        self._outage = Outage()
        self._lost_at = self._retry_at = 0.0
        self._is_hurried = False
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
        retry_at = self._lost_at + _HURRIED_SECONDS if self._is_hurried else self._retry_at
        return max(0.0, retry_at - time.monotonic())

    def execution(self, job: ClaimedJob, *, is_reported: bool = True) -> Execution:
        """Return the execution of a job that was claimed, or found, last."""
        lease_ends_at = self._claimed_at + self._ttl
        return Execution(job, self._pool, lease_ends_at=lease_ends_at, is_reported=is_reported)

    def round(self, batch: Batch, claim: ClaimRequest | None) -> RoundResult:
        """Run one round, within a third of a lease's length, 1 to 10 seconds.

        Outcomes that were cut off before get twice as long each time, up to two thirds of a lease.

        Raises:
            QueryError: Nothing is stored, unless the outcome is unknown.

        Transaction: one of its own.
        """
        connection = self._open()
        self._claimed_at = time.monotonic()
        try:
            with self._limit(connection, batch, claim):
                result = run_worker_round(
                    connection,
                    successes=batch.successes,
                    failures=batch.failures,
                    claim=claim,
                    in_workflows=batch.is_in_workflows,
                )
        except QueryError as error:
            # Anything else is an answer: nothing was sent, or the server rolled it back.
            if claim is not None and error.code == _OUTCOME_UNKNOWN:
                self._expect_unknown_claims(error)
            raise
        if claim is not None:
            self.claim_cut_offs = 0
        self._outage.ended()
        return result

    def find_refused(self, claim: ClaimRequest, part: RefusedPart) -> list[UUID]:
        """Return the jobs that this part of a claim would change."""
        find = find_due_jobs if part is RefusedPart.FLIP else find_claimable_jobs
        with self._use() as connection:
            return find(connection, claim)

    def waiting_round(self, batch: Batch) -> RoundResult:
        """Store outcomes that were all busy, waiting a little for the first one's row.

        Raises:
            QueryError: As `round`.
        """
        connection = self._open()
        with self._limit(connection, batch):
            return run_waiting_round(
                connection,
                successes=batch.successes,
                failures=batch.failures,
                wait_ms=_WAIT_FOR_BUSY_MS,
                in_workflows=batch.is_in_workflows,
            )

    def give_back(
        self, leases: Sequence[JobLease], *, reason: str, retry_delay_ms: int
    ) -> list[WriteVerdict]:
        """Give claims back that have ended here, so that no attempt is used up.

        Returns:
            A verdict per lease, in input order.

        Raises:
            QueryError: None was given back, unless the outcome is unknown.
        """
        with self._use() as connection:
            return give_back_jobs(connection, leases, reason=reason, retry_delay_ms=retry_delay_ms)

    def has_unknown_claims(self) -> bool:
        """Whether a claim may have committed without our knowing, and it is time to ask."""
        return bool(self._find_at) and self._find_at[0] <= time.monotonic()

    def has_unanswered_claim(self) -> bool:
        """Whether nobody has yet answered if the last claim was committed."""
        return self._is_unanswered

    def find_claims(self, book: LeaseBook) -> tuple[list[ClaimedJob], list[UndecodableJob]]:
        """Return jobs that are leased to us and known to nobody."""
        with self._use() as connection:
            self._claimed_at = time.monotonic()
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
        self._lost_at = time.monotonic()
        self._retry_at = self._lost_at + step.delay_seconds
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def hurry(self) -> None:
        """Leave a server that is away alone for moments only; end a round that has got more time.

        From any thread: the process is about to end.
        """
        self._is_hurried = True
        connection = self._long_use
        if connection is not None:
            shut_down(connection)

    @contextmanager
    def _limit(
        self, connection: Connection, batch: Batch, claim: ClaimRequest | None = None
    ) -> Generator[None]:
        """Give a round its time; if a server that lives cut it off, its outcomes get more."""
        seconds = self._seconds(batch.cut_offs)
        self._long_use = connection if batch.cut_offs else None
        limit = self._connections.limit(connection, seconds, answer_seconds=self._answer_seconds)
        with limit as request:
            try:
                yield
            except QueryError as error:
                if error.code == _CANCELED or request.is_our_delay:
                    self._cut_off(batch, claim, seconds=seconds)
                raise
            else:
                if request.is_sent:
                    # What is busy may be what took so long.
                    batch.cut_off()
            finally:
                self._long_use = None
                request.end()
                if request.is_sent:
                    # It may still come, and must not meet the next round.
                    self.close()

    def _expect_unknown_claims(self, error: QueryError) -> None:
        """Ask for leases of ours that nobody here knows: at once, soon, and once more."""
        # The first answer may come before a delayed server got to our COMMIT: ask again, and once
        # more while the lease would still be ours to keep.
        now = time.monotonic()
        self._is_unanswered = True
        self._find_at = [now, now + 1.0, now + self._ttl / 2]
        _logger.warning("a claim's reply was lost", extra={"error_code": error.code})

    def _seconds(self, cut_offs: int) -> float:
        # No lease can be renewed while a round holds its row: cut off any later, it would be lost.
        longest = max(self._deadline_seconds, self._ttl * 2 / 3)
        return min(self._deadline_seconds * 2 ** min(cut_offs, 10), longest)

    def _cut_off(self, batch: Batch, claim: ClaimRequest | None, *, seconds: float) -> None:
        batch.cut_off()
        if claim is not None:
            self.claim_cut_offs += 1
        _logger.warning(
            "a round was cut off; its outcomes are stored one by one",
            extra={"outcomes": len(batch.outcomes), "seconds": seconds},
        )

    def _open(self) -> Connection:
        try:
            return self._connection.open()
        except psycopg.Error as error:
            raise classify_query_error(error) from error
        except Exception as error:  # `configure` and callables of the user's
            raise QueryUnavailableError(
                "db.unavailable", "a connection could not be made with the pool's settings"
            ) from error

    @contextmanager
    def _use(self) -> Generator[Connection]:
        connection = self._open()
        with self._connections.use(connection, self._deadline_seconds):
            yield connection
