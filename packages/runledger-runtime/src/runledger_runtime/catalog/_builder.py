"""The catalog: which jobs an application has, and what runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypeVar, Unpack, overload
from uuid import UUID

from runledger_core import JobDefinitionSpec, JobEnqueue, JobStage, JobType, JsonInput
from runledger_postgres import Database
from runledger_postgres.definitions import (
    DefinitionSyncReport,
    ExactDefinitionSyncReport,
    sync_job_definitions,
    sync_job_definitions_exact,
)

from ..errors import CatalogError
from ..registry import (
    HandlerFunction,
    HandlerObject,
    JobRegistry,
    RegisteredHandler,
    bind_handler,
    check_retry_delay,
    checked_job_type,
    refuse,
)
from .defaults import (
    JobCatalogDefaults,
    JobCatalogDefinitionOverrides,
    JobCatalogSyncScope,
    JobDefinitionValues,
)

HandlerT = TypeVar("HandlerT", bound=HandlerFunction)


@dataclass(slots=True)
class _CatalogJob:
    handler: RegisteredHandler
    overrides: JobCatalogDefinitionOverrides


class JobCatalog:
    """Name the jobs of an application, their handlers and their definitions.

    Methods that add something return the catalog. The first Supervisor built from it freezes it.
    """

    def __init__(self) -> None:
        """Make an empty catalog."""
        self._jobs: dict[str, _CatalogJob] = {}
        self._defaults = JobCatalogDefaults()
        self._retry_delays_ms: dict[tuple[str, str], int] = {}
        self._is_frozen = False

    @property
    def frozen(self) -> bool:
        """Whether a Supervisor uses the catalog, so that it no longer changes."""
        return self._is_frozen

    @overload
    def job(
        self,
        job_type: str,
        handler: HandlerFunction | HandlerObject,
        **values: Unpack[JobDefinitionValues],
    ) -> Self: ...

    @overload
    def job(
        self, job_type: str, **values: Unpack[JobDefinitionValues]
    ) -> Callable[[HandlerT], HandlerT]: ...

    def job(
        self,
        job_type: str,
        handler: HandlerFunction | HandlerObject | None = None,
        **values: Unpack[JobDefinitionValues],
    ) -> Self | Callable[[HandlerT], HandlerT]:
        """Add a job with its handler, or decorate the handler, which stays what it is.

        Args:
            job_type: Type of the job; an object's own `job_type` must be the same.
            handler: A function of context and payload, or what `JobRegistry.register` takes.
            **values: What the job has instead of the defaults: `max_attempts` and
                `timeout_seconds` of an attempt, 1 or more; `priority`, larger runs first;
                `version`, for people, 1 or more; `enabled`, whether it can be enqueued.

        Returns:
            The catalog; the decorator if no handler is given.

        Raises:
            CatalogError: `catalog.invalid_job_type`, `catalog.duplicate_job_type`,
                `catalog.invalid_handler`, `catalog.invalid_handler_job_type`,
                `catalog.handler_job_type_mismatch`, `catalog.async_handler_unsupported`,
                `catalog.invalid_job_definition_value` or `catalog.frozen`.
        """
        # At once: `@catalog.job` without parentheses would never come to the handler.
        checked_job_type(job_type, error=CatalogError)
        overrides = JobCatalogDefinitionOverrides(**values)
        if handler is not None:
            self._add(job_type, handler, overrides)
            return self

        def decorate(function: HandlerT) -> HandlerT:
            self._add(job_type, function, overrides)
            return function

        return decorate

    def defaults(self, defaults: JobCatalogDefaults) -> Self:
        """Set what jobs have unless they override it, those added before included.

        Raises:
            CatalogError: `catalog.frozen`.
        """
        self._check_not_frozen()
        self._defaults = defaults
        return self

    def definition_overrides(self, job_type: str, overrides: JobCatalogDefinitionOverrides) -> Self:
        """Replace what a job has instead of the defaults.

        Raises:
            CatalogError: `catalog.unknown_job_type`, `catalog.invalid_job_definition_value` or
                `catalog.frozen`.
        """
        self._check_not_frozen()
        job = self._jobs[self.require_job_type(job_type)]
        overrides.check_for(job.handler.job_type)
        job.overrides = overrides
        return self

    def retry_delay_override(self, job_type: str, failure_code: str, delay_ms: int) -> Self:
        """Fix the delay before retries of one job after one failure code.

        Args:
            delay_ms: Milliseconds, 1 or more; replaces an earlier one of the same pair.

        Raises:
            CatalogError: `catalog.unknown_job_type`, `catalog.invalid_failure_code`,
                `catalog.invalid_retry_delay` or `catalog.frozen`.
        """
        self._check_not_frozen()
        known = self.require_job_type(job_type)
        check_retry_delay(failure_code, delay_ms, error=CatalogError)
        self._retry_delays_ms[known, failure_code] = delay_ms
        return self

    def contains(self, job_type: str) -> bool:
        """Tell whether the catalog has a job of this type, enabled or not."""
        return job_type in self._jobs

    def require_job_type(self, job_type: str) -> JobType:
        """Return the type if the catalog has it.

        Raises:
            CatalogError: `catalog.unknown_job_type`.
        """
        job = self._jobs.get(job_type)
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

    def job_enqueue(
        self,
        job_type: str,
        payload: JsonInput,
        *,
        organization_id: UUID | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout_seconds: int | None = None,
        next_run_at: datetime | None = None,
        idempotency_key: str | None = None,
        stage: JobStage | None = None,
    ) -> JobEnqueue:
        """Return the request for a job that the catalog has and enables.

        The database is not asked: a definition that an operator disabled is refused at enqueue.

        Raises:
            CatalogError: `catalog.unknown_job_type` or `catalog.disabled_job_type`.
            ValidationError: An `input.*` code, as `JobEnqueue` does.
        """
        return JobEnqueue(
            self.require_catalog_enabled_job_type(job_type),
            payload,
            organization_id=organization_id,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=timeout_seconds,
            next_run_at=next_run_at,
            idempotency_key=idempotency_key,
            stage=stage,
        )

    def definitions(self) -> list[JobDefinitionSpec]:
        """Return what a sync writes, sorted by type."""
        return [self._definition(self._jobs[job_type]) for job_type in sorted(self._jobs)]

    def sync_definitions(self, db: Database) -> DefinitionSyncReport:
        """Write the definitions of all jobs; leave others alone.

        A definition that an operator disabled stays disabled.

        Returns:
            The types that it disabled, sorted.

        Raises:
            QueryError: A `job_definition.*` or `db.*` code; nothing is written then.

        Transaction: joins the caller's or opens one.
        """
        return sync_job_definitions(db, self.definitions())

    def sync_definitions_exact(
        self, db: Database, scope: JobCatalogSyncScope
    ) -> ExactDefinitionSyncReport:
        """Write the definitions of all jobs and disable the others in a scope.

        Definitions get the catalog's enabled state back, whatever an operator did.

        Args:
            scope: The types that this application owns.

        Returns:
            The types that were disabled by it, sorted.

        Raises:
            CatalogError: `catalog.empty_exact_sync_catalog` or
                `catalog.job_type_outside_exact_sync_scope`.
            QueryError: A `job_definition.*` or `db.*` code; nothing is written then.

        Transaction: joins the caller's or opens one.
        """
        if not self._jobs:
            raise CatalogError(
                "catalog.empty_exact_sync_catalog", "an exact sync of no job would disable all"
            )
        outside = sorted(set(self._jobs) - scope.job_types)
        if outside:
            raise CatalogError(
                "catalog.job_type_outside_exact_sync_scope",
                f"the scope does not name {', '.join(outside)}",
                field="scope",
            )
        return sync_job_definitions_exact(db, self.definitions(), scope=sorted(scope.job_types))

    def to_registry(self) -> JobRegistry:
        """Return a registry of all handlers, those of disabled jobs too: some may be queued."""
        registry = JobRegistry()
        for job in self._jobs.values():
            registry.add(job.handler)
        for (job_type, failure_code), delay_ms in self._retry_delays_ms.items():
            registry.register_retry_delay_override(job_type, failure_code, delay_ms)
        return registry

    def freeze(self) -> None:
        """Refuse changes from now on; a Supervisor does this when it is built."""
        self._is_frozen = True

    def _add(
        self, job_type: str, handler: object, overrides: JobCatalogDefinitionOverrides
    ) -> None:
        self._check_not_frozen()
        bound = bind_handler(job_type, handler, error=CatalogError)
        if bound.job_type in self._jobs:
            refuse(
                CatalogError,
                "duplicate_job_type",
                f"{bound.job_type} has a handler already",
                field="job_type",
            )
        overrides.check_for(bound.job_type)
        self._jobs[bound.job_type] = _CatalogJob(bound, overrides)

    def _definition(self, job: _CatalogJob) -> JobDefinitionSpec:
        return self._defaults.definition(job.handler.job_type, job.overrides)

    def _check_not_frozen(self) -> None:
        if self._is_frozen:
            refuse(CatalogError, "frozen", "a Supervisor uses this catalog; it no longer changes")
