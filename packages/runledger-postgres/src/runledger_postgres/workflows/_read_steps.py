"""Steps and edges of a run: pages of them, and one step by its key."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from runledger_core import Scope, StepKey, check_uuid

from .._database import Database
from .._paging import require_cursor, require_page
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from .rows import (
    WorkflowStepDependencyCursor,
    WorkflowStepDependencyRecord,
    WorkflowStepRecord,
    WorkflowStepSummary,
)

_FIRST: Final = UUID(int=0)

_RUN_IN_SCOPE: Final = f"""
    EXISTS (
        SELECT FROM runledger.workflow_runs AS q
        WHERE q.id = %(workflow_run_id)s::uuid AND {IN_SCOPE}
    )
"""

# Of a step aliased s and its job, if it has one, aliased j.
_SUMMARY_COLUMNS: Final = """
    s.id, s.workflow_run_id, s.step_key, s.execution_kind, s.organization_id,
    CASE
        WHEN s.status = 'ENQUEUED' AND j.status = 'LEASED' THEN 'RUNNING'
        ELSE s.status::text
    END AS status,
    s.job_type, s.job_id, s.priority, j.attempt, s.max_attempts, s.timeout_seconds,
    coalesce(j.stage, s.stage) AS stage, s.dependency_count_total, s.dependency_count_pending,
    s.dependency_count_unsatisfied, coalesce(s.status_reason, j.status_reason) AS status_reason,
    coalesce(s.last_error_code, j.last_error_code) AS last_error_code,
    s.created_at, s.released_at, coalesce(s.started_at, j.started_at) AS started_at, s.finished_at,
    greatest(s.updated_at, j.updated_at) AS updated_at
"""
# A JSON null is a value here; only NULL is none.
_BODIES: Final = """
    coalesce(s.payload, j.payload) AS payload, coalesce(s.output, j.output) AS output,
    coalesce(s.last_error_message, j.last_error_message) AS last_error_message
"""
# Looked up one by one, not joined: without statistics the planner would read the whole queue.
_JOB: Final = """
    LEFT JOIN LATERAL (
        SELECT q.* FROM runledger.job_queue AS q WHERE q.id = s.job_id OFFSET 0
    ) AS j ON true
"""

# The run is a range and no constant: for the order by id alone the planner may walk the steps of
# all runs.
LIST_WORKFLOW_STEPS: Final = Statement(
    f"""
    SELECT {_SUMMARY_COLUMNS}
    FROM runledger.workflow_steps AS s
    {_JOB}
    WHERE s.workflow_run_id BETWEEN %(workflow_run_id)s::uuid AND %(workflow_run_id)s::uuid
        AND s.id > %(place)s::uuid
        AND {_RUN_IN_SCOPE}
    ORDER BY s.workflow_run_id, s.id
    LIMIT %(limit)s::int8
    """,
    WorkflowStepSummary,
)
LIST_WORKFLOW_STEPS_BEFORE: Final = Statement(
    f"""
    SELECT {_SUMMARY_COLUMNS}
    FROM runledger.workflow_steps AS s
    {_JOB}
    WHERE s.workflow_run_id BETWEEN %(workflow_run_id)s::uuid AND %(workflow_run_id)s::uuid
        AND s.id < %(place)s::uuid
        AND {_RUN_IN_SCOPE}
    ORDER BY s.workflow_run_id DESC, s.id DESC
    LIMIT %(limit)s::int8
    """,
    WorkflowStepSummary,
)

GET_WORKFLOW_STEP: Final = Statement(
    f"""
    SELECT {_SUMMARY_COLUMNS}, {_BODIES}
    FROM runledger.workflow_steps AS s
    {_JOB}
    WHERE s.workflow_run_id = %(workflow_run_id)s::uuid
        AND s.step_key = %(step_key)s::text
        AND {_RUN_IN_SCOPE}
    """,
    WorkflowStepRecord,
)

_EDGE_COLUMNS: Final = """
    (SELECT s.step_key FROM runledger.workflow_steps AS s WHERE s.id = e.prerequisite_step_id)
        AS prerequisite_step_key,
    (SELECT s.step_key FROM runledger.workflow_steps AS s WHERE s.id = e.dependent_step_id)
        AS dependent_step_key,
    e.workflow_run_id, e.prerequisite_step_id, e.dependent_step_id, e.release_mode, e.created_at
