"""What ended steps reach: read under the locks of their runs, for the closure to decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, LiteralString
from uuid import UUID

from runledger_core import InternalError, codes
from runledger_core.workflows import (
    WorkflowBlockedStep,
    WorkflowDependencyReleaseMode,
    WorkflowStepEdge,
    WorkflowStepStatus,
)

from .._rows import Statement, column
from .._session import Bound


@dataclass(frozen=True, slots=True)
class ReachedRow:
    """A step that has ended (no prerequisite), or an edge to a BLOCKED step.

    Attributes:
        step_id: The ended step, or the BLOCKED one.
        workflow_run_id: Its run.
        end: How the step ended; None of an edge.
        is_expanded: Whether the edges out of the step come too.
    """

    step_id: UUID
    workflow_run_id: UUID
    _: KW_ONLY
    end: WorkflowStepStatus | None = column(WorkflowStepStatus)
    prerequisite_step_id: UUID | None
    release_mode: WorkflowDependencyReleaseMode | None = column(WorkflowDependencyReleaseMode)
    dependency_count_pending: int
    dependency_count_unsatisfied: int
    is_expanded: bool


# From a step that has ended to each that waits for it, and on from those whose last prerequisite it
# was and which it dooms. No further: what waits for others too is read on from once it is doomed,
# unless the read goes past such joins. Steps of a run that has ended are left alone.
def _reach(ended: LiteralString) -> LiteralString:
    return f"""
    WITH RECURSIVE ended AS MATERIALIZED (
        {ended}
    ), reached AS (
        SELECT
            n.id AS step_id, n.workflow_run_id, n.status AS "end",
            NULL::uuid AS prerequisite_step_id,
            NULL::runledger.workflow_dependency_release_mode AS release_mode,
            0 AS dependency_count_pending, 0 AS dependency_count_unsatisfied,
            true AS is_expanded, n.status = 'SUCCEEDED' AS succeeded
        FROM ended AS n
        UNION
        SELECT
            d.id, d.workflow_run_id, NULL, r.step_id, e.release_mode,
            d.dependency_count_pending, d.dependency_count_unsatisfied,
            %(past_joins)s::bool OR d.dependency_count_pending = 1 AND (
                d.dependency_count_unsatisfied > 0
                OR (e.release_mode = 'ON_SUCCESS' AND NOT r.succeeded)
            ),
            false
        FROM reached AS r
        CROSS JOIN LATERAL (
            SELECT f.dependent_step_id, f.release_mode
            FROM runledger.workflow_step_dependencies AS f
            WHERE f.workflow_run_id = r.workflow_run_id AND f.prerequisite_step_id = r.step_id
            OFFSET 0
        ) AS e
        CROSS JOIN LATERAL (
            SELECT
                s.id, s.workflow_run_id, s.dependency_count_pending,
                s.dependency_count_unsatisfied
            FROM runledger.workflow_steps AS s
            WHERE s.id = e.dependent_step_id AND s.status = 'BLOCKED'
            OFFSET 0
        ) AS d
        WHERE r.is_expanded
    )
    SELECT
        r.step_id, r.workflow_run_id, r."end"::text AS "end", r.prerequisite_step_id,
        r.release_mode::text AS release_mode, r.dependency_count_pending,
        r.dependency_count_unsatisfied, r.is_expanded
    FROM reached AS r
    """


# A step `s` of a run that goes on.
_OF_OPEN_RUN: Final = """
        CROSS JOIN LATERAL (
            SELECT FROM runledger.workflow_runs AS o
            WHERE o.id = s.workflow_run_id AND o.status IN ('RUNNING', 'WAITING_FOR_EXTERNAL')
            OFFSET 0
        ) AS w
