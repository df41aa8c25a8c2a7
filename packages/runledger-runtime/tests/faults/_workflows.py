"""What the soaks of workflows share: planned runs, and what must have become of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import psycopg

from runledger_core import JobFailure, Scope
from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowExternalCompletion,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
    WorkflowStepStatus,
)
from runledger_postgres.lifecycle import verify_workflow_runs
from runledger_postgres.workflows import (
    append_workflow_steps,
    complete_external_workflow_step,
    enqueue_workflow_run,
)
from runledger_test_support import expected_run_status, expected_step_statuses

JOB_TYPE = "workflow.work"
ENDS = ["SUCCEEDED", "FAILED", "CANCELED"]
OPEN_GATES = """
SELECT s.workflow_run_id, s.step_key, s.payload ->> 'end' FROM runledger.workflow_steps AS s
WHERE s.status = 'WAITING_FOR_EXTERNAL'
"""
COUNT_OPEN = """
SELECT count(*) FROM runledger.workflow_runs WHERE status IN ('RUNNING', 'WAITING_FOR_EXTERNAL')
"""
STEPS = """
SELECT s.workflow_run_id, s.step_key, s.status::text, s.released_at IS NOT NULL
FROM runledger.workflow_steps AS s
"""
RUNS = """
SELECT
    w.id, w.status::text,
    (w.steps_open, w.steps_waiting_external, w.steps_failed, w.steps_canceled) = (
        count(*) FILTER (WHERE s.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')),
        count(*) FILTER (WHERE s.status = 'WAITING_FOR_EXTERNAL'),
        count(*) FILTER (WHERE s.status = 'FAILED'),
        count(*) FILTER (WHERE s.status = 'CANCELED')
    )
FROM runledger.workflow_runs AS w
JOIN runledger.workflow_steps AS s ON s.workflow_run_id = w.id
GROUP BY w.id
"""
UNSETTLED_JOBS = """
SELECT q.id FROM runledger.job_queue AS q
LEFT JOIN runledger.workflow_steps AS s ON s.job_id = q.id
WHERE q.workflow_run_id IS NOT NULL AND s.status::text IS DISTINCT FROM CASE q.status
    WHEN 'SUCCEEDED' THEN 'SUCCEEDED'
    WHEN 'DEAD_LETTERED' THEN 'FAILED'
    WHEN 'CANCELED' THEN 'CANCELED'
    ELSE 'ENQUEUED'
END
"""


@dataclass
class Plan:
    """A run: its steps, and those to be added while a gate is open, by that."""

    steps: list[WorkflowStepEnqueue]
    additions: dict[str, list[WorkflowStepEnqueue]] = field(default_factory=dict)

    def outcomes(self) -> dict[str, WorkflowStepStatus]:
        """Return how each step is to end."""
        return {one.step_key: WorkflowStepStatus(_payload(one)["end"]) for one in self.steps}


def random_plan(chance: Random, *, steps: int) -> Plan:
    """Return a run of up to so many steps; one gate in two gets additions."""
    plan = Plan(random_steps(chance, chance.randint(1, steps), []))
    keys = [one.step_key for one in plan.steps]
    for gate in [one.step_key for one in plan.steps if one.job_type is None]:
        if chance.random() < 0.5:
            plan.additions[gate] = random_steps(chance, chance.randint(1, 5), keys)
    return plan


def random_steps(chance: Random, count: int, known: Sequence[str]) -> list[WorkflowStepEnqueue]:
    """Return steps that wait for each other and for known ones."""
    keys, steps = list(known), list[WorkflowStepEnqueue]()
    for _ in range(count):
        is_gate = chance.random() < 0.1
        payload = {
            "end": chance.choices(ENDS, [90, 7, 3])[0],
            "failures": chance.choices([0, 1, 2], [90, 8, 2])[0],
            "milliseconds": chance.choices([0, 5, 50, 1_200], [50, 40, 9, 1])[0],
        }
        step = WorkflowStepEnqueue(
            f"{len(keys)}-{chance.getrandbits(64):016x}",
            None if is_gate else JOB_TYPE,
            payload=payload,
            execution_kind=WorkflowStepExecutionKind.EXTERNAL
            if is_gate
            else WorkflowStepExecutionKind.JOB,
            dependencies=[
                WorkflowStepDependencySpec(key, chance.choice(list(WorkflowDependencyReleaseMode)))
                for key in chance.sample(keys, chance.randint(0, min(3, len(keys))))
            ],
        )
        steps.append(step)
        keys.append(step.step_key)
    return steps


def enqueue(db: psycopg.Connection[Any], plan: Plan) -> UUID:
    """Enqueue a planned run."""
    return enqueue_workflow_run(db, WorkflowRunEnqueue("workflow.soak", steps=plan.steps)).id


def add_steps(
    db: psycopg.Connection[Any],
    run_id: UUID,
    gate: str,
    steps: Sequence[WorkflowStepEnqueue],
    *,
    name: str = "once",
) -> None:
    """Append steps while a gate is open; under the same name only once."""
    append = WorkflowStepsAppend(
        run_id, f"{name} at {gate}", append_window_step_key=gate, steps=steps
    )
    append_workflow_steps(db, append, scope=Scope.ADMIN)


def complete_gate(db: psycopg.Connection[Any], run_id: UUID, gate: str, end: str) -> None:
    """End an open gate."""
    completion = WorkflowExternalCompletion(WorkflowStepStatus(end))
    complete_external_workflow_step(db, run_id, gate, completion, scope=Scope.ADMIN)


def work(context: Any, payload: Any) -> None:
    """Be the handler: end as is planned; what is to be canceled waits for that."""
    seconds = 60 if payload["end"] == "CANCELED" else payload["milliseconds"] / 1_000
    if context.wait(seconds):
        context.raise_if_cancelled()
    if context.attempt <= payload["failures"]:
        raise JobFailure.retryable("test.again", "as planned")
    if payload["end"] == "FAILED":
        raise JobFailure.terminal("test.failed", "as planned")


def disagreements(
    db: psycopg.Connection[Any],
    plans: dict[UUID, Plan],
    *,
    is_as_planned: bool,
) -> list[str]:
    """Return what is stored otherwise than the edges say.

    Args:
        is_as_planned: Whether steps must have ended as planned; else what their jobs and gates
            came to is taken for granted, and only what follows from it is judged.
    """
    stored: dict[UUID, dict[str, WorkflowStepStatus]] = {run_id: {} for run_id in plans}
    ends: dict[UUID, dict[str, WorkflowStepStatus]] = {run_id: {} for run_id in plans}
    for run_id, key, text, is_released in db.execute(STEPS):
        stored[run_id][key] = WorkflowStepStatus(text)
        if is_released:
            ends[run_id][key] = WorkflowStepStatus(text)
    found = [str(difference) for difference in verify_workflow_runs(db, scope=Scope.ADMIN)]
    found += [f"job {row[0]} and its step differ" for row in db.execute(UNSETTLED_JOBS)]
    for run_id, status, is_counted in db.execute(RUNS):
        outcomes = plans[run_id].outcomes() if is_as_planned else ends[run_id]
        expected = expected_step_statuses(plans[run_id].steps, outcomes)
        if not is_counted:
            found.append(f"counters of {run_id}")
        if status == "CANCELED":
            found += _of_canceled(run_id, stored[run_id], expected)
        elif (status, stored[run_id]) != (expected_run_status(expected.values()), expected):
            found.append(f"{run_id} is {status}: {stored[run_id]}, not {expected}")
    return found


def _of_canceled(
    run_id: UUID,
    stored: dict[str, WorkflowStepStatus],
    expected: dict[str, WorkflowStepStatus],
) -> Iterable[str]:
    for key, status in stored.items():
        if status not in {expected[key], WorkflowStepStatus.CANCELED}:
            yield f"{key} of {run_id}, which was canceled, is {status}, not {expected[key]}"


def _payload(step: WorkflowStepEnqueue) -> Any:
    return step.payload
