"""What a repeated request is compared with: the request as it was given, in one fixed form.

Storage keeps the form as `jsonb` and compares it there, where the order of object keys does not
count and 1 equals 1.0. Steps are sorted by key and dependencies by the key of the prerequisite, in
the order of code points (COLLATE "C"), so that the order of a request does not count either.

Values are those of the request, not of job definitions, so that a later change of a definition is
no conflict; a job without a stage has `queued`. What identifies the run is no part of the form: its
type, its own organization and its key.
"""

import json
from collections.abc import Sequence
from uuid import UUID

from runledger_core.workflows.append import WorkflowStepsAppend
from runledger_core.workflows.run import WorkflowRunEnqueue
from runledger_core.workflows.spec import WorkflowStepEnqueue


def workflow_run_snapshot(run: WorkflowRunEnqueue) -> str:
    """Return the form of a run as JSON text: metadata, steps, and the result step if declared."""
    steps = _steps_json(run.steps, run.organization_id)
    result_key = run.result_step_key
    result = "" if result_key is None else f',"result_step_key":{_text(result_key)}'
    return f'{{"metadata":{run.metadata_json},"steps":{steps}{result}}}'


def workflow_append_snapshot(
    append: WorkflowStepsAppend, *, organization_id: UUID | None = None
) -> str:
    """Return the form of an append as JSON text: its gate and its steps.

    The metadata of the mutation is not part of it.

    Args:
        organization_id: Owner of the run, which steps have that name none.
    """
    window = _text(append.append_window_step_key)
    steps = _steps_json(append.steps, organization_id)
    return f'{{"append_window_step_key":{window},"steps":{steps}}}'


def _steps_json(steps: Sequence[WorkflowStepEnqueue], organization_id: UUID | None) -> str:
    ordered = sorted(steps, key=lambda step: step.step_key)
    return f"[{','.join(_step_json(step, organization_id) for step in ordered)}]"


def _step_json(step: WorkflowStepEnqueue, organization_id: UUID | None) -> str:
    owner = organization_id if step.organization_id is None else step.organization_id
    ordered = sorted(step.dependencies, key=lambda edge: edge.prerequisite_step_key)
    edges = [
        {
            "prerequisite_step_key": edge.prerequisite_step_key,
            "release_mode": edge.release_mode,
        }
        for edge in ordered
    ]
    settings = {
        "step_key": step.step_key,
        "execution_kind": step.execution_kind,
        "job_type": step.job_type,
        "organization_id": None if owner is None else str(owner),
        "priority": step.priority,
        "max_attempts": step.max_attempts,
        "timeout_seconds": step.timeout_seconds,
        "stage": step.stage,
        "dependencies": edges,
    }
    # The payload is text already and goes in as it is.
    return f'{_text(settings)[:-1]},"payload":{step.payload_json}}}'


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
