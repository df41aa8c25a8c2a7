"""The counters that are stored with runs and steps, and what follows from them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Self

from runledger_core.workflows.spec import WorkflowStepDependencySpec
from runledger_core.workflows.status import WorkflowRunStatus, WorkflowStepStatus


@dataclass(frozen=True, slots=True)
class WorkflowRunCounters:
    """Count the steps of a run.

    Attributes:
        steps_open: Steps that have not ended, open gates among them.
        steps_waiting_external: Open gates: steps that are WAITING_FOR_EXTERNAL.
        steps_failed: Steps that ended as FAILED.
        steps_canceled: Steps that ended as CANCELED.
    """

    _: KW_ONLY
    steps_open: int = 0
    steps_waiting_external: int = 0
    steps_failed: int = 0
    steps_canceled: int = 0

    @classmethod
    def of(cls, statuses: Iterable[WorkflowStepStatus]) -> Self:
        """Return the counters of steps with these statuses."""
        all_statuses = list(statuses)
        return cls(
            steps_open=sum(not status.is_terminal for status in all_statuses),
            steps_waiting_external=all_statuses.count(WorkflowStepStatus.WAITING_FOR_EXTERNAL),
            steps_failed=all_statuses.count(WorkflowStepStatus.FAILED),
            steps_canceled=all_statuses.count(WorkflowStepStatus.CANCELED),
        )


def run_status(
    counters: WorkflowRunCounters, *, current: WorkflowRunStatus = WorkflowRunStatus.RUNNING
) -> WorkflowRunStatus:
    """Return the status of a run from its counters; a cancelled run stays cancelled.

    Args:
        current: Status of the run before its steps changed.
    """
    if current == WorkflowRunStatus.CANCELED:
        return WorkflowRunStatus.CANCELED
    if counters.steps_open > counters.steps_waiting_external:
        return WorkflowRunStatus.RUNNING
    if counters.steps_open:
        return WorkflowRunStatus.WAITING_FOR_EXTERNAL
    if counters.steps_failed or counters.steps_canceled:
        return WorkflowRunStatus.COMPLETED_WITH_ERRORS
    return WorkflowRunStatus.SUCCEEDED


class WorkflowStepVerdict(StrEnum):
    """Tell what becomes of a BLOCKED step after some of its prerequisites have ended."""

    WAITING = "WAITING"
    """Others have not ended."""
    RELEASED = "RELEASED"
    """It makes its job, or opens its gate."""
    DOOMED = "DOOMED"
    """It is cancelled, since a prerequisite that had to succeed did not."""


def step_verdict(pending: int, unsatisfied: int) -> WorkflowStepVerdict:
    """Return what becomes of a BLOCKED step with these counters."""
    if pending:
        return WorkflowStepVerdict.WAITING
    return WorkflowStepVerdict.DOOMED if unsatisfied else WorkflowStepVerdict.RELEASED


@dataclass(frozen=True, slots=True)
class WorkflowStepCounters:
    """Count the prerequisites of a step.

    Attributes:
        dependency_count_total: All of them.
        dependency_count_pending: Those that have not ended.
        dependency_count_unsatisfied: Those that ended in another way than the edge demands.
    """

    _: KW_ONLY
    dependency_count_total: int
    dependency_count_pending: int
    dependency_count_unsatisfied: int

    @classmethod
    def of(
        cls,
        dependencies: Sequence[WorkflowStepDependencySpec],
        statuses: Mapping[str, WorkflowStepStatus],
    ) -> Self:
        """Return the counters of a step from its edges.

        Args:
            statuses: Where the prerequisites stand, by key. One that is left out is new and has
                not ended, as all are when a run is enqueued.
        """
        ended = [
            (edge.release_mode, statuses[edge.prerequisite_step_key])
            for edge in dependencies
            if edge.prerequisite_step_key in statuses
            and statuses[edge.prerequisite_step_key].is_terminal
        ]
        return cls(
            dependency_count_total=len(dependencies),
            dependency_count_pending=len(dependencies) - len(ended),
            dependency_count_unsatisfied=sum(
                not mode.is_satisfied_by(status) for mode, status in ended
            ),
        )

    @property
    def verdict(self) -> WorkflowStepVerdict:
        """Return what becomes of a BLOCKED step with these counters."""
        return step_verdict(self.dependency_count_pending, self.dependency_count_unsatisfied)
