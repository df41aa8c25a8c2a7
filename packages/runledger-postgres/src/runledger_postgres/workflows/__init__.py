"""Workflow runs: enqueue, append, gates, reads, handles; and what ended steps make of others."""

from ._append import (
    AppendedWorkflowStep,
    AppendedWorkflowSteps,
    WorkflowAppendDisposition,
    append_workflow_steps,
)
from ._end_jobs import end_and_settle, end_jobs, end_jobs_and_read
from ._enqueue import EnqueuedWorkflowRun, enqueue_workflow_run, enqueue_workflow_runs
from ._gate import CompletedExternalStep, complete_external_workflow_step
from ._locks import IS_RUN_LOCKED, TRY_RUNS_OF_EXPIRED_LEASES, lock_runs_of_jobs
from ._payload import update_workflow_step_and_pending_job_payload
from ._prune import prune_workflow_runs
from ._reached import reach_from_jobs
from ._read import (
    get_latest_workflow_run_by_type,
    get_workflow_run,
    get_workflow_run_by_type_and_idempotency_key,
    get_workflow_run_id_for_job,
)
from ._read_steps import (
    get_workflow_step,
    list_workflow_step_dependencies,
    list_workflow_steps,
)
from ._results import WorkflowRunResult, WorkflowRunUnsuccessfulError
from ._settle import settle
from ._step_inputs import WorkflowStepInputs, get_step_inputs, get_step_key
from ._step_keys import list_workflow_step_keys_for_update
from ._verify import WorkflowDifference
from ._wait_options import DEFAULT_WORKFLOW_RUN_WAIT_TIMEOUT, WorkflowRunWaitOptions
from .handles import (
    WorkflowRunHandle,
    enqueue_workflow_run_handle,
    retrieve_workflow_run_handle,
    workflow_run_handle,
)
from .rows import (
    WorkflowRunRecord,
    WorkflowRunSummary,
    WorkflowStepDependencyCursor,
    WorkflowStepDependencyRecord,
    WorkflowStepRecord,
    WorkflowStepSummary,
)

__all__ = [
    "DEFAULT_WORKFLOW_RUN_WAIT_TIMEOUT",
    "IS_RUN_LOCKED",
    "TRY_RUNS_OF_EXPIRED_LEASES",
    "AppendedWorkflowStep",
    "AppendedWorkflowSteps",
    "CompletedExternalStep",
    "EnqueuedWorkflowRun",
    "WorkflowAppendDisposition",
    "WorkflowDifference",
    "WorkflowRunHandle",
    "WorkflowRunRecord",
    "WorkflowRunResult",
    "WorkflowRunSummary",
    "WorkflowRunUnsuccessfulError",
    "WorkflowRunWaitOptions",
    "WorkflowStepDependencyCursor",
    "WorkflowStepDependencyRecord",
    "WorkflowStepInputs",
    "WorkflowStepRecord",
    "WorkflowStepSummary",
    "append_workflow_steps",
    "complete_external_workflow_step",
    "end_and_settle",
    "end_jobs",
    "end_jobs_and_read",
    "enqueue_workflow_run",
    "enqueue_workflow_run_handle",
    "enqueue_workflow_runs",
    "get_latest_workflow_run_by_type",
    "get_step_inputs",
    "get_step_key",
    "get_workflow_run",
    "get_workflow_run_by_type_and_idempotency_key",
    "get_workflow_run_id_for_job",
    "get_workflow_step",
    "list_workflow_step_dependencies",
    "list_workflow_step_keys_for_update",
    "list_workflow_steps",
    "lock_runs_of_jobs",
    "prune_workflow_runs",
    "reach_from_jobs",
    "retrieve_workflow_run_handle",
    "settle",
    "update_workflow_step_and_pending_job_payload",
    "workflow_run_handle",
]
