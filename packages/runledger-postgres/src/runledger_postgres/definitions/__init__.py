"""Job definitions: which types there are, their defaults, and whether they can be enqueued."""

from ._read import get_job_definition, list_job_definitions
from ._store import ActiveScheduleExistsError
from ._sync import sync_job_definitions, sync_job_definitions_exact
from ._update import update_job_definition
from ._upsert import insert_job_definition_if_missing, upsert_job_definition
from .rows import DefinitionSyncReport, ExactDefinitionSyncReport, JobDefinitionRecord

__all__ = [
    "ActiveScheduleExistsError",
    "DefinitionSyncReport",
    "ExactDefinitionSyncReport",
    "JobDefinitionRecord",
    "get_job_definition",
    "insert_job_definition_if_missing",
    "list_job_definitions",
    "sync_job_definitions",
    "sync_job_definitions_exact",
    "update_job_definition",
    "upsert_job_definition",
]
