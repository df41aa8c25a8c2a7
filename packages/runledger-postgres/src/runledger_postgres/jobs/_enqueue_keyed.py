"""Enqueue with idempotency keys: one job per type, organization or global, and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import EnqueueDisposition, ErrorCategory, JobEnqueue

from .._database import Database
from .._rows import Statement
from .._session import IS_READ_COMMITTED, Bound, Transaction, run, transaction
from ..errors import QueryError, refusal
from ..wakeup import COUNT_WOKEN
from ._requested import JOB_COLUMNS, JOB_VALUES, REQUESTED, enqueue_parameters, undefined_type
from .rows import EnqueuedJob

# A raced key is found by the next look; more rounds only if its winner was deleted meanwhile.
_KEYED_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """What became of one entry of a keyed enqueue."""

    id: UUID
    verdict: str
    differing: list[str]
    woken: int


# What a repeated request is compared with: values as given, so that a later change of the
# definition is no conflict, in the form that the original stores.
_SNAPSHOT: Final = """
    jsonb_build_object(
        'payload', p.payload,
        'priority', p.priority,
        'max_attempts', p.max_attempts,
        'timeout_seconds', p.timeout_seconds,
        'next_run_at', to_char(p.next_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'stage', coalesce(p.stage, 'queued')
    )
"""

# Two lookups, so that each can use its own partial unique index. No lock: one would block the
# heartbeat of the running job.
_STORED: Final = """
    SELECT q.id, q.enqueue_request
    FROM runledger.job_queue AS q
    WHERE q.job_type = r.job_type
        AND q.organization_id = r.organization_id
        AND q.idempotency_key = r.idempotency_key
    UNION ALL
    SELECT q.id, q.enqueue_request
    FROM runledger.job_queue AS q
    WHERE q.job_type = r.job_type
        AND q.organization_id IS NULL AND r.organization_id IS NULL
        AND q.idempotency_key = r.idempotency_key
"""

# The first entry of a key leads: the others are compared with it and get its job. Whatever is to be
# refused is found before anything is inserted. An entry that meets a key which was not yet visible
# is left RACED, and looked at again with a new snapshot.
ENQUEUE_KEYED_JOBS: Final = Statement(
    f"""
    WITH requested AS MATERIALIZED (
        SELECT p.*, CASE WHEN p.idempotency_key IS NOT NULL THEN {_SNAPSHOT} END AS snapshot
        FROM ({REQUESTED}) AS p
    ), led AS (
        SELECT
            r.*,
            first_value(r.entry) OVER same_key AS leader,
            first_value(r.id) OVER same_key AS leader_id,
            first_value(r.snapshot) OVER same_key AS leader_snapshot
        FROM requested AS r
        WINDOW same_key AS (
            PARTITION BY
                r.job_type, r.organization_id, r.idempotency_key,
                CASE WHEN r.idempotency_key IS NULL THEN r.entry END
            ORDER BY r.entry
        )
    ), judged AS MATERIALIZED (
        SELECT
            r.*, s.id AS stored_id,
            coalesce(s.enqueue_request, r.leader_snapshot) AS earlier_snapshot,
            CASE
                WHEN r.idempotency_key IS NOT NULL AND NOT {IS_READ_COMMITTED}
                    THEN 'UNSUPPORTED_ISOLATION'
                WHEN s.id IS NULL AND d.job_type IS NULL THEN 'UNDEFINED'
                WHEN s.id IS NOT NULL AND s.enqueue_request IS NULL THEN 'LEGACY'
                WHEN r.snapshot <> coalesce(s.enqueue_request, r.leader_snapshot) THEN 'CONFLICT'
            END AS refusal
        FROM led AS r
        LEFT JOIN runledger.job_definitions AS d ON d.job_type = r.job_type AND d.is_enabled
        LEFT JOIN LATERAL ({_STORED}) AS s ON true
    ), made_due AS (
        INSERT INTO runledger.job_queue ({JOB_COLUMNS})
        SELECT {JOB_VALUES}, r.idempotency_key, r.snapshot
        FROM judged AS r
        JOIN runledger.job_definitions AS d ON d.job_type = r.job_type AND d.is_enabled
        WHERE r.entry = r.leader
            AND r.stored_id IS NULL
            AND NOT EXISTS (SELECT FROM judged AS j WHERE j.refusal IS NOT NULL)
        -- One order for every batch, so that two with the same keys cannot deadlock.
        ORDER BY r.job_type COLLATE "C", r.organization_id, r.idempotency_key COLLATE "C", r.entry
        ON CONFLICT DO NOTHING
        RETURNING id, job_type, is_ready
    )
    SELECT
        coalesce(j.stored_id, j.leader_id) AS id,
        CASE
            WHEN j.refusal IS NOT NULL THEN j.refusal
            WHEN j.stored_id IS NOT NULL THEN 'EXISTING'
            WHEN j.leader_id NOT IN (SELECT m.id FROM made_due AS m) THEN 'RACED'
            WHEN j.entry = j.leader THEN 'INSERTED'
            ELSE 'EXISTING'
        END AS verdict,
        ARRAY(
            SELECT named.key
            FROM jsonb_object_keys(j.snapshot || j.earlier_snapshot) AS named(key)
            WHERE j.refusal = 'CONFLICT'
                AND j.snapshot -> named.key IS DISTINCT FROM j.earlier_snapshot -> named.key
            ORDER BY named.key
        ) AS differing,
        ({COUNT_WOKEN}) AS woken
    FROM judged AS j
    ORDER BY j.entry
    """,
    KeyedRow,
)


def enqueue_keyed_jobs(db: Database, requests: Sequence[JobEnqueue]) -> list[EnqueuedJob]:
    """Enqueue requests of which some have a key, all or none."""
    if len(requests) == 1:
        return _enqueue_in_rounds(requests, db)
    # What the first look inserted must go if a later one finds a conflict.
    with transaction(db, savepoint=True) as work:
        return _enqueue_in_rounds(requests, work)


def _enqueue_in_rounds(
    requests: Sequence[JobEnqueue], where: Transaction | Database
) -> list[EnqueuedJob]:
    results: dict[int, EnqueuedJob] = {}
    open_entries = list(range(len(requests)))
    for _ in range(_KEYED_ROUNDS):
        bound = Bound(
            ENQUEUE_KEYED_JOBS, enqueue_parameters([requests[index] for index in open_entries])
        )
        rows = where.fetch(bound) if isinstance(where, Transaction) else run(where, bound)
        raced: list[int] = []
        for index, row in zip(open_entries, rows, strict=True):
            if row.verdict == "RACED":
                raced.append(index)
            elif row.verdict in {"INSERTED", "EXISTING"}:
                results[index] = EnqueuedJob(row.id, EnqueueDisposition(row.verdict))
            else:
                raise _refused(index, row)
        if not raced:
            return [results[index] for index in range(len(requests))]
        open_entries = raced
    raise refusal(
        ErrorCategory.INTERNAL,
        "job.idempotency_conflict_missing_existing",
        "the idempotency key is taken, but its job cannot be seen",
        entry_index=open_entries[0],
    )


def _refused(index: int, row: KeyedRow) -> QueryError:
    match row.verdict:
        case "UNDEFINED":
            return undefined_type(index)
        case "UNSUPPORTED_ISOLATION":
            return refusal(
                ErrorCategory.VALIDATION,
                "job.enqueue_idempotency_unsupported_isolation",
                "an enqueue with an idempotency key needs READ COMMITTED",
                field="db",
                entry_index=index,
            )
        case "LEGACY":
            return refusal(
                ErrorCategory.CONFLICT,
                "job.legacy_idempotency_snapshot_missing",
                "the job with this idempotency key has no stored request to compare with",
                field="idempotency_key",
                entry_index=index,
            )
        case _:
            return refusal(
                ErrorCategory.CONFLICT,
                "job.idempotency_conflict",
                f"the idempotency key belongs to a different request: {', '.join(row.differing)}",
                field=row.differing[0],
                entry_index=index,
            )
