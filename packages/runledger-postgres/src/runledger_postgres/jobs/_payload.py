"""Payloads by idempotency key, and the one edit of a payload that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias
from uuid import UUID

from runledger_core import (
    JobType,
    Scope,
    ScopeKind,
    ValidationError,
    check_text,
    check_uuid,
    codes,
    current_limits,
    encode_json,
)

from .._arguments import check_kind, check_lock_timeout, check_uuids
from .._database import Database
from .._rows import Statement, column
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from .rows import JobPayload

# An edit by hand should not stand in line behind a claim for long.
_EDIT_LOCK_TIMEOUT_MS: Final = 1_000


class PayloadRejection(StrEnum):
    """Why a payload may not be edited."""

    WORKFLOW_MANAGED = "WORKFLOW_MANAGED"
    """The job belongs to a workflow run, which keeps the payload of its step."""
    IDEMPOTENT_REQUEST_SNAPSHOT = "IDEMPOTENT_REQUEST_SNAPSHOT"
    """The job has an idempotency key: later enqueues are compared with its request."""
    NOT_PENDING_OR_CLAIMED = "NOT_PENDING_OR_CLAIMED"
    """The job is leased or has ended, or an attempt of this run has seen the payload."""
    PAYLOAD_NOT_OBJECT = "PAYLOAD_NOT_OBJECT"
    """The payload is no JSON object and has no fields."""
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    """The payload would grow beyond `Limits.payload_bytes`."""


@dataclass(frozen=True, slots=True)
class PayloadUpdated:
    """The payload was edited."""


@dataclass(frozen=True, slots=True)
class PayloadNotFound:
    """No job of that id and type is in scope."""


@dataclass(frozen=True, slots=True)
class PayloadRejected:
    """The job is there, but its payload may not be edited."""

    reason: PayloadRejection


PayloadUpdateResult: TypeAlias = PayloadUpdated | PayloadNotFound | PayloadRejected


@dataclass(frozen=True, slots=True)
class PayloadEditRow:
    """A job in scope, and why its payload stays as it is, if it does."""

    reason: PayloadRejection | None = column(PayloadRejection)


# The row is judged under its lock, so that no claim comes between the judgement and the write.
UPDATE_JOB_PAYLOAD_UUID_ARRAY_FIELD: Final = Statement(
    f"""
    WITH target AS MATERIALIZED (
        SELECT
            q.id,
            CASE jsonb_typeof(q.payload)
                WHEN 'object' THEN jsonb_set(
                    q.payload, ARRAY[%(payload_field)s::text], to_jsonb(%(values)s::uuid[])
                )
            END AS edited,
            CASE
                WHEN q.workflow_run_id IS NOT NULL THEN 'WORKFLOW_MANAGED'
                WHEN q.idempotency_key IS NOT NULL THEN 'IDEMPOTENT_REQUEST_SNAPSHOT'
                WHEN q.status <> 'PENDING' OR q.attempt > 0 THEN 'NOT_PENDING_OR_CLAIMED'
                WHEN jsonb_typeof(q.payload) <> 'object' THEN 'PAYLOAD_NOT_OBJECT'
            END AS reason,
            octet_length(q.payload::text) AS size
        FROM runledger.job_queue AS q
        WHERE q.id = %(job_id)s::uuid AND q.job_type = %(job_type)s::text AND {IN_SCOPE}
        FOR NO KEY UPDATE
    ), judged AS MATERIALIZED (
        SELECT
            t.id, t.edited,
            coalesce(
                t.reason,
                CASE
                    -- Text of jsonb is longer than what was sent; one that shrinks always fits.
                    WHEN octet_length(t.edited::text) > greatest(t.size, %(max_bytes)s::int8)
                        THEN 'PAYLOAD_TOO_LARGE'
                END
            ) AS reason
        FROM target AS t
    ), updated AS (
        UPDATE runledger.job_queue AS q
        SET payload = j.edited, updated_at = clock_timestamp()
        FROM judged AS j
        WHERE q.id = j.id AND j.reason IS NULL
    )
    SELECT j.reason FROM judged AS j
    """,
    PayloadEditRow,
)

# Two arms, one for each unique index.
GET_JOB_PAYLOAD_BY_IDEMPOTENCY_KEY: Final = Statement(
    """
    SELECT q.id, q.payload
    FROM runledger.job_queue AS q
    WHERE q.job_type = %(job_type)s::text
        AND q.idempotency_key = %(idempotency_key)s::text
        AND q.organization_id = %(organization_id)s::uuid
    UNION ALL
    SELECT q.id, q.payload
    FROM runledger.job_queue AS q
    WHERE q.job_type = %(job_type)s::text
        AND q.idempotency_key = %(idempotency_key)s::text
        AND q.organization_id IS NULL
        AND %(organization_id)s::uuid IS NULL
    """,
    JobPayload,
)


def update_job_payload_uuid_array_field(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    job_type: str,
    field: str,
    values: Sequence[UUID],
    lock_timeout_ms: int = _EDIT_LOCK_TIMEOUT_MS,
) -> PayloadUpdateResult:
    """Set one top-level field of a waiting job's payload to an array of ids.

    Only for a pending job that no attempt of its run has seen, without an idempotency key and
    outside workflow runs; its other fields stay.

    Args:
        scope: Whose job it may be.
        job_type: The type that the job must have.
        field: Name of the field, made if missing, at most 200 characters.
        values: The ids, in this order; may be empty.
        lock_timeout_ms: Longest wait for the job's row, in milliseconds.

    Returns:
        What became of it; a rejection says why.

    Raises:
        ValidationError: An `input.*` code that names the argument.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    limits = current_limits()
    ids = check_uuids(values, field="values")
    encode_json([str(value) for value in ids], field="values", max_bytes=limits.payload_bytes)
    parameters: dict[str, object] = {
        "job_id": check_uuid(job_id, field="job_id"),
        "job_type": JobType(job_type),
        "payload_field": check_text(
            field, field="field", max_characters=limits.identifier_characters
        ),
        "values": ids,
        "max_bytes": limits.payload_bytes,
    }
    bound = Bound(UPDATE_JOB_PAYLOAD_UUID_ARRAY_FIELD, parameters | scope_parameters(scope))
    rows = run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
    if not rows:
        return PayloadNotFound()
    reason = rows[0].reason
    return PayloadUpdated() if reason is None else PayloadRejected(reason)


def get_job_payload_by_idempotency_key(
    db: Database, idempotency_key: str, *, scope: Scope, job_type: str
) -> JobPayload | None:
    """Return the id and payload of the job that a key made, or None.

    Args:
        idempotency_key: The key of the enqueue.
        scope: The organization that the key belongs to, or GLOBAL.
        job_type: The type that the key belongs to.

    Raises:
        ValidationError: `input.out_of_range` for `Scope.ADMIN`, in which a key names no single job,
            or an `input.*` code that names the argument.
        InternalError: `job.undecodable_row` if Python cannot read the payload.

    Transaction: joins the caller's or opens one.
    """
    if check_kind(scope, Scope, field="scope").kind is ScopeKind.ADMIN:
        raise ValidationError(
            codes.INPUT_OUT_OF_RANGE,
            "scope must be an organization or GLOBAL: a key is unique only within one",
            field="scope",
        )
    parameters = {
        "job_type": JobType(job_type),
        "idempotency_key": check_text(
            idempotency_key, field="idempotency_key", max_bytes=current_limits().key_bytes
        ),
        "organization_id": scope.organization_id,
    }
    rows = run(db, Bound(GET_JOB_PAYLOAD_BY_IDEMPOTENCY_KEY, parameters))
    return rows[0] if rows else None
