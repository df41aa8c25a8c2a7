"""For tests: run what is due in the calling thread, without a Supervisor."""

from __future__ import annotations

import contextvars
import time
import uuid
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import (
    JobFailure,
    UnavailableError,
    ValidationError,
    check_bool,
    check_int,
    codes,
)
from runledger_core.limits import INT32_MAX
from runledger_postgres import classify_query_error
from runledger_postgres.direct import Connection
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    FailureDisposition,
    RoundResult,
    UndecodableJob,
    WriteVerdict,
    run_worker_round,
)

from .catalog import JobCatalog
from .dead_letters import DeadLetterHooks
from .engine import EngineConnections
from .registry import AsyncHandler, JobRegistry
from .worker._attempt import Handler, run_attempt, run_attempt_async
from .worker._book import LeaseBook
from .worker._execution import Execution, Outcome
from .worker._settling import Batch, Settling

# Longer than any test: nobody renews it.
_LEASE_SECONDS: Final = 3_600
_BUSY_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.002
# A retry at once is due a millisecond later.
_AT_ONCE_MS: Final = 1
_AT_ONCE_SECONDS: Final = 0.1


class DrainDisposition(StrEnum):
    """Tell what became of one attempt."""

    SUCCEEDED = "SUCCEEDED"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    DEAD_LETTERED = "DEAD_LETTERED"
    REFUSED = "REFUSED"
    """Its lease was lost: the job was canceled while it ran."""


