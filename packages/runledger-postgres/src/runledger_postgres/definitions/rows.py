"""Job definitions as reads return them, and what a sync reports."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class JobDefinitionRecord:
    """A job type and the defaults of its jobs, as stored."""

    job_type: str
    version: int
    _: KW_ONLY
    max_attempts: int
    default_timeout_seconds: int
    default_priority: int
    is_enabled: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class DefinitionSyncReport:
    """What an additive sync switched off.

    Attributes:
        disabled_catalog_job_types: Given types that were enabled, or new, and are disabled now;
            sorted.
    """

    disabled_catalog_job_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExactDefinitionSyncReport:
    """What an exact sync switched off.

    Attributes:
        disabled_catalog_job_types: As in `DefinitionSyncReport`.
        disabled_absent_job_types: Enabled types in scope that were not given, and are disabled now;
            sorted.
    """

    disabled_catalog_job_types: tuple[str, ...] = ()
    disabled_absent_job_types: tuple[str, ...] = ()
