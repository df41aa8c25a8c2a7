"""Claimed jobs: as the database returns them, and as a worker gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from runledger_core import (
    UNSET,
    JobFailure,
    JobLease,
    JsonValue,
    RunledgerError,
    Unset,
    WorkerId,
    decode_json,
)

from ._failure import FailureEntry
from ._ready import ReadyMark


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A claimed job as it came from the database, its JSON not decoded yet."""

    id: UUID
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    workflow_run_id: UUID | None
    run_number: int
    attempt: int
    max_attempts: int
    claim_number: int
    worker_id: str
    priority: int
    timeout_seconds: int
    next_run_at: datetime
    lease_expires_at: datetime
    payload_json: str
    checkpoint_json: str | None
    trace_context: str | None

    @property
    def mark(self) -> ReadyMark:
        """Its place among the ready jobs of its type."""
        return ReadyMark(~self.priority, self.next_run_at, id=self.id)


CLAIMED_COLUMNS: Final = """
    q.id, q.job_type, q.organization_id, q.workflow_run_id, q.run_number, q.attempt,
    q.max_attempts, q.claim_number, q.worker_id, q.priority, q.timeout_seconds, q.next_run_at,
    q.lease_expires_at, q.payload::text AS payload_json, q.checkpoint::text AS checkpoint_json,
    q.trace_context
"""


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job leased to a worker: what a handler needs, and the lease that fences its writes.

    Attributes:
        payload: For the handler, which may change it.
        checkpoint: As `payload`; UNSET if nothing is stored.
        payload_json: The payload as it is stored.
        checkpoint_json: The checkpoint as it is stored; None if nothing is.
    """

    lease: JobLease
    job_type: str
    _: KW_ONLY
    organization_id: UUID | None
    workflow_run_id: UUID | None
    max_attempts: int
    priority: int
    timeout_seconds: int
    lease_expires_at: datetime
    payload: JsonValue
    checkpoint: JsonValue | Unset
    payload_json: str = field(repr=False)
    checkpoint_json: str | None = field(default=None, repr=False)
    trace_context: str | None = None

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self.lease.job_id


@dataclass(frozen=True, slots=True)
class UndecodableJob(FailureEntry):
    """A claimed job that Python cannot read, as the failure to store.

    Attributes:
        job: What could be read: all but payload and checkpoint.
    """

    _: KW_ONLY
    job: ClaimedJob


def decode_claim(rows: Sequence[ClaimedRow]) -> tuple[list[ClaimedJob], list[UndecodableJob]]:
    """Decode claimed rows one by one; a row that Python cannot read becomes a terminal failure."""
    claimed: list[ClaimedJob] = []
    undecodable: list[UndecodableJob] = []
    # Checked once, since a claim is one worker's.
    owners = {worker_id: WorkerId(worker_id) for worker_id in {row.worker_id for row in rows}}
    for row in rows:
        lease = JobLease(
            row.id,
            row.run_number,
            attempt=row.attempt,
            claim_number=row.claim_number,
            worker_id=owners[row.worker_id],
        )
        payload: JsonValue = None
        checkpoint: JsonValue | Unset = UNSET
        failure = None
        try:
            payload = decode_json(row.payload_json, field="payload")
            if row.checkpoint_json is not None:
                checkpoint = decode_json(row.checkpoint_json, field="checkpoint")
        except RunledgerError as error:
            failure = JobFailure.terminal(
                "job.undecodable_row", f"Python cannot read the stored row: {error.client_message}"
            )
        job = _job(row, lease, payload, checkpoint)
        if failure is None:
            claimed.append(job)
        else:
            undecodable.append(UndecodableJob(lease, failure, job=job))
    return claimed, undecodable


def _job(
    row: ClaimedRow, lease: JobLease, payload: JsonValue, checkpoint: JsonValue | Unset
) -> ClaimedJob:
    return ClaimedJob(
        lease,
        row.job_type,
        organization_id=row.organization_id,
        workflow_run_id=row.workflow_run_id,
        max_attempts=row.max_attempts,
        priority=row.priority,
        timeout_seconds=row.timeout_seconds,
        lease_expires_at=row.lease_expires_at,
        payload=payload,
        checkpoint=checkpoint,
        payload_json=row.payload_json,
        checkpoint_json=row.checkpoint_json,
        trace_context=row.trace_context,
    )
