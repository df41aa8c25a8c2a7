"""The states of workflow runs and of their steps, spelled as they are stored."""

from enum import StrEnum


class WorkflowRunStatus(StrEnum):
    """Tell where a run stands; it follows from its steps, but for a cancellation."""

    RUNNING = "RUNNING"
    """A step waits for others, for a worker, or runs."""
    WAITING_FOR_EXTERNAL = "WAITING_FOR_EXTERNAL"
    """All steps that have not ended are open gates."""
    SUCCEEDED = "SUCCEEDED"
    """All steps succeeded."""
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"
    """All steps ended, one at least as FAILED or CANCELED."""
    CANCELED = "CANCELED"
    """The run was cancelled as a whole."""

    @property
    def is_terminal(self) -> bool:
        """Tell whether nothing can change it."""
        return self not in {WorkflowRunStatus.RUNNING, WorkflowRunStatus.WAITING_FOR_EXTERNAL}


class WorkflowStepStatus(StrEnum):
    """Tell where a step stands."""

    BLOCKED = "BLOCKED"
    """It waits for prerequisites."""
    WAITING_FOR_EXTERNAL = "WAITING_FOR_EXTERNAL"
    """It is an open gate: something outside completes it."""
    ENQUEUED = "ENQUEUED"
    """Its job waits for a worker, a retry too."""
    RUNNING = "RUNNING"
    """A worker has its job. Never stored: it is read from the job."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Its job was dead-lettered, or its gate was completed so."""
    CANCELED = "CANCELED"
    """Someone cancelled it, or a prerequisite that had to succeed did not."""

    @property
    def is_terminal(self) -> bool:
        """Tell whether the step has ended."""
        return self in {
            WorkflowStepStatus.SUCCEEDED,
            WorkflowStepStatus.FAILED,
            WorkflowStepStatus.CANCELED,
        }


class WorkflowDependencyReleaseMode(StrEnum):
    """Tell which end of a prerequisite lets its dependent go on."""

    ON_TERMINAL = "ON_TERMINAL"
    """Any."""
    ON_SUCCESS = "ON_SUCCESS"
    """Only a success; after another end the dependent is cancelled with its last prerequisite."""

    def is_satisfied_by(self, status: WorkflowStepStatus) -> bool:
        """Tell whether a prerequisite with this status lets its dependent go on."""
        if self is WorkflowDependencyReleaseMode.ON_SUCCESS:
            return status == WorkflowStepStatus.SUCCEEDED
        return status.is_terminal


class WorkflowStepExecutionKind(StrEnum):
    """Tell what a step does once it is released."""

    JOB = "JOB"
    """It makes a job."""
    EXTERNAL = "EXTERNAL"
    """It is a gate and waits to be completed from outside."""

    @property
    def released_status(self) -> WorkflowStepStatus:
        """Return the status of a step of this kind when nothing holds it back any more."""
        if self is WorkflowStepExecutionKind.JOB:
            return WorkflowStepStatus.ENQUEUED
        return WorkflowStepStatus.WAITING_FOR_EXTERNAL