"""
_EDGE: Final = "(e.prerequisite_step_id, e.dependent_step_id)"
_PLACE: Final = "(%(prerequisite_step_id)s::uuid, %(dependent_step_id)s::uuid)"

LIST_WORKFLOW_STEP_DEPENDENCIES: Final = Statement(
    f"""
    SELECT {_EDGE_COLUMNS}
    FROM runledger.workflow_step_dependencies AS e
    WHERE e.workflow_run_id = %(workflow_run_id)s::uuid
        AND {_EDGE} > {_PLACE}
        AND {_RUN_IN_SCOPE}
    ORDER BY e.prerequisite_step_id, e.dependent_step_id
    LIMIT %(limit)s::int8
    """,
    WorkflowStepDependencyRecord,
)
LIST_WORKFLOW_STEP_DEPENDENCIES_BEFORE: Final = Statement(
    f"""
    SELECT {_EDGE_COLUMNS}
    FROM runledger.workflow_step_dependencies AS e
    WHERE e.workflow_run_id = %(workflow_run_id)s::uuid
        AND {_EDGE} < {_PLACE}
        AND {_RUN_IN_SCOPE}
    ORDER BY e.prerequisite_step_id DESC, e.dependent_step_id DESC
    LIMIT %(limit)s::int8
    """,
    WorkflowStepDependencyRecord,
)


def list_workflow_steps(
    db: Database,
    run_id: UUID,
    *,
    scope: Scope,
    limit: int = 100,
    after: UUID | None = None,
    before: UUID | None = None,
) -> list[WorkflowStepSummary]:
    """Return one page of a run's steps without their bodies, in the order they were added.

    Args:
        scope: Whose run it may be; its steps may belong to other organizations.
        limit: Most steps, 1 to 1,000.
        after: Id of the step before the page; None for the first page.
        before: Id of the step behind the page.

    Returns:
        At most `limit` steps, by ascending id, those next to the cursor; empty if no run of that id
        is in scope.

    Raises:
        ValidationError: `job.invalid_pagination`, or an `input.*` code for a cursor.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    parameters = _run_parameters(run_id, scope) | {"limit": limit}
    if before is not None:
        place = {"place": check_uuid(before, field="before")}
        return run(db, Bound(LIST_WORKFLOW_STEPS_BEFORE, parameters | place))[::-1]
    place = {"place": _FIRST if after is None else check_uuid(after, field="after")}
    return run(db, Bound(LIST_WORKFLOW_STEPS, parameters | place))


def get_workflow_step(
    db: Database, run_id: UUID, step_key: str, *, scope: Scope
) -> WorkflowStepRecord | None:
    """Return a step with its bodies, or None if no run in scope has a step of that key.

    Args:
        scope: Whose run it may be.

    Raises:
        ValidationError: An `input.*` code that names the argument.
        InternalError: `job.undecodable_row` if Python cannot read its JSON.

    Transaction: joins the caller's or opens one.
    """
    key = {"step_key": StepKey(step_key)}
    rows = run(db, Bound(GET_WORKFLOW_STEP, key | _run_parameters(run_id, scope)))
    return rows[0] if rows else None


def list_workflow_step_dependencies(
    db: Database,
    run_id: UUID,
    *,
    scope: Scope,
    limit: int = 100,
    after: WorkflowStepDependencyCursor | None = None,
    before: WorkflowStepDependencyCursor | None = None,
) -> list[WorkflowStepDependencyRecord]:
    """Return one page of a run's edges, by prerequisite and then by dependent.

    Args:
        scope: Whose run it may be.
        limit: Most edges, 1 to 1,000.
        after: `cursor` of the edge before the page; None for the first page.
        before: `cursor` of the edge behind the page.

    Returns:
        At most `limit` edges, those next to the cursor; empty if there are none, or no run of that
        id is in scope. Steps that are added later may have edges anywhere in the order.

    Raises:
        ValidationError: `job.invalid_pagination`.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit, after=after, before=before)
    require_cursor(after, WorkflowStepDependencyCursor, field="after")
    require_cursor(before, WorkflowStepDependencyCursor, field="before")
    parameters = _run_parameters(run_id, scope) | {"limit": limit}
    if before is not None:
        bound = Bound(LIST_WORKFLOW_STEP_DEPENDENCIES_BEFORE, parameters | _place(before))
        return run(db, bound)[::-1]
    place = _place(after or WorkflowStepDependencyCursor(_FIRST, _FIRST))
    return run(db, Bound(LIST_WORKFLOW_STEP_DEPENDENCIES, parameters | place))


def _run_parameters(run_id: UUID, scope: Scope) -> dict[str, object]:
    return {"workflow_run_id": check_uuid(run_id, field="run_id")} | scope_parameters(scope)


def _place(cursor: WorkflowStepDependencyCursor) -> dict[str, object]:
    return {
        "prerequisite_step_id": cursor.prerequisite_step_id,
        "dependent_step_id": cursor.dependent_step_id,
    }
