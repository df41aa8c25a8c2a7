"""Small values with defaults, and a look at the queue."""

from __future__ import annotations

from typing import Final, TypedDict, Unpack
from uuid import UUID

from psycopg.rows import tuple_row

from runledger_core import (
    UNSET,
    JobDefinitionSpec,
    JobEnqueue,
    JobStage,
    JsonInput,
    Unset,
    encode_json,
)

from .ageing import Connectable, connection_of

_SHOWN_PAYLOADS: Final = 10
_BYTES: Final = 1 << 30

LIST_PAYLOADS: Final = """
SELECT payload::text, coalesce(payload = %(payload)s::jsonb, true)
FROM runledger.job_queue
WHERE job_type = %(job_type)s
ORDER BY id
"""


class DefinitionOverrides(TypedDict, total=False):
    """What `make_definition` takes besides the type."""

    version: int
    max_attempts: int
    default_timeout_seconds: int
    default_priority: int
    is_enabled: bool


class EnqueueOverrides(TypedDict, total=False):
    """What `make_enqueue` takes besides type and payload."""

    organization_id: UUID | None
    priority: int | None
    max_attempts: int | None
    timeout_seconds: int | None
    idempotency_key: str | None
    stage: JobStage | None


def make_definition(
    job_type: str = "test.job", **overrides: Unpack[DefinitionOverrides]
) -> JobDefinitionSpec:
    """Return a job definition.

    Raises:
        ValidationError: An `input.*` code.
    """
    return JobDefinitionSpec(job_type, **overrides)


def make_enqueue(
    job_type: str = "test.job",
    payload: JsonInput | Unset = UNSET,
    **overrides: Unpack[EnqueueOverrides],
) -> JobEnqueue:
    """Return a request for one job; its payload is an empty object unless given.

    Raises:
        ValidationError: An `input.*` code.
    """
    return JobEnqueue(job_type, {} if payload is UNSET else payload, **overrides)


def assert_enqueued(
    db: Connectable, job_type: str, *, payload: JsonInput | Unset = UNSET, count: int = 1
) -> None:
    """Check that the queue holds exactly so many jobs of a type, in whatever state.

    Args:
        payload: Count only jobs whose payload is equal as JSON; any if left out.

    Raises:
        AssertionError: With the payloads that were found.
        ValidationError: An `input.*` code if the payload is no JSON.

    Transaction: joins the caller's and sees its enqueues; a pool's connection is read.
    """
    # SQL's NULL fits every payload; JSON's null is the text "null".
    wanted = None if payload is UNSET else encode_json(payload, field="payload", max_bytes=_BYTES)
    with connection_of(db) as connection:
        cursor = connection.cursor(row_factory=tuple_row)
        cursor.execute(LIST_PAYLOADS, {"job_type": job_type, "payload": wanted})
        rows = cursor.fetchall()
    fitting = sum(1 for _, fits in rows if fits)
    if fitting != count:
        shown = "".join(f"\n  {text}" for text, _ in rows[:_SHOWN_PAYLOADS]) or " none"
        of_payload = "" if wanted is None else f" with payload {wanted}"
        raise AssertionError(
            f"expected {count} jobs of type {job_type!r}{of_payload}, found {fitting}; "
            f"payloads of that type ({len(rows)}):{shown}"
        )
