"""Steps and edges of a request, as the arrays that their statements take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from runledger_core import ErrorCategory
from runledger_core.workflows import (
    DOOMED_CODE,
    WorkflowDependencyReleaseMode,
    WorkflowStepCounters,
    WorkflowStepEnqueue,
    WorkflowStepStatus,
    WorkflowStepVerdict,
)

from ..errors import QueryError, refusal

# Entry of the prerequisite, or its id if it is stored; entry of the dependent; mode.
_Edge: TypeAlias = tuple[int | None, UUID | None, int, WorkflowDependencyReleaseMode]

# Ids are made before the rows that name them. `run_entry` is the place of a step's run among those
# of the call, `status` how the step begins; one that begins ENQUEUED has a job from the start.
REQUESTED_STEPS: Final = """
    SELECT
        r.*,
        runledger.uuidv7() AS id,
        CASE WHEN r.status = 'ENQUEUED' THEN runledger.uuidv7() END AS job_id
    FROM unnest(
        %(step_keys)s::text[], %(kinds)s::text[], %(statuses)s::text[], %(job_types)s::text[],
        %(organization_ids)s::uuid[], %(payloads)s::jsonb[], %(priorities)s::int4[],
        %(max_attempts)s::int4[], %(timeouts)s::int4[], %(stages)s::text[],
        %(totals)s::int4[], %(pending)s::int4[], %(unsatisfied)s::int4[], %(run_entries)s::int4[]
    ) WITH ORDINALITY AS r(
        step_key, kind, status, job_type, organization_id, payload, priority, max_attempts,
        timeout_seconds, stage, total, pending, unsatisfied, run_entry, entry
    )
"""

# Steps whose job type has no enabled definition.
UNDEFINED_STEPS: Final = """
    SELECT r.entry::int4 AS entry, r.run_entry
    FROM requested AS r
    LEFT JOIN runledger.job_definitions AS d ON d.job_type = r.job_type AND d.is_enabled
    WHERE r.kind = 'JOB' AND d.job_type IS NULL
"""

# Expects `requested`, with settings resolved as `resolved`; `run_ids(ids)`, the runs of the call by
# entry, and `run(id)`, those to store steps of. Looked up in a list: a join of rows that nobody has
# counted may compare each with each. A step that has a job does not keep the payload.
RESOLVED_STEPS: Final = """
    SELECT
        r.id, r.step_key, r.kind, r.status, r.job_type, r.organization_id, r.payload, r.job_id,
        r.total, r.pending, r.unsatisfied, r.entry,
        coalesce(r.priority, d.default_priority) AS priority,
        coalesce(r.max_attempts, d.max_attempts) AS max_attempts,
        coalesce(r.timeout_seconds, d.default_timeout_seconds) AS timeout_seconds,
        r.stage, i.ids[r.run_entry] AS run_id,
        i.ids[r.run_entry] IN (SELECT n.id FROM run AS n) AS is_new
    FROM requested AS r
    CROSS JOIN run_ids AS i
    LEFT JOIN runledger.job_definitions AS d ON d.job_type = r.job_type AND d.is_enabled
"""
# One that begins CANCELED is doomed from the start.
INSERT_STEPS: Final = f"""
    INSERT INTO runledger.workflow_steps (
        id, workflow_run_id, step_key, job_type, organization_id, payload, priority, max_attempts,
        timeout_seconds, stage, execution_kind, status, job_id, released_at, finished_at,
        status_reason, last_error_code, dependency_count_total, dependency_count_pending,
        dependency_count_unsatisfied, trace_context, created_at, updated_at
    )
    SELECT
        r.id, r.run_id, r.step_key, r.job_type, r.organization_id,
        CASE WHEN r.job_id IS NULL THEN r.payload END,
        r.priority, r.max_attempts, r.timeout_seconds, r.stage,
        r.kind::runledger.workflow_step_execution_kind, r.status::runledger.workflow_step_status,
        r.job_id,
        CASE WHEN r.status IN ('ENQUEUED', 'WAITING_FOR_EXTERNAL') THEN statement_timestamp() END,
        CASE WHEN r.status = 'CANCELED' THEN statement_timestamp() END,
        CASE WHEN r.status = 'CANCELED' THEN '{DOOMED_CODE}' END,
        CASE WHEN r.status = 'CANCELED' THEN '{DOOMED_CODE}' END,
        r.total, r.pending, r.unsatisfied, %(trace_context)s::text, statement_timestamp(),
        statement_timestamp()
    FROM resolved AS r
    WHERE r.is_new
    ORDER BY r.entry
    RETURNING id
"""
# A prerequisite is a step of the request, by its entry, or a stored one.
INSERT_EDGES: Final = """
    INSERT INTO runledger.workflow_step_dependencies (
        workflow_run_id, prerequisite_step_id, dependent_step_id, release_mode, created_at
    )
    SELECT
        s.run_ids[e.dependent], coalesce(e.prerequisite_id, s.ids[e.prerequisite]),
        s.ids[e.dependent], e.release_mode::runledger.workflow_dependency_release_mode,
        statement_timestamp()
    FROM (
        SELECT
            array_agg(r.id ORDER BY r.entry) AS ids,
            array_agg(r.run_id ORDER BY r.entry) AS run_ids,
            array_agg(r.is_new ORDER BY r.entry) AS are_new
        FROM resolved AS r
    ) AS s
    CROSS JOIN unnest(
        %(prerequisites)s::int4[], %(prerequisite_ids)s::uuid[], %(dependents)s::int4[],
        %(release_modes)s::text[]
    ) AS e(prerequisite, prerequisite_id, dependent, release_mode)
    WHERE s.are_new[e.dependent]
    RETURNING dependent_step_id
