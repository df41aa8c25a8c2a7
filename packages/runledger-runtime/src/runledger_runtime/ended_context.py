"""What a dead-letter hook gets of its job, whose attempt is over."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from runledger_core import (
    UNSET,
    CancelReason,
    JobCancelled,
    JobContext,
    JobLease,
    JobStage,
    JobType,
    JsonInput,
    JsonValue,
    Unset,
    WorkerId,
)

from .event_loop import refuse_on_event_loop
from .loan import Lending

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class HookLending:
    """Lends connections to one hook, until its time is over."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        """Lend of this pool."""
        self.is_over: threading.Event = threading.Event()
        self._lending = Lending(pool)

    def end(self) -> None:
        """Lend nothing more, and cancel what runs on lent connections."""
        self.is_over.set()
        self._lending.cancel()

    def lend(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Lend a connection, reset on return."""
        self._refuse_if_over()
        return self._lending.lend(refuse=self._refuse_if_over)

    def _refuse_if_over(self) -> None:
        if self.is_over.is_set():
            raise JobCancelled(CancelReason.TIMEOUT)


class EndedJobContext(JobContext):
    """The context of a job that has ended: its data, and connections of the pool."""

    def __init__(
        self,
        lease: JobLease,
        job_type: str,
        *,
        organization_id: UUID | None,
        max_attempts: int,
        checkpoint: JsonValue,
        lending: HookLending,
    ) -> None:
        """Take the job's data."""
        self._lending = lending
        self.job_id: UUID = lease.job_id
        self.job_type: JobType = JobType(job_type)
        self.run_number: int = lease.run_number
        self.attempt: int = lease.attempt
        self.max_attempts: int = max_attempts
        self.organization_id: UUID | None = organization_id
        self.worker_id: WorkerId = WorkerId(lease.worker_id)
        self.checkpoint: JsonValue = checkpoint
        self.deadline: datetime = datetime.now(UTC)

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the hook's time is over."""
        return self._lending.is_over

    @property
    def cancel_reason(self) -> CancelReason | None:
        """TIMEOUT when the hook's time is over, None before."""
        return CancelReason.TIMEOUT if self._lending.is_over.is_set() else None

    def remaining(self) -> float:
        """Return 0: the attempt is over."""
        return 0.0

    def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        *,
        stage: JobStage | None = None,
        checkpoint: JsonInput | Unset = UNSET,
    ) -> None:
        """Refuse: there is no attempt to report on.

        Raises:
            JobCancelled: Always.
        """
        del done, total, stage, checkpoint
        raise JobCancelled(CancelReason.LEASE_LOST)

    def log(self, level: str, message: str, /, **fields: JsonInput) -> None:
        """Refuse: there is no attempt to log for.

        Raises:
            JobCancelled: Always.
        """
        del level, message, fields
        raise JobCancelled(CancelReason.LEASE_LOST)

    @contextmanager
    def connection(self) -> Generator[psycopg.Connection[Any]]:
        """Lend a connection of the user's pool, cancelled with the hook, reset on return.

        Raises:
            JobCancelled: The hook's time is over.
        """
        refuse_on_event_loop()
        with self._lending.lend() as connection:
            yield connection
