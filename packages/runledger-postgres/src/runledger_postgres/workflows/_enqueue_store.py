"""The statement that stores runs with their whole graphs, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core.workflows import (
    WorkflowRunCounters,
    WorkflowRunEnqueue,
    WorkflowStepCounters,
    run_status,
    workflow_run_snapshot,
)

from .._rows import Statement
from .._session import IS_READ_COMMITTED
from .._whole import whole_or_error
from ..wakeup import COUNT_WOKEN
from ._graph import (
    INSERT_EDGES,
    INSERT_STEP_JOBS,
    INSERT_STEPS,
    IS_GRAPH_WHOLE,
    REQUESTED_STEPS,
    RESOLVED_STEPS,
    UNDEFINED_STEPS,
    NewSteps,
    graph_parameters,
)


@dataclass(frozen=True, slots=True)
class EnqueuedRunRow:
    """What became of one request; `undefined_entry` is a step of the whole call, from 1."""

    id: UUID
    verdict: str
    undefined_entry: int | None
    woken: int
    is_whole: bool


# Two lookups, so that each can use its own partial unique index, and no lock.
_STORED_RUN: Final = """
    SELECT w.id, w.enqueue_request
    FROM runledger.workflow_runs AS w
    WHERE w.workflow_type = r.workflow_type
        AND w.organization_id = r.organization_id
        AND w.idempotency_key = r.idempotency_key
        AND r.idempotency_key IS NOT NULL
    UNION ALL
    SELECT w.id, w.enqueue_request
    FROM runledger.workflow_runs AS w
    WHERE w.workflow_type = r.workflow_type
        AND w.organization_id IS NULL AND r.organization_id IS NULL
        AND w.idempotency_key = r.idempotency_key
        AND r.idempotency_key IS NOT NULL
"""

# A run without a key has none to wait for: it was inserted, or a trigger kept it back.
_IS_WHOLE: Final = """
    o.are_whole AND (
        j.idempotency_key IS NOT NULL
        OR j.id IN (SELECT n.id FROM run AS n)
        OR (SELECT f.is_any FROM refused AS f)
    )
