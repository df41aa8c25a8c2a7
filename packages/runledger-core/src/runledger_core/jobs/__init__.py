"""Contracts of jobs: requests, states, outcomes, leases and handlers."""

from runledger_core.jobs.enqueue import JobEnqueue
from runledger_core.jobs.handler import (
    CancelReason,
    DeadLetterHandler,
    HandlerResult,
    JobCancelled,
    JobContext,
    JobDeadLetterInfo,
    JobHandler,
)
from runledger_core.jobs.lease import JobLease
from runledger_core.jobs.outcome import JobCompletion, JobFailure, JobProgressUpdate
from runledger_core.jobs.status import (
    EnqueueDisposition,
    JobDeadLetterReason,
    JobEventType,
    JobFailureKind,
    JobOutcome,
    JobStage,
    JobStatus,
)

__all__ = [
    "CancelReason",
    "DeadLetterHandler",
    "EnqueueDisposition",
    "HandlerResult",
    "JobCancelled",
    "JobCompletion",
    "JobContext",
    "JobDeadLetterInfo",
    "JobDeadLetterReason",
    "JobEnqueue",
    "JobEventType",
    "JobFailure",
    "JobFailureKind",
    "JobHandler",
    "JobLease",
    "JobOutcome",
    "JobProgressUpdate",
    "JobStage",
    "JobStatus",
]
