"""What an enqueue sends: arrays of requests, and the columns that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runledger_core import ErrorCategory, JobEnqueue

from ..errors import QueryError, refusal

REQUESTED: Final = """
    SELECT
        r.*,
        coalesce(r.next_run_at, statement_timestamp()) AS due_at,
        coalesce(r.next_run_at <= statement_timestamp(), true) AS is_ready,
        runledger.uuidv7() AS id
    FROM unnest(
        %(job_types)s::text[], %(organization_ids)s::uuid[], %(payloads)s::jsonb[],
        %(priorities)s::int4[], %(max_attempts)s::int4[], %(timeouts)s::int4[],
        %(next_run_ats)s::timestamptz[], %(stages)s::text[], %(idempotency_keys)s::text[],
        %(trace_contexts)s::text[]
    ) WITH ORDINALITY AS r(
        job_type, organization_id, payload, priority, max_attempts, timeout_seconds,
        next_run_at, stage, idempotency_key, trace_context, entry
    )
"""

JOB_COLUMNS: Final = """
    id, job_type, organization_id, payload, priority, max_attempts, timeout_seconds,
    next_run_at, is_ready, stage, created_at, updated_at, trace_context, idempotency_key,
    enqueue_request
"""

# Caller's value, else the definition's default.
JOB_VALUES: Final = """
    r.id, r.job_type, r.organization_id, r.payload,
    coalesce(r.priority, d.default_priority),
    coalesce(r.max_attempts, d.max_attempts),
    coalesce(r.timeout_seconds, d.default_timeout_seconds),
    r.due_at, r.is_ready, coalesce(r.stage, 'queued'),
    statement_timestamp(), statement_timestamp(), r.trace_context
"""


def enqueue_parameters(requests: Sequence[JobEnqueue]) -> dict[str, object]:
    """Return the arrays that REQUESTED needs."""
    trace_contexts = [request.trace_context for request in requests]
    return {
        "job_types": [request.job_type for request in requests],
        "organization_ids": [request.organization_id for request in requests],
        "payloads": [request.payload_json for request in requests],
        "priorities": [request.priority for request in requests],
        "max_attempts": [request.max_attempts for request in requests],
        "timeouts": [request.timeout_seconds for request in requests],
        "next_run_ats": [request.next_run_at for request in requests],
        "stages": [request.stage for request in requests],
        "idempotency_keys": [request.idempotency_key for request in requests],
        # No array is as good as one of nulls, and nothing to send.
        "trace_contexts": trace_contexts if any(trace_contexts) else None,
    }


def undefined_type(index: int) -> QueryError:
    """Return the refusal of a request whose type cannot be enqueued."""
    return refusal(
        ErrorCategory.VALIDATION,
        "job.definition_not_found_or_disabled",
        "the job type has no definition, or it is disabled",
        field="job_type",
        entry_index=index,
    )