"""

# Jobs that have ended in this transaction, whose steps have not. Each row is looked up by its key,
# whatever the planner thinks of the tables. No limit limits: the planner reckons with few rows for
# one that it does not know, and plans once for all calls.
REACH_FROM_JOBS: Final = Statement(
    _reach(f"""
        SELECT
            s.id, s.workflow_run_id,
            (CASE j.status
                WHEN 'SUCCEEDED' THEN 'SUCCEEDED'
                WHEN 'DEAD_LETTERED' THEN 'FAILED'
                ELSE 'CANCELED'
            END)::runledger.workflow_step_status AS status
        FROM (
            SELECT q.id, q.workflow_run_id, q.status
            FROM runledger.job_queue AS q
            WHERE q.id = ANY (%(job_ids)s::uuid[])
            LIMIT cardinality(%(job_ids)s::uuid[])
        ) AS j
        CROSS JOIN LATERAL (
            SELECT t.id, t.workflow_run_id
            FROM runledger.workflow_steps AS t
            WHERE t.job_id = j.id AND t.status = 'ENQUEUED'
            OFFSET 0
        ) AS s
        {_OF_OPEN_RUN}
        WHERE j.workflow_run_id IS NOT NULL
            AND j.status IN ('SUCCEEDED', 'DEAD_LETTERED', 'CANCELED')
    """),
    ReachedRow,
)

# Steps that end in this transaction, or are doomed, whatever is stored of them yet.
REACH_FROM_STEPS: Final = Statement(
    _reach(f"""
        SELECT s.id, s.workflow_run_id, n.status::runledger.workflow_step_status AS status
        FROM (
            SELECT m.id, m.status
            FROM unnest(%(step_ids)s::uuid[], %(ends)s::text[]) AS m(id, status)
            LIMIT cardinality(%(step_ids)s::uuid[])
        ) AS n
        CROSS JOIN LATERAL (
            SELECT t.id, t.workflow_run_id
            FROM runledger.workflow_steps AS t
            WHERE t.id = n.id
            OFFSET 0
        ) AS s
        {_OF_OPEN_RUN}
    """),
    ReachedRow,
)


def reach_from_jobs(job_ids: Sequence[UUID]) -> Bound[ReachedRow]:
    """Return the read of what the ends of jobs reach, and of the steps that they end."""
    return Bound(REACH_FROM_JOBS, {"job_ids": list(job_ids), "past_joins": False})


def reach_from_steps(
    ended: Mapping[UUID, WorkflowStepStatus], *, past_joins: bool = False
) -> Bound[ReachedRow]:
    """Return the read of what the ends of steps reach.

    Args:
        past_joins: Read on past steps that wait for others too, to all that could be reached.
    """
    return Bound(
        REACH_FROM_STEPS,
        {"step_ids": list(ended), "ends": list(ended.values()), "past_joins": past_joins},
    )


def ended_steps(rows: Iterable[ReachedRow]) -> dict[UUID, WorkflowStepStatus]:
    """Return the steps that have ended, and how."""
    return {row.step_id: row.end for row in rows if row.end is not None}


def blocked_steps(rows: Iterable[ReachedRow]) -> list[WorkflowBlockedStep[UUID]]:
    """Return the BLOCKED steps that were reached, once for each way to them."""
    return [
        WorkflowBlockedStep(
            row.step_id,
            row.dependency_count_pending,
            dependency_count_unsatisfied=row.dependency_count_unsatisfied,
            is_expanded=row.is_expanded,
        )
        for row in rows
        if row.end is None
    ]


def reached_edges(rows: Sequence[ReachedRow]) -> list[WorkflowStepEdge[UUID]]:
    """Return the edges that were followed.

    Raises:
        InternalError: `workflow.internal_state` if one leads into another run.
    """
    runs = {row.step_id: row.workflow_run_id for row in rows}
    edges: list[WorkflowStepEdge[UUID]] = []
    for row in rows:
        if row.prerequisite_step_id is None or row.release_mode is None:
            continue
        if runs[row.prerequisite_step_id] != row.workflow_run_id:
            message = "a step waits for one of another run"
            raise InternalError(codes.WORKFLOW_INTERNAL_STATE, message)
        edges.append(
            WorkflowStepEdge(row.prerequisite_step_id, row.step_id, release_mode=row.release_mode)
        )
    return edges
