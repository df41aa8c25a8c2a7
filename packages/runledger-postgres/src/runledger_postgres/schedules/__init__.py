"""Cron schedules: stored, synced, switched, and fired once each."""

from ._change import (
    delete_job_schedule,
    set_job_schedule_active,
    set_job_schedule_next_fire_at,
)
from ._pass import fire_due_schedules
from ._read import get_job_schedule_by_name, list_job_schedules
from ._sync import sync_job_schedules, sync_job_schedules_exact
from ._upsert import upsert_job_schedule
from .rows import (
    DeferredSchedule,
    DueSchedule,
    ExactScheduleSyncReport,
    FiredSchedule,
    JobScheduleRecord,
    JobScheduleSummary,
    PlanFire,
    ScheduleFire,
    SchedulePass,
    ScheduleSyncReport,
)

__all__ = [
    "DeferredSchedule",
    "DueSchedule",
    "ExactScheduleSyncReport",
    "FiredSchedule",
    "JobScheduleRecord",
    "JobScheduleSummary",
    "PlanFire",
    "ScheduleFire",
    "SchedulePass",
    "ScheduleSyncReport",
    "delete_job_schedule",
    "fire_due_schedules",
    "get_job_schedule_by_name",
    "list_job_schedules",
    "set_job_schedule_active",
    "set_job_schedule_next_fire_at",
    "sync_job_schedules",
    "sync_job_schedules_exact",
    "upsert_job_schedule",
]
