"""Reads for operators: lists, counts and figures, and the tables for your own.

Loaded only when asked for, since it brings SQLAlchemy: a worker process needs none of it.
"""

from ._counting import BoundedCount
from .counts import (
    count_jobs,
    count_jobs_bounded,
    count_jobs_by_status,
    count_jobs_by_status_bounded,
)
from .filters import JobFilter
from .jobs import list_jobs
from .metrics import JobMetrics, WaitingJob, get_job_metrics, oldest_waiting_jobs
from .workflow_filters import WorkflowRunFilter
from .workflows import (
    count_workflow_runs,
    count_workflow_runs_bounded,
    count_workflow_runs_by_status,
    count_workflow_runs_by_status_bounded,
    list_workflow_runs,
)

__all__ = [
    "BoundedCount",
    "JobFilter",
    "JobMetrics",
    "WaitingJob",
    "WorkflowRunFilter",
    "count_jobs",
    "count_jobs_bounded",
    "count_jobs_by_status",
    "count_jobs_by_status_bounded",
    "count_workflow_runs",
    "count_workflow_runs_bounded",
    "count_workflow_runs_by_status",
    "count_workflow_runs_by_status_bounded",
    "get_job_metrics",
    "list_jobs",
    "list_workflow_runs",
    "oldest_waiting_jobs",
]
