"""The catalog: which jobs an application has, and what runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar, Unpack, overload

from ..backoff import BackoffPolicy
from ..binding import (
    HandlerFunction,
    HandlerObject,
    bind_handler,
    check_middleware,
    check_sees,
    checked_job_type,
)
from ..errors import CatalogError
from ..middleware import JobMiddleware
from ..registry import JobRegistry, check_backoff, check_retry_delay
from ._definitions import CatalogDefinitions
from ._entries import CatalogJob, require_kind
from ._requests import CatalogRequests
from ._schedules import CatalogSchedules
from ._workflows import CatalogWorkflows
from .defaults import JobCatalogDefaults, JobCatalogDefinitionOverrides, JobDefinitionValues

HandlerT = TypeVar("HandlerT", bound=HandlerFunction)


class JobCatalog(CatalogDefinitions, CatalogSchedules, CatalogRequests, CatalogWorkflows):
    """Name the jobs of an application, their handlers, definitions and schedules.

    Methods that add something return the catalog. The first Supervisor built from it freezes it.
    """

    @overload
    def job(
        self,
        job_type: str,
        handler: HandlerFunction | HandlerObject,
        *,
        backoff: BackoffPolicy | None = None,
        **values: Unpack[JobDefinitionValues],
    ) -> Self: ...

    @overload
    def job(
        self,
        job_type: str,
        *,
        backoff: BackoffPolicy | None = None,
        **values: Unpack[JobDefinitionValues],
    ) -> Callable[[HandlerT], HandlerT]: ...

    def job(
        self,
        job_type: str,
        handler: HandlerFunction | HandlerObject | None = None,
        *,
        backoff: BackoffPolicy | None = None,
        **values: Unpack[JobDefinitionValues],
    ) -> Self | Callable[[HandlerT], HandlerT]:
        """Add a job with its handler, or decorate the handler, which stays what it is.

        Args:
            job_type: Type of the job; an object's own `job_type` must be the same.
            handler: A function of context and payload, or what `JobRegistry.register` takes.
            backoff: How long failed attempts wait for the next; None for the usual growing
                delays. A delay of `retry_delay_override` goes before.
            **values: What the job has instead of the defaults: `max_attempts` and
                `timeout_seconds` of an attempt, 1 or more; `priority`, larger runs first;
                `version`, for people, 1 or more; `enabled`, whether it can be enqueued.

        Returns:
            The catalog; the decorator if no handler is given.

        Raises:
            CatalogError: `catalog.invalid_job_type`, `catalog.duplicate_job_type`,
                `catalog.invalid_handler`, `catalog.invalid_handler_job_type`,
                `catalog.handler_job_type_mismatch`, `catalog.unusable_payload_annotation`,
                `catalog.invalid_job_definition_value`, `catalog.invalid_backoff`,
                `catalog.invalid_middleware` or `catalog.frozen`.
        """
        # At once: `@catalog.job` without parentheses would never come to the handler.
        checked_job_type(job_type, error=CatalogError)
        overrides = JobCatalogDefinitionOverrides(**values)
        if handler is not None:
            self._add(job_type, handler, overrides=overrides, backoff=backoff)
            return self

        def decorate(function: HandlerT) -> HandlerT:
            self._add(job_type, function, overrides=overrides, backoff=backoff)
            return function

        return decorate

    def defaults(self, defaults: JobCatalogDefaults) -> Self:
        """Set what jobs have unless they override it, those added before included.

        Raises:
            CatalogError: `catalog.invalid_definition_value` if they are no defaults, or
                `catalog.frozen`.
        """
        self._check_not_frozen()
        require_kind(
            defaults,
            JobCatalogDefaults,
            "catalog.invalid_definition_value",
            "defaults are a JobCatalogDefaults",
            field="defaults",
        )
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
        require_kind(
            overrides,
            JobCatalogDefinitionOverrides,
            "catalog.invalid_job_definition_value",
            "overrides are a JobCatalogDefinitionOverrides",
            field="overrides",
        )
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

    def middleware(self, middleware: JobMiddleware) -> Self:
        """Put a middleware around all handlers, those added later too; the first is outermost.

        Raises:
            CatalogError: `catalog.invalid_middleware` if it is none, or overrides `execute` for
                one kind of handlers while there are others; `catalog.frozen`.
        """
        self._check_not_frozen()
        check_middleware(middleware, error=CatalogError)
        for job in self._jobs.values():
            check_sees(middleware, job.handler, error=CatalogError)
        self._middlewares.append(middleware)
        return self

    def to_registry(self) -> JobRegistry:
        """Return a registry of all handlers, those of disabled jobs too: some may be queued."""
        registry = JobRegistry()
        for middleware in self._middlewares:
            registry.add_middleware(middleware)
        for job in self._jobs.values():
            registry.add(job.handler)
            if job.backoff is not None:
                registry.register_backoff(job.handler.job_type, job.backoff)
        for (job_type, failure_code), delay_ms in self._retry_delays_ms.items():
            registry.register_retry_delay_override(job_type, failure_code, delay_ms)
        return registry

    def _add(
        self,
        job_type: str,
        handler: object,
        *,
        overrides: JobCatalogDefinitionOverrides,
        backoff: BackoffPolicy | None,
    ) -> None:
        self._check_not_frozen()
        bound = bind_handler(job_type, handler, error=CatalogError)
        if bound.job_type in self._jobs:
            raise CatalogError(
                "catalog.duplicate_job_type",
                f"{bound.job_type} has a handler already",
                field="job_type",
            )
        for middleware in self._middlewares:
            check_sees(middleware, bound, error=CatalogError)
        overrides.check_for(bound.job_type)
        if backoff is not None:
            check_backoff(backoff, error=CatalogError)
        self._jobs[bound.job_type] = CatalogJob(bound, overrides, backoff=backoff)
