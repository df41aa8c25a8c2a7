"""Reads for operators: lists, counts and figures, and the tables for your own.

Loaded only when asked for, since it brings SQLAlchemy: a worker process needs none of it.
"""

from .counts import (
    BoundedCount,
    count_jobs,
    count_jobs_bounded,
    count_jobs_by_status,
    count_jobs_by_status_bounded,
)
from .filters import JobFilter
from .jobs import list_jobs
from .metrics import JobMetrics, WaitingJob, get_job_metrics, oldest_waiting_jobs

__all__ = [
    "BoundedCount",
    "JobFilter",
    "JobMetrics",
    "WaitingJob",
    "count_jobs",
    "count_jobs_bounded",
    "count_jobs_by_status",
    "count_jobs_by_status_bounded",
    "get_job_metrics",
    "list_jobs",
    "oldest_waiting_jobs",
]
