"""Contracts of workflows: graphs and how they are built, states, and what follows from an end."""

from runledger_core.workflows.append import WorkflowStepsAppend
from runledger_core.workflows.completion import WorkflowExternalCompletion
from runledger_core.workflows.counters import (
    WorkflowRunCounters,
    WorkflowStepCounters,
    WorkflowStepVerdict,
    run_status,
)
from runledger_core.workflows.dag import WorkflowDagBuilder
from runledger_core.workflows.errors import (
    BlankDependencyStepKeyError,
    BlankIdempotencyKeyError,
    BlankMutationKeyError,
    BlankResultStepKeyError,
    BlankStepJobTypeError,
    BlankStepKeyError,
    BlankWorkflowTypeError,
    CycleDetectedError,
    DependencyCountOverflowError,
    DuplicateDependencyError,
    DuplicateStepKeyError,
    EmptyStepsError,
    ExternalStepJobTypeNotAllowedError,
    ExternalStepQueueSettingsNotAllowedError,
    GraphTooLargeError,
    MissingDependencyError,
    NonPositiveStepMaxAttemptsError,
    NonPositiveStepTimeoutSecondsError,
    SelfDependencyError,
    UnknownResultStepKeyError,
    UnknownStepKeyError,
    WorkflowBuildError,
)
from runledger_core.workflows.release import (
    DOOMED_CODE,
    WorkflowBlockedStep,
    WorkflowCascade,
    WorkflowSettledStep,
    WorkflowStepEdge,
    settle_dependents,
)
from runledger_core.workflows.run import WorkflowRunEnqueue
from runledger_core.workflows.run_builder import WorkflowRunEnqueueBuilder
from runledger_core.workflows.snapshot import workflow_append_snapshot, workflow_run_snapshot
from runledger_core.workflows.spec import WorkflowStepDependencySpec, WorkflowStepEnqueue
from runledger_core.workflows.status import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)
from runledger_core.workflows.step_builder import WorkflowStepEnqueueBuilder
from runledger_core.workflows.validation import (
    outside_prerequisites,
    validate_workflow_dag,
    validate_workflow_step_append,
)

__all__ = [  # noqa: RUF022  # in the order of `sorted`
    "BlankDependencyStepKeyError",
    "BlankIdempotencyKeyError",
    "BlankMutationKeyError",
    "BlankResultStepKeyError",
    "BlankStepJobTypeError",
    "BlankStepKeyError",
    "BlankWorkflowTypeError",
    "CycleDetectedError",
    "DOOMED_CODE",
    "DependencyCountOverflowError",
    "DuplicateDependencyError",
    "DuplicateStepKeyError",
    "EmptyStepsError",
    "ExternalStepJobTypeNotAllowedError",
    "ExternalStepQueueSettingsNotAllowedError",
    "GraphTooLargeError",
    "MissingDependencyError",
    "NonPositiveStepMaxAttemptsError",
    "NonPositiveStepTimeoutSecondsError",
    "SelfDependencyError",
    "UnknownResultStepKeyError",
    "UnknownStepKeyError",
    "WorkflowBlockedStep",
    "WorkflowBuildError",
    "WorkflowCascade",
    "WorkflowDagBuilder",
    "WorkflowDependencyReleaseMode",
    "WorkflowExternalCompletion",
    "WorkflowRunCounters",
    "WorkflowRunEnqueue",
    "WorkflowRunEnqueueBuilder",
    "WorkflowRunStatus",
    "WorkflowSettledStep",
    "WorkflowStepCounters",
    "WorkflowStepDependencySpec",
    "WorkflowStepEdge",
    "WorkflowStepEnqueue",
    "WorkflowStepEnqueueBuilder",
    "WorkflowStepExecutionKind",
    "WorkflowStepStatus",
    "WorkflowStepVerdict",
    "WorkflowStepsAppend",
    "outside_prerequisites",
    "run_status",
    "settle_dependents",
    "validate_workflow_dag",
    "validate_workflow_step_append",
    "workflow_append_snapshot",
    "workflow_run_snapshot",
]
