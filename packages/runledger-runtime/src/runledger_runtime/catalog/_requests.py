"""Requests for jobs and schedules of a catalog, which it checks before anything is sent."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from runledger_core import UNSET, JobEnqueue, JobScheduleUpsert, JobStage, JsonInput, Unset

from ._entries import CatalogEntries


class CatalogRequests(CatalogEntries):
    """A catalog that makes requests."""

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
        trace_context: str | None = None,
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
            trace_context=trace_context,
        )

    def job_schedule(
        self,
        name: str,
        job_type: str,
        *,
        cron_expr: str,
        payload_template: JsonInput | Unset = UNSET,
        is_active: bool = True,
        organization_id: UUID | None = None,
        max_jitter_seconds: int = 0,
        next_fire_at: datetime | None = None,
    ) -> JobScheduleUpsert:
        """Return the request for a schedule that the catalog does not own.

        It is for `upsert_job_schedule`, and of a job that the catalog has and enables. The database
        is not asked: a definition that an operator disabled is refused at the upsert.

        Raises:
            CatalogError: `catalog.unknown_job_type` or `catalog.disabled_job_type`.
            ValidationError: A `job_schedule.*` or `input.*` code, as `JobScheduleUpsert` does.
        """
        return JobScheduleUpsert(
            name,
            self.require_catalog_enabled_job_type(job_type),
            cron_expr=cron_expr,
            payload_template={} if isinstance(payload_template, Unset) else payload_template,
            is_active=is_active,
            organization_id=organization_id,
            max_jitter_seconds=max_jitter_seconds,
            next_fire_at=next_fire_at,
        )
