"""What tests of appends speak of: requests, their steps, and what they make of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest

from runledger_core import RunledgerError, Scope, WorkflowExternalCompletion
from runledger_core.workflows import (
    WorkflowDagBuilder,
    WorkflowDependencyReleaseMode,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
)
from runledger_postgres.workflows import (
    AppendedWorkflowSteps,
    append_workflow_steps,
    complete_external_workflow_step,
)

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
OWNER, STRANGER = UUID(int=1), UUID(int=2)
SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
TERMINAL = WorkflowDependencyReleaseMode.ON_TERMINAL

Edges = Mapping[str, WorkflowDependencyReleaseMode]

ROWS = """
    SELECT array_agg(t.line ORDER BY t.line) FROM (
        SELECT s.ctid::text || s::text AS line FROM runledger.workflow_steps s
        UNION ALL SELECT w.ctid::text || w::text FROM runledger.workflow_runs w
        UNION ALL SELECT q.ctid::text || q::text FROM runledger.job_queue q
        UNION ALL SELECT e.ctid::text || e::text FROM runledger.workflow_step_dependencies e
        UNION ALL SELECT m.ctid::text || m::text FROM runledger.workflow_run_mutations m
    ) t
"""


def job(key: str, edges: Edges | None = None, **fields: Any) -> WorkflowStepEnqueue:
    """Return a step that makes a job, by default with its key in the payload."""
    fields = {"payload": {"of": key}, "dependencies": dependencies(edges)} | fields
    return WorkflowStepEnqueue(key, JOB_TYPE, **fields)


def gate(key: str, edges: Edges | None = None) -> WorkflowStepEnqueue:
    """Return a gate."""
    kind = WorkflowStepExecutionKind.EXTERNAL
    return WorkflowStepEnqueue(key, None, execution_kind=kind, dependencies=dependencies(edges))


def dependencies(edges: Edges | None) -> list[WorkflowStepDependencySpec]:
    return [WorkflowStepDependencySpec(key, mode) for key, mode in (edges or {}).items()]


def request(run_id: UUID, *steps: WorkflowStepEnqueue, **fields: Any) -> WorkflowStepsAppend:
    """Return an append to the gate named `gate`, by default of one step named `new`."""
    fields = {"mutation_key": "first", "append_window_step_key": "gate"} | fields
    return WorkflowStepsAppend(run_id, steps=steps or [job("new")], **fields)


def append(
    workflows: Workflows, wanted: WorkflowStepsAppend, *, db: Any = None, **arguments: Any
) -> AppendedWorkflowSteps:
    arguments = {"scope": ADMIN} | arguments
    return append_workflow_steps(db or workflows.pool, wanted, **arguments)


def statuses(appended: AppendedWorkflowSteps) -> dict[str, str]:
    return {step.step_key: str(step.status) for step in appended.steps}


def refused(call: Callable[[], object]) -> str:
    """Return the code with which a call is refused."""
    with pytest.raises(RunledgerError) as caught:
        call()
    return caught.value.code


def close(workflows: Workflows, run_id: UUID, step_key: str = "gate") -> None:
    """Complete a gate."""
    succeeded = WorkflowExternalCompletion.succeeded()
    complete_external_workflow_step(workflows.pool, run_id, step_key, succeeded, scope=ADMIN)


def finish(workflows: Workflows, run_id: UUID) -> str:
    """Succeed whatever comes, close the gate, and return what the run ended as."""
    close(workflows, run_id)
    while jobs := workflows.claim():
        for claimed in jobs.values():
            workflows.succeed(claimed)
    return workflows.status(run_id)


def half_ended_run(workflows: Workflows) -> UUID:
    """Enqueue a run whose gate is open: `bad` has failed, `good` succeeded, `slow` runs."""
    run_id = workflows.enqueue_jobs(
        {"gate": [], "bad": [], "good": [], "slow": []}, gates=("gate",)
    )
    jobs = workflows.claim()
    workflows.fail(jobs["bad"])
    workflows.succeed(jobs["good"])
    return run_id


def owned_run(workflows: Workflows) -> UUID:
    """Enqueue a run of one gate that belongs to an organization."""
    builder = WorkflowDagBuilder("test.workflow", {}).organization_id(OWNER)
    return workflows.enqueue(builder.external("gate", {}).build())
