"""What observers are told."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from runledger_core import JobDeadLetterReason, JobFailure


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """The attempt that an event is about.

    Attributes:
        job_id: The job.
        job_type: Its type.
        organization_id: Owner of the job; None for a global job.
        run_number: Run of the job, from 1; a requeue starts the next.
        attempt: Attempt of this run, from 1.
        max_attempts: Attempts the job is allowed.
        worker_id: The worker that runs it, or ran it when its lease ended.
    """

    job_id: UUID
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    run_number: int
    attempt: int
    max_attempts: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """Another attempt was stored.

    Attributes:
        delay_ms: Its stored delay in milliseconds.
        next_run_at: When it is due, by the database clock.
    """

    delay_ms: int
    next_run_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The job was given up.

    Attributes:
        reason: Why there is no other attempt.
    """

    reason: JobDeadLetterReason


@dataclass(frozen=True, slots=True)
class UnknownDisposition:
    """What was stored could not be told, or is of a later version."""


JobFailureDisposition: TypeAlias = RetryScheduled | DeadLettered | UnknownDisposition
"""What a stored failure led to."""

JobLeaseReapedDisposition: TypeAlias = RetryScheduled | DeadLettered | UnknownDisposition
"""What the end of an expired lease led to."""


def disposition_of(
    reason: JobDeadLetterReason | None, retry_delay_ms: int | None, next_run_at: datetime | None
) -> RetryScheduled | DeadLettered | UnknownDisposition:
    """Return what a stored end led to: a dead letter if it has a reason, else a retry."""
    if reason is not None:
        return DeadLettered(reason)
    if retry_delay_ms is not None and next_run_at is not None:
        return RetryScheduled(retry_delay_ms, next_run_at)
    return UnknownDisposition()


class JobCompletionPersistenceOperation(StrEnum):
    """Tell what could not be stored."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"


@dataclass(frozen=True, slots=True)
class JobRunningEvent:
    """An attempt was claimed and its handler is about to start.

    Attributes:
        job: The attempt.
    """

    job: ObservedJob


@dataclass(frozen=True, slots=True)
class JobSucceededEvent:
    """A success was stored.

    Attributes:
        job: The attempt.
        duration: From its claim until its handler ended.
        progress_done: Units done as stored, merged with what was reported before.
        progress_total: Units in all, likewise.
    """

    job: ObservedJob
    duration: timedelta
    progress_done: int | None
    progress_total: int | None


@dataclass(frozen=True, slots=True)
class JobFailedEvent:
    """A failure was stored.

    Attributes:
        job: The attempt.
        duration: From its claim until its handler ended, or was given up.
        failure: What the handler reported, or what was stored in its place.
        disposition: What it led to, as stored.
    """

    job: ObservedJob
    duration: timedelta
    failure: JobFailure
    disposition: JobFailureDisposition


@dataclass(frozen=True, slots=True)
class JobCompletionPersistFailedEvent:
    """An outcome can never be stored: the lease runs out, and a reaper ends the attempt.

    Attributes:
        job: The attempt.
        duration: From its claim until its handler ended, or was given up.
        operation: What could not be stored.
        error: Code and client-safe message; nothing of the driver or the server.
    """

    job: ObservedJob
    duration: timedelta
    operation: JobCompletionPersistenceOperation
    error: str


@dataclass(frozen=True, slots=True)
class JobLeaseLostEvent:
    """An attempt ended without an outcome that counts.

    Its lease had expired, the job was canceled, or an aborted stop took it from its handler.

    Attributes:
        job: The attempt.
        duration: From its claim until its handler ended, or was given up.
        failure: Of the kind LEASE_EXPIRED, code `job.lease_owner_mismatch`, after an aborted stop
            `job.worker_shutdown`; stored nowhere.
    """

    job: ObservedJob
    duration: timedelta
    failure: JobFailure


@dataclass(frozen=True, slots=True)
class JobLeaseReapedEvent:
    """A reaper ended an attempt whose lease had expired, of whatever worker.

    Attributes:
        job: The attempt; its type may have no handler here.
        failure: As stored, code `job.lease_expired`.
        started_without_renewal_heartbeat: Whether the lease was never renewed: the worker was gone
            before its first heartbeat.
        disposition: What it led to, as stored.
    """

    job: ObservedJob
    failure: JobFailure
    started_without_renewal_heartbeat: bool
    disposition: JobLeaseReapedDisposition


JobLifecycleEvent: TypeAlias = (
    JobRunningEvent
    | JobSucceededEvent
    | JobFailedEvent
    | JobCompletionPersistFailedEvent
    | JobLeaseLostEvent
    | JobLeaseReapedEvent
)
"""Any of the events."""
