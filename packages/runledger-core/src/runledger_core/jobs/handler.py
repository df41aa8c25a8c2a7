"""What handlers implement, and what they receive."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from runledger_core.identifiers import JobType, StepKey, WorkerId
from runledger_core.jobs.outcome import JobCompletion, JobFailure
from runledger_core.jobs.status import JobDeadLetterReason, JobStage
from runledger_core.jsonvalue import UNSET, JsonInput, JsonValue, Unset

if TYPE_CHECKING:
    # Only a name for type checkers: this distribution needs nothing but the standard library.
    import psycopg

_NO_OUTPUTS: Final[Mapping[str, JsonValue]] = MappingProxyType({})

HandlerResult: TypeAlias = JobCompletion | JobFailure | None
"""What a handler returns; None is a success without output."""


class CancelReason(StrEnum):
    """Tell a handler why it should stop."""

    TIMEOUT = "TIMEOUT"
    LEASE_LOST = "LEASE_LOST"
    CANCELED = "CANCELED"
    SHUTDOWN = "SHUTDOWN"


class JobCancelled(Exception):  # noqa: N818  # a signal like CancelledError, not a fault
    """Leave a handler that has been told to stop.

    Attributes:
        reason: Why it was told.
    """

    def __init__(self, reason: CancelReason) -> None:
        """Build the signal."""
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        """Return a sentence with the reason."""
        return f"the handler was told to stop: {self.reason}"


@dataclass(frozen=True, slots=True)
class JobDeadLetterInfo:
    """Tell a handler about the job that was given up.

    Attributes:
        failure: Failure of the last attempt.
        reason: Why there is no other attempt.
        max_attempts: Attempts the job was allowed.
    """

    failure: JobFailure
    reason: JobDeadLetterReason
    _: KW_ONLY
    max_attempts: int


class JobContext(ABC):
    """Give a handler its job's data and services; the runtime implements it.

    When the attempt times out, loses its lease, is cancelled, or the worker is stopped for good,
    `cancelled` is set and work on `connection()` is cancelled. An `async def` handler gets a
    `CancelledError` then; a thread cannot be stopped from outside. A handler that goes on keeps its
    thread, while its later reports are refused and its job may run elsewhere.

    `progress`, `log` and `connection` raise `JobCancelled` once the handler should stop. They and
    `wait` block their thread, so that on an event loop of the worker they are refused with
    `job.blocks_event_loop`: use `await asyncio.to_thread(context.progress, ...)`. The same is true
    of `step_key` and `prerequisite_outputs` until they were read.

    Attributes:
        job_id: The job.
        job_type: Its type.
        run_number: Run of the job, from 1; a requeue starts the next.
        attempt: Attempt of this run, from 1.
        max_attempts: Attempts the job is allowed.
        organization_id: Owner of the job; None for a global job.
        worker_id: The worker that runs it.
        checkpoint: What an earlier attempt stored, None if nothing.
        deadline: End of this attempt's time in UTC, estimated by the local clock.
        trace_context: What the enqueue gave as such; whatever the row holds, None if nothing.
        workflow_run_id: Run whose step the job is; None for a job that is no workflow's.
            Dead-letter hooks are not told of workflows.
    """

    job_id: UUID
    job_type: JobType
    run_number: int
    attempt: int
    max_attempts: int
    organization_id: UUID | None
    worker_id: WorkerId
    checkpoint: JsonValue
    deadline: datetime
    trace_context: str | None = None
    workflow_run_id: UUID | None = None

    @property
    def step_key(self) -> StepKey | None:
        """Return the key of the step that the job is; None for a job that is no workflow's.

        The first look is one query, which reads no outputs. Those bring the key with them.

        Raises:
            JobCancelled: The handler should stop.
            ValidationError: `job.blocks_event_loop`.
        """
        return None

    @property
    def prerequisite_outputs(self) -> Mapping[str, JsonValue]:
        """Return what the steps before this one gave, by their keys, for it to read.

        Those that succeeded are in it, with None if they gave nothing; those that failed or were
        cancelled are not. Only direct prerequisites are; empty for a job that is no workflow's.

        Raises:
            JobCancelled: The handler should stop.
            ValidationError: `job.blocks_event_loop`.
            InternalError: `job.undecodable_row` if Python cannot read one of them.
        """
        return _NO_OUTPUTS

    @property
    @abstractmethod
    def cancelled(self) -> Event:
        """Return the event that is set when the handler should stop."""

    @property
    @abstractmethod
    def cancel_reason(self) -> CancelReason | None:
        """Return why the handler should stop; None while it should not."""

    @abstractmethod
    def remaining(self) -> float:
        """Return the seconds left of this attempt's time, 0 if it is over."""

    @abstractmethod
    def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        *,
        stage: JobStage | None = None,
        checkpoint: JsonInput | Unset = UNSET,
    ) -> None:
        """Store progress; what is left out keeps what is stored.

        Args:
            done: Units done, 0 or more.
            total: Units in all, not fewer than done.
            stage: Stage shown from now on.
            checkpoint: State that the next attempt receives.

        Raises:
            ValidationError: An `input.*` code, or `job.invalid_progress` if it is beyond its total
                once merged with what is stored; nothing is stored then.
            ForbiddenError: `job.lease_owner_mismatch` if the lease is lost.
            JobCancelled: The handler should stop.
        """

    @abstractmethod
    def log(self, level: str, message: str, /, **fields: JsonInput) -> None:
        """Add a line to the job's stored log; it is dropped if the lease is lost.

        Args:
            level: Such as `INFO`; free text of at most `Limits.identifier_characters`.
            message: Text of the line, cut to `Limits.error_message_bytes`.
            **fields: Values stored beside the text, at most `Limits.log_payload_bytes` of JSON.

        Raises:
            ValidationError: An `input.*` code; nothing is stored then.
            JobCancelled: The handler should stop.
        """

    @abstractmethod
    def connection(self) -> AbstractContextManager["psycopg.Connection"]:
        """Lend a connection of the application's pool, of the kind that pool makes.

        What it did is committed after the block, and rolled back if the block raises. A running
        statement is cancelled when the handler should stop. Settings are reset on return.

        Raises:
            JobCancelled: The handler should stop.
        """

    def raise_if_cancelled(self) -> None:
        """Leave the handler if it should stop.

        Raises:
            JobCancelled: The handler should stop.
        """
        if self.cancelled.is_set():
            raise JobCancelled(self.cancel_reason or CancelReason.CANCELED)

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the handler should stop.

        Args:
            seconds: Longest sleep.

        Returns:
            True if the handler should stop.
        """
        return self.cancelled.wait(seconds)


@runtime_checkable
class JobHandler(Protocol):
    """Run the jobs of one type."""

    @property
    def job_type(self) -> str:
        """Return the type; a class attribute will do."""
        ...

    def execute(
        self, context: JobContext, payload: JsonValue
    ) -> HandlerResult | Awaitable[HandlerResult]:
        """Run one attempt: a `def` on a thread of the worker's, an `async def` on its event loop.

        Returns:
            None or a completion for success, a failure otherwise; a failure may be raised too.
        """
        ...


@runtime_checkable
class DeadLetterHandler(Protocol):
    """Be told when a job is given up; a `JobHandler` may also be one."""

    def on_dead_letter(
        self, context: JobContext, payload: JsonValue, info: JobDeadLetterInfo
    ) -> Awaitable[None] | None:
        """React after the dead letter is stored; what it raises changes nothing."""
        ...
