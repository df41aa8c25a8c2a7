"""Rows of jobs and their history, as reads return them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from runledger_core import (
    UNSET,
    EnqueueDisposition,
    JobEventType,
    JobOutcome,
    JobStatus,
    JsonValue,
    RunledgerError,
    Unset,
    check_instant,
    check_int,
    check_uuid,
    decode_json,
)
from runledger_core.limits import INT64_MAX

from .._rows import column


def _decode_readable(text: str) -> JsonValue | Unset:
    # A list shows its other rows when Python cannot read the JSON of one.
    try:
        return decode_json(text)
    except RunledgerError:
        return UNSET


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job's id, and whether this enqueue made it."""

    id: UUID
    disposition: EnqueueDisposition


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job without its bodies, as lists return it."""

    id: UUID
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    workflow_run_id: UUID | None
    status: JobStatus = column(JobStatus)
    priority: int
    run_number: int
    attempt: int
    max_attempts: int
    stage: str
    progress_done: int | None
    progress_total: int | None
    worker_id: str | None
    last_error_code: str | None
    next_run_at: datetime
    lease_expires_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job with everything its row holds."""

    id: UUID
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    workflow_run_id: UUID | None
    status: JobStatus = column(JobStatus)
    priority: int
    run_number: int
    attempt: int
    claim_number: int
    max_attempts: int
    timeout_seconds: int
    stage: str
    progress_done: int | None
    progress_total: int | None
    payload: JsonValue = column(decode_json)
    checkpoint: JsonValue | Unset = column(decode_json, null=UNSET)
    output: JsonValue | Unset = column(decode_json, null=UNSET)
    idempotency_key: str | None
    worker_id: str | None
    status_reason: str | None
    last_error_code: str | None
    last_error_message: str | None
    next_run_at: datetime
    lease_expires_at: datetime | None
    last_heartbeat_at: datetime | None
    leased_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class JobPayload:
    """A job's id and payload."""

    id: UUID
    payload: JsonValue = column(decode_json)


@dataclass(frozen=True, slots=True)
class JobEventCursor:
    """The place of an entry in its job's timeline, to page on from.

    Attributes:
        claim_number: Claim that the entry belongs to; 0 before the first.
        rank: Order of the types within a claim: start, progress, end, what followed.
        event_id: Order of stored entries of one rank; 0 for those derived from other rows.
        END: Behind every entry: `before=JobEventCursor.END` is the last page.
    """

    claim_number: int
    rank: int
    _: KW_ONLY
    event_id: int

    END: ClassVar[JobEventCursor]

    def __post_init__(self) -> None:
        """Refuse numbers that no timeline holds.

        Raises:
            ValidationError: `input.wrong_type` or `input.out_of_range`.
        """
        for name in ("claim_number", "rank", "event_id"):
            check_int(getattr(self, name), field=name, minimum=0, maximum=INT64_MAX)


JobEventCursor.END = JobEventCursor(INT64_MAX, 0, event_id=0)


@dataclass(frozen=True, slots=True)
class JobEventRecord:
    """One entry of a job's timeline, stored or derived from the row that proves it.

    The payload is UNSET if Python cannot read it.
    """

    job_id: UUID
    event_type: JobEventType = column(JobEventType)
    _: KW_ONLY
    claim_number: int
    rank: int
    event_id: int
    run_number: int
    attempt: int | None
    stage: str | None
    progress_done: int | None
    progress_total: int | None
    payload: JsonValue | Unset = column(_decode_readable)
    occurred_at: datetime

    @property
    def cursor(self) -> JobEventCursor:
        """The entry's place, to page on from."""
        return JobEventCursor(self.claim_number, self.rank, event_id=self.event_id)


@dataclass(frozen=True, slots=True)
class JobAttemptRecord:
    """One ended attempt of a job; its claim number is the cursor to page on from."""

    job_id: UUID
    claim_number: int
    _: KW_ONLY
    run_number: int
    attempt: int
    worker_id: str
    outcome: JobOutcome = column(JobOutcome)
    error_code: str | None
    error_message: str | None
    retry_delay_ms: int | None
    leased_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class JobLogRecord:
    """One log line of a job; its id is the cursor to page on from.

    The claim number is 0 for a line that no attempt wrote; the payload is UNSET if Python cannot
    read it.
    """

    job_id: UUID
    id: int
    _: KW_ONLY
    claim_number: int
    run_number: int
    attempt: int | None
    level: str
    message: str
    payload: JsonValue | Unset = column(_decode_readable)
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterCursor:
    """The place of a dead letter in the list, to page on from, at full precision.

    Attributes:
        failed_at: When its last attempt failed.
        job_id: Tells those of one instant apart.
    """

    failed_at: datetime
    job_id: UUID

    def __post_init__(self) -> None:
        """Refuse what is no instant or no id.

        Raises:
            ValidationError: `input.wrong_type`, `input.naive_timestamp` or `input.out_of_range`.
        """
        object.__setattr__(self, "failed_at", check_instant(self.failed_at, field="failed_at"))
        object.__setattr__(self, "job_id", check_uuid(self.job_id, field="job_id"))


@dataclass(frozen=True, slots=True)
class JobDeadLetterSummary:
    """A dead letter without its bodies, as lists return it."""

    job_id: UUID
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    run_number: int
    attempt: int
    error_code: str
    error_message: str
    failed_at: datetime
    created_at: datetime

    @property
    def cursor(self) -> DeadLetterCursor:
        """The dead letter's place, to page on from."""
        return DeadLetterCursor(self.failed_at, self.job_id)


@dataclass(frozen=True, slots=True)
class JobDeadLetterRecord:
    """A dead letter with the payload and checkpoint that its last attempt saw."""

    job_id: UUID
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    run_number: int
    attempt: int
    error_code: str
    error_message: str
    payload_snapshot: JsonValue = column(decode_json)
    checkpoint_snapshot: JsonValue | Unset = column(decode_json, null=UNSET)
    failed_at: datetime
    created_at: datetime
