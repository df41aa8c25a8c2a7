"""The catalog of an application's jobs, its defaults and its sync with the database."""

from ._builder import JobCatalog
from .defaults import (
    JobCatalogDefaults,
    JobCatalogDefinitionOverrides,
    JobCatalogSyncScope,
    JobDefinitionValues,
)

__all__ = [
    "JobCatalog",
    "JobCatalogDefaults",
    "JobCatalogDefinitionOverrides",
    "JobCatalogSyncScope",
    "JobDefinitionValues",
]