"""
STEP_JOB_COLUMNS: Final = """
    id, job_type, organization_id, workflow_run_id, payload, priority, max_attempts,
    timeout_seconds, next_run_at, is_ready, stage, created_at, updated_at, trace_context
"""
INSERT_STEP_JOBS: Final = f"""
    INSERT INTO runledger.job_queue ({STEP_JOB_COLUMNS})
    SELECT
        r.job_id, r.job_type, r.organization_id, r.run_id, r.payload, r.priority, r.max_attempts,
        r.timeout_seconds, statement_timestamp(), true, r.stage, statement_timestamp(),
        statement_timestamp(), %(trace_context)s::text
    FROM resolved AS r
    WHERE r.is_new AND r.job_id IS NOT NULL
    ORDER BY r.entry
    RETURNING job_type, is_ready
"""
# Of `resolved`, `steps`, `edges` and `made_due`: a trigger of the host may have kept back a row,
# and nothing ever comes of a step that has no job, or waits without an edge.
IS_GRAPH_WHOLE: Final = """
    SELECT
        (SELECT count(*) FROM steps) = count(*)
        AND (SELECT count(*) FROM edges) = coalesce(sum(r.total), 0)
        AND (SELECT count(*) FROM made_due) = count(r.job_id)
    FROM resolved AS r
    WHERE r.is_new
"""


@dataclass(frozen=True, slots=True)
class NewSteps:
    """The steps of one run of a call, with how they begin.

    Attributes:
        organization_id: Owner of steps that name none.
        counters: What each of them waits for.
        stored: Stored steps of the run that they may name as prerequisites, by key.
    """

    steps: Sequence[WorkflowStepEnqueue]
    _: KW_ONLY
    organization_id: UUID | None
    counters: Sequence[WorkflowStepCounters]
    stored: Mapping[str, UUID] = field(default_factory=dict[str, UUID])

    @property
    def statuses(self) -> list[WorkflowStepStatus]:
        """How each of the steps begins."""
        return [
            _first_status(step, counts)
            for step, counts in zip(self.steps, self.counters, strict=True)
        ]

    def edges(self, offset: int) -> Iterator[_Edge]:
        """Return the edges into the steps, whose entries begin after `offset`."""
        entries = {step.step_key: entry for entry, step in enumerate(self.steps, offset + 1)}
        for entry, step in enumerate(self.steps, offset + 1):
            for edge in step.dependencies:
                key = edge.prerequisite_step_key
                yield entries.get(key), self.stored.get(key), entry, edge.release_mode


def graph_parameters(runs: Sequence[NewSteps]) -> dict[str, object]:
    """Return the arrays of REQUESTED_STEPS and INSERT_EDGES."""
    steps = [step for new in runs for step in new.steps]
    counters = [counts for new in runs for counts in new.counters]
    edges: list[_Edge] = []
    offset = 0
    for new in runs:
        edges += new.edges(offset)
        offset += len(new.steps)
    return {
        "run_entries": [entry for entry, new in enumerate(runs, start=1) for _ in new.steps],
        "step_keys": [step.step_key for step in steps],
        "kinds": [step.execution_kind for step in steps],
        "statuses": [status for new in runs for status in new.statuses],
        "job_types": [step.job_type for step in steps],
        "organization_ids": [
            step.organization_id or new.organization_id for new in runs for step in new.steps
        ],
        "payloads": [step.payload_json for step in steps],
        "priorities": [step.priority for step in steps],
        "max_attempts": [step.max_attempts for step in steps],
        "timeouts": [step.timeout_seconds for step in steps],
        "stages": [step.stage for step in steps],
        "totals": [counts.dependency_count_total for counts in counters],
        "pending": [counts.dependency_count_pending for counts in counters],
        "unsatisfied": [counts.dependency_count_unsatisfied for counts in counters],
        "prerequisites": [place for place, _, _, _ in edges],
        "prerequisite_ids": [step_id for _, step_id, _, _ in edges],
        "dependents": [dependent for _, _, dependent, _ in edges],
        "release_modes": [mode for _, _, _, mode in edges],
    }


def _first_status(step: WorkflowStepEnqueue, counters: WorkflowStepCounters) -> WorkflowStepStatus:
    match counters.verdict:
        case WorkflowStepVerdict.RELEASED:
            return step.execution_kind.released_status
        case WorkflowStepVerdict.WAITING:
            return WorkflowStepStatus.BLOCKED
        case WorkflowStepVerdict.DOOMED:
            return WorkflowStepStatus.CANCELED
        case _:
            assert_never(counters.verdict)


def undefined_step(place: int, *, request_index: int | None = None) -> QueryError:
    """Return the refusal of a step whose job type cannot be enqueued.

    Args:
        place: The step's in its request, from 0.
        request_index: The request's in a batch, from 0; None without a batch.
    """
    is_batch = request_index is not None
    return refusal(
        ErrorCategory.VALIDATION,
        "workflow.definition_not_found_or_disabled",
        "the job type of a step has no definition, or it is disabled",
        field=f"steps[{place}].job_type" if is_batch else "job_type",
        entry_index=request_index if is_batch else place,
    )
