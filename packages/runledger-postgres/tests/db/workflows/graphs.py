"""Random graphs, and what is known of a run that was made of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)
from runledger_test_support import expected_run_status, expected_step_statuses

from .conftest import JOB_TYPE


@st.composite
def graphs(draw: st.DrawFn, *, most: int) -> list[WorkflowStepEnqueue]:
    """Steps whose edges lead to earlier ones, told in any order."""
    modes = st.sampled_from(WorkflowDependencyReleaseMode)
    steps = []
    for place in range(draw(st.integers(1, most))):
        edges = draw(st.dictionaries(st.integers(0, place - 1), modes, max_size=3)) if place else {}
        attempts = draw(st.sampled_from([2, 1, 1, 3, 2, 1, 3, 0]))
        steps.append(step(str(place), {str(k): mode for k, mode in edges.items()}, attempts))
    return draw(st.permutations(steps))


def step(
    key: str, edges: Mapping[str, WorkflowDependencyReleaseMode], attempts: int
) -> WorkflowStepEnqueue:
    """Return a step that makes a job with so many attempts, or a gate if there are none."""
    return WorkflowStepEnqueue(
        key,
        JOB_TYPE if attempts else None,
        execution_kind=WorkflowStepExecutionKind.JOB
        if attempts
        else WorkflowStepExecutionKind.EXTERNAL,
        max_attempts=attempts or None,
        dependencies=[WorkflowStepDependencySpec(other, mode) for other, mode in edges.items()],
    )


@dataclass
class Run:
    """A run, and how those of its steps that have ended did."""

    steps: list[WorkflowStepEnqueue]
    outcomes: dict[str, WorkflowStepStatus] = field(default_factory=dict)
    canceled: dict[str, WorkflowStepStatus] | None = None
    _reckoned: dict[tuple[int, int], dict[str, WorkflowStepStatus]] = field(default_factory=dict)

    def statuses(self) -> dict[str, WorkflowStepStatus]:
        """Return where its steps must stand."""
        if self.canceled:
            return self.canceled
        # Both only grow.
        known = len(self.steps), len(self.outcomes)
        if known not in self._reckoned:
            self._reckoned = {known: expected_step_statuses(self.steps, self.outcomes)}
        return self._reckoned[known]

    def status(self) -> WorkflowRunStatus:
        """Return how it must stand itself."""
        if self.canceled:
            return WorkflowRunStatus.CANCELED
        return expected_run_status(self.statuses().values())

    def keys(self, status: WorkflowStepStatus) -> list[str]:
        """Return the steps that stand so."""
        return [key for key, found in self.statuses().items() if found is status]

    def cancel(self) -> None:
        """Let it be canceled as it stands."""
        self.canceled = {
            key: status if status.is_terminal else WorkflowStepStatus.CANCELED
            for key, status in self.statuses().items()
        }