@dataclass(frozen=True, slots=True)
class DrainedAttempt:
    """One attempt that a drain ran.

    Attributes:
        job_id: The job.
        job_type: Its type.
        attempt: Number of the attempt in its run, from 1.
        disposition: What became of it.
        failure: Why it failed; None if it succeeded.
    """

    job_id: UUID
    job_type: str
    _: KW_ONLY
    attempt: int
    disposition: DrainDisposition
    failure: JobFailure | None = None


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain did.

    Attributes:
        attempts: The attempts that it ran, in that order.
    """

    attempts: tuple[DrainedAttempt, ...]

    @property
    def succeeded(self) -> int:
        """Attempts that succeeded."""
        return self._count(DrainDisposition.SUCCEEDED)

    @property
    def retry_scheduled(self) -> int:
        """Attempts that failed and will be tried again."""
        return self._count(DrainDisposition.RETRY_SCHEDULED)

    @property
    def dead_lettered(self) -> int:
        """Attempts after which the job was given up."""
        return self._count(DrainDisposition.DEAD_LETTERED)

    @property
    def refused(self) -> int:
        """Attempts whose outcome no longer counted."""
        return self._count(DrainDisposition.REFUSED)

    def _count(self, disposition: DrainDisposition) -> int:
        return sum(attempt.disposition is disposition for attempt in self.attempts)


def drain(
    pool: ConnectionPool[Any],
    catalog: JobCatalog | JobRegistry,
    *,
    limit: int | None = None,
    retry_at_once: bool = False,
) -> DrainReport:
    """Run everything that is due, one job after the other, and return when that is done.

    Handlers run in the calling thread, those that are `async def` on an event loop beside it. Jobs
    are claimed, run and stored as a worker does it, those that handlers enqueue meanwhile
    included; jobs that are not due yet stay. Handlers are not interrupted: one that overruns its
    time counts as timed out when it returns. A catalog is not frozen and its definitions are not
    synced.

    Args:
        pool: Lends connections to handlers; the drain has one of its own, made with its settings.
        catalog: Only jobs of its types are run.
        limit: Most attempts, 1 or more; None for no bound, which a handler that enqueues its own
            type for ever needs.
        retry_at_once: Try failed attempts again in this drain, instead of after their delay.

    Raises:
        UnavailableError: `db.lock_timeout` if another transaction keeps a claimed job locked;
            `db.unavailable` if the database is away, or another `db.*` code.
        ValidationError: An `input.*` code that names the argument.
    """
    _require_kinds(pool, catalog)
    check_bool(retry_at_once, field="retry_at_once")
    if limit is not None:
        check_int(limit, field="limit", minimum=1, maximum=INT32_MAX)
    registry = catalog.to_registry() if isinstance(catalog, JobCatalog) else catalog
    connections = EngineConnections(pool)
    try:
        with registry.event_loop.held(), closing(_connect(connections)) as connection:
            return _Drain(pool, registry, connection, retry_at_once=retry_at_once).run(limit)
    finally:
        connections.close()


def _require_kinds(pool: object, catalog: object) -> None:
    if not isinstance(pool, ConnectionPool):
        raise ValidationError(
            codes.INPUT_WRONG_TYPE, "pool must be a pool of psycopg connections", field="pool"
        )
    if not isinstance(catalog, JobCatalog | JobRegistry):
        raise ValidationError(
            codes.INPUT_WRONG_TYPE, "catalog must be a JobCatalog or a JobRegistry", field="catalog"
        )


def _connect(connections: EngineConnections) -> Connection:
    try:
        return connections.connect("drain")
    except psycopg.Error as error:
        raise classify_query_error(error) from error
    except UnicodeError as error:
        # Python encodes the host; what no name can be ends there.
        unreachable = psycopg.OperationalError("the host name cannot be encoded")
        raise classify_query_error(unreachable) from error


class _Drain:
    def __init__(
        self,
        pool: ConnectionPool[Any],
        registry: JobRegistry,
        connection: Connection,
        *,
        retry_at_once: bool,
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._connection = connection
        self._retry_at_once = retry_at_once
        self._book = LeaseBook()
        self._hooks = DeadLetterHooks(registry, pool)
        self._settling = Settling(registry, self._book, on_dead_letter=self._hooks.submit)
        self._worker_id = f"drain-{uuid.uuid4().hex}"
        self._look_until = 0.0

    def run(self, limit: int | None) -> DrainReport:
        attempts: list[DrainedAttempt] = []
        while limit is None or len(attempts) < limit:
            job = self._next_job()
            if job is None:
                break
            attempts.append(self._run_job(job))
        self._hooks.finish()
        return DrainReport(tuple(attempts))

    def _next_job(self) -> ClaimedJob | None:
        job_types = self._registry.registered_types()
        while job_types:
            # One at a time: what a handler enqueues may be more urgent than what is queued.
            claim = ClaimRequest(
                self._worker_id, job_types, limit=1, window=2, lease_ttl_seconds=_LEASE_SECONDS
            )
            result = run_worker_round(self._connection, claim=claim)
            if result.claimed:
                return result.claimed[0]
            for entry in result.undecodable:
                self._fail(entry)
            if result.undecodable:
                continue
            if time.monotonic() >= self._look_until:
                return None
            time.sleep(_LOOK_SECONDS)
        return None

    def _fail(self, entry: UndecodableJob) -> None:
        lease_ends_at = time.monotonic() + _LEASE_SECONDS
        execution = Execution(entry.job, self._pool, lease_ends_at=lease_ends_at, is_reported=False)
        self._book.add(execution)
        self._store(Outcome(execution, entry.failure))

    def _run_job(self, job: ClaimedJob) -> DrainedAttempt:
        execution = Execution(job, self._pool, lease_ends_at=time.monotonic() + _LEASE_SECONDS)
        self._book.add(execution)
        handler = self._registry.get(job.job_type)
        outcome = None
        if handler is not None:
            outcome = _outcome(execution, handler.execute)
        if outcome is None:
            self._book.close(execution)
            disposition, failure = DrainDisposition.REFUSED, None
        else:
            disposition, outcome = self._store(outcome)
            failure = outcome.result if isinstance(outcome.result, JobFailure) else None
        return DrainedAttempt(
            job.id,
            job.job_type,
            attempt=job.lease.attempt,
            disposition=disposition,
            failure=failure,
        )

    def _store(self, outcome: Outcome) -> tuple[DrainDisposition, Outcome]:
        give_up_at = time.monotonic() + _BUSY_SECONDS
        while True:
            batch = self._batch(outcome)
            result = run_worker_round(
                self._connection,
                successes=batch.successes,
                failures=batch.failures,
                in_workflows=batch.is_in_workflows,
            )
            left = self._settling.settle(batch, result.successes, result.failures)
            if not left.changed and not left.busy:
                return self._disposition(result), outcome
            if left.busy and time.monotonic() >= give_up_at:
                raise UnavailableError(
                    "db.lock_timeout",
                    "another transaction keeps the job locked; end it before the drain",
                )
            if left.busy:
                time.sleep(_LOOK_SECONDS)
            (outcome,) = (*left.changed, *left.busy)

    def _batch(self, outcome: Outcome) -> Batch:
        batch = self._settling.batch([outcome])
        if not self._retry_at_once:
            return batch
        failures = [replace(entry, retry_delay_ms=_AT_ONCE_MS) for entry in batch.failures]
        return replace(batch, failures=failures)

    def _disposition(self, result: RoundResult) -> DrainDisposition:
        stored = {WriteVerdict.STORED, WriteVerdict.REPEATED}
        if any(success.verdict in stored for success in result.successes):
            return DrainDisposition.SUCCEEDED
        for failure in result.failures:
            if failure.verdict in stored and failure.disposition is not None:
                if failure.disposition is FailureDisposition.DEAD_LETTERED:
                    return DrainDisposition.DEAD_LETTERED
                if self._retry_at_once:
                    self._look_until = time.monotonic() + _AT_ONCE_SECONDS
                return DrainDisposition.RETRY_SCHEDULED
        return DrainDisposition.REFUSED


def _outcome(execution: Execution, handler: Handler) -> Outcome | None:
    # As in a worker: context variables that a handler sets end with it.
    if isinstance(handler, AsyncHandler):
        _, outcome = handler.event_loop.run(run_attempt_async(execution, handler))
    else:
        _, outcome = contextvars.copy_context().run(run_attempt, execution, handler)
    return outcome
