"""Jobs: enqueue, read, log, and the history of each."""

from ._dead_letters import get_dead_letter, list_dead_letters
from ._enqueue import enqueue_job, enqueue_jobs
from ._logs import JobLogEntry, insert_claim_log, insert_job_log, insert_job_logs
from ._payload import (
    PayloadNotFound,
    PayloadRejected,
    PayloadRejection,
    PayloadUpdated,
    PayloadUpdateResult,
    get_job_payload_by_idempotency_key,
    update_job_payload_uuid_array_field,
)
from ._read import get_job
from ._timeline import LOG_END, list_job_attempts, list_job_events, list_job_logs
from .rows import (
    DeadLetterCursor,
    EnqueuedJob,
    JobAttemptRecord,
    JobDeadLetterRecord,
    JobDeadLetterSummary,
    JobEventCursor,
    JobEventRecord,
    JobLogRecord,
    JobPayload,
    JobRecord,
    JobSummary,
)

__all__ = [
    "LOG_END",
    "DeadLetterCursor",
    "EnqueuedJob",
    "JobAttemptRecord",
    "JobDeadLetterRecord",
    "JobDeadLetterSummary",
    "JobEventCursor",
    "JobEventRecord",
    "JobLogEntry",
    "JobLogRecord",
    "JobPayload",
    "JobRecord",
    "JobSummary",
    "PayloadNotFound",
    "PayloadRejected",
    "PayloadRejection",
    "PayloadUpdateResult",
    "PayloadUpdated",
    "enqueue_job",
    "enqueue_jobs",
    "get_dead_letter",
    "get_job",
    "get_job_payload_by_idempotency_key",
    "insert_claim_log",
    "insert_job_log",
    "insert_job_logs",
    "list_dead_letters",
    "list_job_attempts",
    "list_job_events",
    "list_job_logs",
    "update_job_payload_uuid_array_field",
]
