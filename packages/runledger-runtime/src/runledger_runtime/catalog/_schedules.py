"""Schedules of a catalog, and bringing the stored ones in line with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from runledger_core import JobScheduleUpsert
from runledger_postgres import Database
from runledger_postgres.schedules import (
    ExactScheduleSyncReport,
    ScheduleSyncReport,
    sync_job_schedules,
    sync_job_schedules_exact,
)

from ..errors import CatalogError
from ._entries import CatalogEntries, require_kind
from .schedule_spec import CatalogJobScheduleSpec
from .scope import JobCatalogScheduleSyncScope


class CatalogSchedules(CatalogEntries):
    """A catalog that owns schedules."""

    def schedule(self, spec: CatalogJobScheduleSpec) -> Self:
        """Add a schedule of a job that was added before.

        Raises:
            CatalogError: `catalog.unknown_job_type`, `catalog.disabled_job_type`,
                `catalog.invalid_schedule_spec`, `catalog.duplicate_schedule_name` or
                `catalog.frozen`.
        """
        self._check_not_frozen()
        self._require_enabled_job(spec)
        if spec.name in self._schedules:
            raise CatalogError(
                "catalog.duplicate_schedule_name",
                f"the catalog has a schedule {spec.name} already",
                field="name",
            )
        self._schedules[spec.name] = spec
        return self

    def schedules(self) -> list[CatalogJobScheduleSpec]:
        """Return what a sync writes, in the order in which it was added."""
        return list(self._schedules.values())

    def schedule_sync_scope(self) -> JobCatalogScheduleSyncScope:
        """Return the names of the catalog's schedules, for an exact sync.

        Raises:
            CatalogError: `catalog.invalid_exact_schedule_sync_scope` if it has none.
        """
        return JobCatalogScheduleSyncScope(self._schedules)

    def sync_schedules(self, db: Database) -> ScheduleSyncReport:
        """Write the schedules of the catalog; leave others alone.

        Sync the definitions first. A schedule that an operator paused or resumed becomes what the
        catalog says; the next fire is kept while the cron expression is the same.

        Returns:
            The names, in the order in which they were added.

        Raises:
            CatalogError: `catalog.disabled_job_type` if a job was disabled after its schedule was
                added.
            QueryError: A `job_schedule.*` or `db.*` code; nothing is written then.
                `job_schedule.definition_not_found_or_disabled` if the definition of an active
                schedule is missing, or an operator disabled it.

        Transaction: joins the caller's or opens one; without schedules none.
        """
        return self.sync_schedules_with(db, self.schedules())

    def sync_schedules_with(
        self, db: Database, specs: Iterable[CatalogJobScheduleSpec]
    ) -> ScheduleSyncReport:
        """Write these schedules instead of those of the catalog; leave others alone.

        Args:
            specs: Made of settings or tenants, say; their jobs must be in the catalog.

        Returns:
            The names, in the given order.

        Raises:
            CatalogError: `catalog.unknown_job_type`, `catalog.disabled_job_type`,
                `catalog.invalid_schedule_spec` or
                `catalog.duplicate_schedule_name_in_sync_batch`.
            QueryError: As `sync_schedules`; nothing is written then.

        Transaction: joins the caller's or opens one; without specs none.
        """
        schedules = self._checked(specs)
        return sync_job_schedules(db, schedules) if schedules else ScheduleSyncReport(())

    def sync_schedules_exact(
        self, db: Database, scope: JobCatalogScheduleSyncScope
    ) -> ExactScheduleSyncReport:
        """Write the schedules of the catalog and deactivate the others in a scope.

        With none in the catalog the whole scope is deactivated.

        Args:
            scope: The names that this deployment owns; `schedule_sync_scope` returns those of the
                catalog. Two deployments that share a name deactivate each other's.

        Returns:
            The names in the order in which they were added, and those that were active and are
            not now, sorted.

        Raises:
            CatalogError: `catalog.schedule_name_outside_exact_sync_scope`,
                `catalog.disabled_job_type`, or `catalog.invalid_exact_schedule_sync_scope` if it
                is no `JobCatalogScheduleSyncScope`.
            QueryError: As `sync_schedules`; nothing is written then. `db.lock_timeout` if other
                writers of schedules hold the table for too long.

        Transaction: joins the caller's or opens one. If anything differs it locks the table of
            schedules against other writes, the fires of the scheduler too, until it ends.
        """
        return self.sync_schedules_exact_with(db, scope, self.schedules())

    def sync_schedules_exact_with(
        self,
        db: Database,
        scope: JobCatalogScheduleSyncScope,
        specs: Iterable[CatalogJobScheduleSpec],
    ) -> ExactScheduleSyncReport:
        """Write these schedules instead of those of the catalog; deactivate others in a scope.

        For schedules of the catalog and of settings together, make one list of both.

        Args:
            scope: The names that this deployment owns.
            specs: All within the scope; with none the whole scope is deactivated.

        Returns:
            As `sync_schedules_exact`, the first in the given order.

        Raises:
            CatalogError: As `sync_schedules_exact` and `sync_schedules_with`.
            QueryError: As `sync_schedules_exact`; nothing is written then.

        Transaction: as `sync_schedules_exact`.
        """
        require_kind(
            scope,
            JobCatalogScheduleSyncScope,
            "catalog.invalid_exact_schedule_sync_scope",
            "a scope is a JobCatalogScheduleSyncScope",
            field="scope",
        )
        schedules = self._checked(specs)
        outside = sorted({schedule.name for schedule in schedules} - scope.names)
        if outside:
            raise CatalogError(
                "catalog.schedule_name_outside_exact_sync_scope",
                f"the scope does not name {', '.join(outside)}",
                field="scope",
            )
        return sync_job_schedules_exact(db, schedules, scope=sorted(scope.names))

    def _checked(self, specs: Iterable[CatalogJobScheduleSpec]) -> Sequence[JobScheduleUpsert]:
        require_kind(
            specs,
            Iterable,
            "catalog.invalid_schedule_spec",
            "schedules are a list of CatalogJobScheduleSpec",
            field="specs",
        )
        found: dict[str, JobScheduleUpsert] = {}
        for index, spec in enumerate(specs):
            self._require_enabled_job(spec, entry_index=index)
            if spec.name in found:
                raise CatalogError(
                    "catalog.duplicate_schedule_name_in_sync_batch",
                    f"the schedule {spec.name} is given twice",
                    field="name",
                    entry_index=index,
                )
            found[spec.name] = spec.upsert
        return list(found.values())

    def _require_enabled_job(
        self, spec: CatalogJobScheduleSpec, *, entry_index: int | None = None
    ) -> None:
        require_kind(
            spec,
            CatalogJobScheduleSpec,
            "catalog.invalid_schedule_spec",
            "a schedule is a CatalogJobScheduleSpec",
            field="spec",
            entry_index=entry_index,
        )
        try:
            self.require_catalog_enabled_job_type(spec.job_type)
        except CatalogError as error:
            raise CatalogError(
                error.code,
                f"schedule {spec.name}: {error.client_message}",
                field=error.field,
                entry_index=entry_index,
            ) from error
