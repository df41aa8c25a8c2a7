"""The states and outcomes of jobs, spelled as they are stored."""

from enum import StrEnum


class JobStatus(StrEnum):
    """Tell where a job stands."""

    PENDING = "PENDING"
    LEASED = "LEASED"
    SUCCEEDED = "SUCCEEDED"
    DEAD_LETTERED = "DEAD_LETTERED"
    CANCELED = "CANCELED"

    @property
    def is_terminal(self) -> bool:
        """Tell whether only a requeue can change it."""
        return self not in {JobStatus.PENDING, JobStatus.LEASED}


class JobStage(StrEnum):
    """Tell people how far a job has come; nothing is decided by it."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPLETED = "completed"


class JobEventType(StrEnum):
    """Name an entry of a job's timeline."""

    ENQUEUED = "ENQUEUED"
    LEASED = "LEASED"
    HEARTBEAT = "HEARTBEAT"
    STAGE_CHANGED = "STAGE_CHANGED"
    PROGRESS = "PROGRESS"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DEAD_LETTERED = "DEAD_LETTERED"
    CANCELED = "CANCELED"
    REQUEUED = "REQUEUED"


class JobFailureKind(StrEnum):
    """Tell how an attempt failed, which decides whether there is another."""

    RETRYABLE = "RETRYABLE"
    TERMINAL = "TERMINAL"
    PANICKED = "PANICKED"
    TIMEOUT = "TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"

    @property
    def is_retryable(self) -> bool:
        """Tell whether the job is tried again while attempts are left."""
        return self not in {JobFailureKind.TERMINAL, JobFailureKind.PANICKED}


class JobOutcome(StrEnum):
    """Tell how an attempt ended: a success, a cancellation or one of the failure kinds."""

    SUCCEEDED = "SUCCEEDED"
    CANCELED = "CANCELED"
    RETRYABLE = "RETRYABLE"
    TERMINAL = "TERMINAL"
    PANICKED = "PANICKED"
    TIMEOUT = "TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"


class JobDeadLetterReason(StrEnum):
    """Tell a handler why its job was given up."""

    FAILURE_KIND_NON_RETRYABLE = "FAILURE_KIND_NON_RETRYABLE"
    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    LEASE_EXPIRED = "LEASE_EXPIRED"


class EnqueueDisposition(StrEnum):
    """Tell whether an enqueue made a job or found the one with its key."""

    INSERTED = "INSERTED"
    EXISTING = "EXISTING"
