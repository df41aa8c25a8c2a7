"""The catalog of an application's jobs and schedules, its defaults and its syncs."""

from ._builder import JobCatalog
from ._workflows import CatalogWorkflowDagBuilder
from .defaults import JobCatalogDefaults, JobCatalogDefinitionOverrides, JobDefinitionValues
from .schedule_spec import CatalogJobScheduleSpec
from .scope import JobCatalogScheduleSyncScope, JobCatalogSyncScope

__all__ = [
    "CatalogJobScheduleSpec",
    "CatalogWorkflowDagBuilder",
    "JobCatalog",
    "JobCatalogDefaults",
    "JobCatalogDefinitionOverrides",
    "JobCatalogScheduleSyncScope",
    "JobCatalogSyncScope",
    "JobDefinitionValues",
]
