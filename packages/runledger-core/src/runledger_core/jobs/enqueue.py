"""The request for one job."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from uuid import UUID

from runledger_core.identifiers import JobType
from runledger_core.jobs.status import JobStage
from runledger_core.jsonvalue import JsonInput, encode_json
from runledger_core.limits import INT32_MAX, INT32_MIN, current_limits
from runledger_core.text import (
    check_choice,
    check_instant,
    check_int,
    check_text,
    check_trace_context,
    check_uuid,
)


@dataclass(frozen=True, slots=True)
class JobEnqueue:
    """Ask for one job; what is left out comes from the job definition at enqueue.

    Attributes:
        job_type: Type of the job; kept as a `JobType`.
        payload: What the handler receives. It is encoded at once: changing it later does not
            change the request.
        organization_id: Owner of the job; None for a global job.
        priority: Larger runs first; may be negative.
        max_attempts: Attempts before the job is dead-lettered, 1 or more.
        timeout_seconds: Time for one attempt, in seconds, 1 or more.
        next_run_at: Not before this instant; kept in UTC. Leave it out, rather than pass the
            time of the call, for a keyed request that may be repeated.
        idempotency_key: At most one job exists per job type, organization and key.
        stage: First stage shown.
        trace_context: Where a trace goes on in the handler, such as a W3C `traceparent`: printable
            ASCII, at most 1,024 characters. No part of what a key stands for: a repeated request
            may have another, and the job keeps that of the first.
        payload_json: The payload as it will be stored.
    """

    job_type: str
    payload: JsonInput = field(repr=False, hash=False)
    _: KW_ONLY
    organization_id: UUID | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout_seconds: int | None = None
    next_run_at: datetime | None = None
    idempotency_key: str | None = field(default=None, repr=False)
    stage: JobStage | None = None
    trace_context: str | None = field(default=None, repr=False, compare=False)
    payload_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field and encode the payload.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        store = object.__setattr__
        limits = current_limits()
        store(self, "job_type", JobType(self.job_type))
        payload = encode_json(self.payload, field="payload", max_bytes=limits.payload_bytes)
        store(self, "payload_json", payload)
        if self.organization_id is not None:
            owner = check_uuid(self.organization_id, field="organization_id")
            store(self, "organization_id", owner)
        self._check_integer("priority", minimum=INT32_MIN)
        self._check_integer("max_attempts", minimum=1)
        self._check_integer("timeout_seconds", minimum=1)
        if self.next_run_at is not None:
            store(self, "next_run_at", check_instant(self.next_run_at, field="next_run_at"))
        if self.idempotency_key is not None:
            key = check_text(
                self.idempotency_key, field="idempotency_key", max_bytes=limits.key_bytes
            )
            store(self, "idempotency_key", key)
        if self.stage is not None:
            store(self, "stage", check_choice(self.stage, field="stage", choices=JobStage))
        if self.trace_context is not None:
            store(self, "trace_context", check_trace_context(self.trace_context))

    def _check_integer(self, name: str, *, minimum: int) -> None:
        value = getattr(self, name)
        if value is not None:
            number = check_int(value, field=name, minimum=minimum, maximum=INT32_MAX)
            object.__setattr__(self, name, number)
