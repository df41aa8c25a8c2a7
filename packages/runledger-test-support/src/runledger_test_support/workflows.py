"""What a graph comes to, from its edges alone: to try one without a database, or to check a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepEnqueue,
    WorkflowStepStatus,
)


def expected_step_statuses(
    steps: Sequence[WorkflowStepEnqueue], outcomes: Mapping[str, WorkflowStepStatus]
) -> dict[str, WorkflowStepStatus]:
    """Return where each step stands, by its key, once some have ended.

    It looks at all steps again and again until nothing changes, and shares nothing with what
    settles the steps of a stored run.

    Args:
        steps: All steps of a run, those that were appended too.
        outcomes: How steps end that come to run, and gates that come to open; one that is left out
            stays ENQUEUED or WAITING_FOR_EXTERNAL. What is given for a step that is never released
            has no effect.
    """
    statuses = dict.fromkeys((step.step_key for step in steps), WorkflowStepStatus.BLOCKED)
    before = None
    while statuses != before:
        before = dict(statuses)
        for step in steps:
            ends = [
                (edge.release_mode, statuses[edge.prerequisite_step_key])
                for edge in step.dependencies
            ]
            if not all(status.is_terminal for _, status in ends):
                continue
            if all(
                status is WorkflowStepStatus.SUCCEEDED
                for mode, status in ends
                if mode is WorkflowDependencyReleaseMode.ON_SUCCESS
            ):
                released = step.execution_kind.released_status
                statuses[step.step_key] = outcomes.get(step.step_key, released)
            else:
                statuses[step.step_key] = WorkflowStepStatus.CANCELED
    return statuses


def expected_run_status(statuses: Iterable[WorkflowStepStatus]) -> WorkflowRunStatus:
    """Return the status of a run whose steps stand so, unless the run itself was cancelled."""
    found = set(statuses)
    open_ones = {status for status in found if not status.is_terminal}
    if open_ones == {WorkflowStepStatus.WAITING_FOR_EXTERNAL}:
        return WorkflowRunStatus.WAITING_FOR_EXTERNAL
    if open_ones:
        return WorkflowRunStatus.RUNNING
    if found <= {WorkflowStepStatus.SUCCEEDED}:
        return WorkflowRunStatus.SUCCEEDED
    return WorkflowRunStatus.COMPLETED_WITH_ERRORS