"""

# The first request of a key leads: the others are compared with it and get its run. Whatever is to
# be refused is found before anything is inserted. A request that meets a key which was not yet
# visible is left RACED, and looked at again with a new snapshot.
ENQUEUE_WORKFLOW_RUNS: Final = Statement(
    f"""
    WITH requested_runs AS MATERIALIZED (
        SELECT r.*, runledger.uuidv7() AS id
        FROM unnest(
            %(workflow_types)s::text[], %(run_organization_ids)s::uuid[],
            %(idempotency_keys)s::text[], %(snapshots)s::jsonb[], %(metadatas)s::jsonb[],
            %(result_step_keys)s::text[], %(run_statuses)s::text[], %(steps_open)s::int4[],
            %(steps_waiting_external)s::int4[]
        ) WITH ORDINALITY AS r(
            workflow_type, organization_id, idempotency_key, snapshot, metadata, result_step_key,
            status, steps_open, steps_waiting_external, entry
        )
        -- No limit, but the planner then reckons with one run, and plans once for all calls.
        LIMIT cardinality(%(workflow_types)s::text[])
    ), led AS (
        SELECT
            r.*,
            first_value(r.entry) OVER same_key AS leader,
            first_value(r.id) OVER same_key AS leader_id,
            first_value(r.snapshot) OVER same_key AS leader_snapshot
        FROM requested_runs AS r
        WINDOW same_key AS (
            PARTITION BY
                r.workflow_type, r.organization_id, r.idempotency_key,
                CASE WHEN r.idempotency_key IS NULL THEN r.entry END
            ORDER BY r.entry
        )
    ), judged AS MATERIALIZED (
        SELECT
            r.*, s.id AS stored_id,
            CASE
                WHEN r.idempotency_key IS NOT NULL AND NOT {IS_READ_COMMITTED}
                    THEN 'UNSUPPORTED_ISOLATION'
                WHEN s.id IS NOT NULL AND s.enqueue_request IS NULL THEN 'LEGACY'
                WHEN r.snapshot <> coalesce(s.enqueue_request, r.leader_snapshot) THEN 'CONFLICT'
            END AS refusal
        FROM led AS r
        LEFT JOIN LATERAL ({_STORED_RUN}) AS s ON true
    ), requested AS MATERIALIZED (
        {REQUESTED_STEPS}
    ), undefined AS MATERIALIZED (
        SELECT min(u.entry) AS entry
        FROM ({UNDEFINED_STEPS}) AS u
        WHERE u.run_entry NOT IN (SELECT j.entry FROM judged AS j WHERE j.stored_id IS NOT NULL)
    ), refused AS MATERIALIZED (
        SELECT
            EXISTS (SELECT FROM judged AS o WHERE o.refusal IS NOT NULL)
            OR (SELECT u.entry FROM undefined AS u) IS NOT NULL AS is_any
    ), run AS (
        INSERT INTO runledger.workflow_runs (
            id, workflow_type, organization_id, status, steps_open, steps_waiting_external,
            idempotency_key, metadata, enqueue_request, result_step_key, started_at, created_at,
            updated_at
        )
        SELECT
            j.id, j.workflow_type, j.organization_id, j.status::runledger.workflow_run_status,
            j.steps_open, j.steps_waiting_external, j.idempotency_key, j.metadata, j.snapshot,
            j.result_step_key, statement_timestamp(), statement_timestamp(), statement_timestamp()
        FROM judged AS j
        WHERE j.entry = j.leader
            AND j.stored_id IS NULL
            AND NOT (SELECT f.is_any FROM refused AS f)
        -- One order for every call, so that two with the same keys cannot deadlock.
        ORDER BY
            j.workflow_type COLLATE "C", j.organization_id, j.idempotency_key COLLATE "C", j.entry
        ON CONFLICT DO NOTHING
        RETURNING id
    ), run_ids AS (
        SELECT array_agg(r.id ORDER BY r.entry) AS ids FROM requested_runs AS r
    ), resolved AS MATERIALIZED (
        {RESOLVED_STEPS}
    ), steps AS (
        {INSERT_STEPS}
    ), edges AS (
        {INSERT_EDGES}
    ), made_due AS (
        {INSERT_STEP_JOBS}
    ), writes AS MATERIALIZED (
        SELECT ({IS_GRAPH_WHOLE}) AS are_whole
    )
    SELECT
        coalesce(j.stored_id, j.leader_id) AS id,
        CASE
            WHEN j.refusal IS NOT NULL THEN j.refusal
            WHEN j.stored_id IS NOT NULL THEN 'EXISTING'
            WHEN j.leader_id NOT IN (SELECT n.id FROM run AS n) THEN 'RACED'
            WHEN j.entry = j.leader THEN 'INSERTED'
            ELSE 'EXISTING'
        END AS verdict,
        (SELECT u.entry FROM undefined AS u) AS undefined_entry,
        ({COUNT_WOKEN}) AS woken,
        {whole_or_error(_IS_WHOLE)} AS is_whole
    FROM judged AS j
    CROSS JOIN writes AS o
    ORDER BY j.entry
    """,
    EnqueuedRunRow,
)


def enqueue_parameters(
    requests: Sequence[WorkflowRunEnqueue], trace_context: str | None
) -> dict[str, object]:
    """Return what ENQUEUE_WORKFLOW_RUNS needs for these requests."""
    runs = [
        NewSteps(
            request.steps,
            organization_id=request.organization_id,
            counters=[WorkflowStepCounters.of(step.dependencies, {}) for step in request.steps],
        )
        for request in requests
    ]
    counters = [WorkflowRunCounters.of(new.statuses) for new in runs]
    return graph_parameters(runs) | {
        "workflow_types": [request.workflow_type for request in requests],
        "run_organization_ids": [request.organization_id for request in requests],
        "idempotency_keys": [request.idempotency_key for request in requests],
        "snapshots": [
            None if request.idempotency_key is None else workflow_run_snapshot(request)
            for request in requests
        ],
        "metadatas": [request.metadata_json for request in requests],
        "result_step_keys": [request.result_step_key for request in requests],
        "run_statuses": [run_status(counts) for counts in counters],
        "steps_open": [counts.steps_open for counts in counters],
        "steps_waiting_external": [counts.steps_waiting_external for counts in counters],
        "trace_context": trace_context,
    }
