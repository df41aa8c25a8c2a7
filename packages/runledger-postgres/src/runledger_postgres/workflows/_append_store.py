"""The steps of an append: counted, inserted and, where they are doomed, canceled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final
from uuid import UUID

from runledger_core.workflows import (
    WorkflowRunCounters,
    WorkflowStepCounters,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
    WorkflowStepStatus,
    WorkflowStepVerdict,
)

from .._rows import Statement, column
from .._session import Bound
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
    undefined_step,
)
from ._held_run import HeldRun
from ._reached import reach_from_steps
from ._settle import settle


@dataclass(frozen=True, slots=True)
class NamedStepRow:
    """A step of the run that an append names: new key, prerequisite or gate."""

    id: UUID
    step_key: str
    _: KW_ONLY
    execution_kind: WorkflowStepExecutionKind = column(WorkflowStepExecutionKind)
    status: WorkflowStepStatus = column(WorkflowStepStatus)


@dataclass(frozen=True, slots=True)
class AppendedRow:
    """What became of the request; without ids nothing was stored."""

    step_ids: list[UUID]
    undefined_entry: int | None
    woken: int
    is_whole: bool


READ_NAMED_STEPS: Final = Statement(
    """
    SELECT s.id, s.step_key, s.execution_kind::text AS execution_kind, s.status::text AS status
    FROM runledger.workflow_steps AS s
    WHERE s.workflow_run_id = %(run_id)s::uuid AND s.step_key = ANY (%(step_keys)s::text[])
    """,
    NamedStepRow,
)

_IS_WHOLE: Final = f"""
    u.entry IS NOT NULL OR (
        ({IS_GRAPH_WHOLE})
        AND EXISTS (SELECT FROM mutation)
        AND EXISTS (SELECT FROM counted)
    )
"""

# The run is locked, so its counters are those of this statement's snapshot. Steps that are doomed
# from the start count as open here, and as canceled once it is settled what follows from them. With
# an open gate the run does not end by this.
APPEND_STEPS: Final = Statement(
    f"""
    WITH requested AS MATERIALIZED (
        {REQUESTED_STEPS}
    ), undefined AS MATERIALIZED (
        SELECT min(u.entry) AS entry FROM ({UNDEFINED_STEPS}) AS u
    ), run AS MATERIALIZED (
        SELECT %(run_id)s::uuid AS id
        FROM undefined AS u
        WHERE u.entry IS NULL
    ), run_ids AS (
        SELECT ARRAY[%(run_id)s::uuid] AS ids
    ), resolved AS MATERIALIZED (
        {RESOLVED_STEPS}
    ), steps AS (
        {INSERT_STEPS}
    ), edges AS (
        {INSERT_EDGES}
    ), made_due AS (
        {INSERT_STEP_JOBS}
    ), mutation AS (
        INSERT INTO runledger.workflow_run_mutations (
            workflow_run_id, mutation_key, metadata, request, created_at, updated_at
        )
        SELECT
            n.id, %(mutation_key)s::text, %(metadata)s::jsonb, %(snapshot)s::jsonb,
            statement_timestamp(), statement_timestamp()
        FROM run AS n
        RETURNING id
    ), counted AS (
        UPDATE runledger.workflow_runs AS w
        SET
            steps_open = w.steps_open + %(steps_open)s::int4,
            steps_waiting_external = w.steps_waiting_external + %(steps_waiting_external)s::int4,
            status = CASE
                WHEN w.steps_open + %(steps_open)s::int4
                    > w.steps_waiting_external + %(steps_waiting_external)s::int4
                    THEN 'RUNNING'
                ELSE 'WAITING_FOR_EXTERNAL'
            END::runledger.workflow_run_status,
            updated_at = statement_timestamp()
        FROM run AS n
        WHERE w.id = n.id
        RETURNING w.id
    )
    SELECT
        ARRAY(SELECT r.id FROM resolved AS r ORDER BY r.entry) AS step_ids,
        u.entry AS undefined_entry,
        ({COUNT_WOKEN}) AS woken,
        {whole_or_error(_IS_WHOLE)} AS is_whole
    FROM undefined AS u
    """,
    AppendedRow,
)


def insert_steps(
    held: HeldRun,
    append: WorkflowStepsAppend,
    stored: Mapping[str, NamedStepRow],
    snapshot: str,
    trace_context: str | None,
) -> list[Bound[Any]]:
    """Insert the steps of an append.

    Args:
        stored: The steps of the run that it names, by key, read under the lock.
        snapshot: What a repeated append is compared with.

    Returns:
        What is still to be written of steps that are doomed.

    Raises:
        ValidationError: `workflow.definition_not_found_or_disabled`.
        InternalError: `db.rows_kept_back` if a trigger of the host kept rows back.
    """
    ends = {key: row.status for key, row in stored.items()}
    new = NewSteps(
        append.steps,
        organization_id=held.run.organization_id,
        counters=[WorkflowStepCounters.of(step.dependencies, ends) for step in append.steps],
        stored={key: row.id for key, row in stored.items()},
    )
    added = WorkflowRunCounters.of(new.statuses)
    parameters = graph_parameters([new]) | {
        "run_id": held.run.id,
        "steps_open": added.steps_open + added.steps_canceled,
        "steps_waiting_external": added.steps_waiting_external,
        "mutation_key": append.mutation_key,
        "metadata": append.mutation_metadata_json,
        "snapshot": snapshot,
        "trace_context": trace_context,
    }
    (row,) = held.work.fetch(Bound(APPEND_STEPS, parameters))
    if row.undefined_entry is not None:
        raise undefined_step(row.undefined_entry - 1)
    doomed = {
        step_id: WorkflowStepStatus.CANCELED
        for step_id, counts in zip(row.step_ids, new.counters, strict=True)
        if counts.verdict is WorkflowStepVerdict.DOOMED
    }
    if not doomed:
        return []
    return settle(held.work, held.work.fetch(reach_from_steps(doomed)))
