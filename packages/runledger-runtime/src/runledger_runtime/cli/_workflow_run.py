"""A run with its steps and edges, as the verbs about one run read it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from uuid import UUID

import psycopg

from runledger_core import NotFoundError, Scope
from runledger_postgres import (
    WorkflowRunRecord,
    WorkflowStepDependencyCursor,
    WorkflowStepDependencyRecord,
    WorkflowStepSummary,
    get_workflow_run,
    list_workflow_step_dependencies,
    list_workflow_steps,
)

from ._listing import MOST_ROWS


@dataclass(frozen=True, slots=True)
class RunGraph:
    """A run as it stands."""

    run: WorkflowRunRecord
    steps: list[WorkflowStepSummary]
    edges: list[WorkflowStepDependencyRecord]


def require_run(connection: psycopg.Connection, run_id: UUID, *, scope: Scope) -> WorkflowRunRecord:
    """Return a run.

    Raises:
        NotFoundError: `workflow.run_not_found`.
    """
    run = get_workflow_run(connection, run_id, scope=scope)
    if run is None:
        message = "no such workflow run in this scope"
        raise NotFoundError("workflow.run_not_found", message, field="run_id")
    return run


def read_graph(connection: psycopg.Connection, run_id: UUID, *, scope: Scope) -> RunGraph:
    """Return a run with all of its steps and edges, in one snapshot.

    Raises:
        NotFoundError: `workflow.run_not_found`.
    """
    with connection.transaction():
        # Pages of different moments would not fit each other.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        run = require_run(connection, run_id, scope=scope)
        steps = list(_steps(connection, run_id, scope))
        return RunGraph(run, steps, list(_edges(connection, run_id, scope)))


def _steps(
    connection: psycopg.Connection, run_id: UUID, scope: Scope
) -> Generator[WorkflowStepSummary]:
    after: UUID | None = None
    while page := list_workflow_steps(
        connection, run_id, scope=scope, limit=MOST_ROWS, after=after
    ):
        yield from page
        after = page[-1].id


def _edges(
    connection: psycopg.Connection, run_id: UUID, scope: Scope
) -> Generator[WorkflowStepDependencyRecord]:
    after: WorkflowStepDependencyCursor | None = None
    while page := list_workflow_step_dependencies(
        connection, run_id, scope=scope, limit=MOST_ROWS, after=after
    ):
        yield from page
        after = page[-1].cursor
