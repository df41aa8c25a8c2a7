"""What a catalog holds, and looking at it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from runledger_core import JobDefinitionSpec, JobType

from ..backoff import BackoffPolicy
from ..binding import RegisteredHandler
from ..errors import CatalogError
from ..middleware import JobMiddleware
from .defaults import JobCatalogDefaults, JobCatalogDefinitionOverrides
from .schedule_spec import CatalogJobScheduleSpec


@dataclass(slots=True)
class CatalogJob:
    """A job as it was added."""

    handler: RegisteredHandler
    overrides: JobCatalogDefinitionOverrides
    _: KW_ONLY
    backoff: BackoffPolicy | None = None


class CatalogEntries:
    """The jobs and schedules of a catalog, which no longer change once it is frozen."""

    def __init__(self) -> None:
        """Make an empty catalog."""
        self._jobs: dict[str, CatalogJob] = {}
        self._schedules: dict[str, CatalogJobScheduleSpec] = {}
        self._defaults = JobCatalogDefaults()
        self._retry_delays_ms: dict[tuple[str, str], int] = {}
        self._middlewares: list[JobMiddleware] = []
        self._is_frozen = False

    @property
    def frozen(self) -> bool:
        """Whether a Supervisor uses the catalog, so that it no longer changes."""
        return self._is_frozen

    def freeze(self) -> None:
        """Refuse changes from now on; a Supervisor does this when it is built."""
        self._is_frozen = True

    def contains(self, job_type: str) -> bool:
        """Tell whether the catalog has a job of this type, enabled or not."""
        return self._job(job_type) is not None

    def require_job_type(self, job_type: str) -> JobType:
        """Return the type if the catalog has it.

        Raises:
            CatalogError: `catalog.unknown_job_type`.
        """
        job = self._job(job_type)
        if job is None:
            raise CatalogError(
                "catalog.unknown_job_type", "the catalog has no such job type", field="job_type"
            )
        return job.handler.job_type

    def require_catalog_enabled_job_type(self, job_type: str) -> JobType:
        """Return the type if the catalog has and enables it, whatever the database says.

        Raises:
            CatalogError: `catalog.unknown_job_type` or `catalog.disabled_job_type`.
        """
        known = self.require_job_type(job_type)
        if not self._definition(self._jobs[known]).is_enabled:
            raise CatalogError(
                "catalog.disabled_job_type", f"the catalog disables {known}", field="job_type"
            )
        return known

    def definitions(self) -> list[JobDefinitionSpec]:
        """Return what a sync of definitions writes, sorted by type."""
        return [self._definition(self._jobs[job_type]) for job_type in sorted(self._jobs)]

    def _job(self, job_type: object) -> CatalogJob | None:
        # What is no text may have no hash either.
        return self._jobs.get(job_type) if isinstance(job_type, str) else None

    def _definition(self, job: CatalogJob) -> JobDefinitionSpec:
        return self._defaults.definition(job.handler.job_type, job.overrides)

    def _check_not_frozen(self) -> None:
        if self._is_frozen:
            raise CatalogError(
                "catalog.frozen", "a Supervisor uses this catalog; it no longer changes"
            )


def require_kind(
    value: object,
    kind: type[object],
    code: str,
    message: str,
    *,
    field: str,
    entry_index: int | None = None,
) -> None:
    """Refuse an argument of another class; not all callers are checked.

    Raises:
        CatalogError: With this code.
    """
    if not isinstance(value, kind):
        raise CatalogError(code, message, field=field, entry_index=entry_index)
