"""Bring the stored definitions in line with the catalog's."""

from __future__ import annotations

from runledger_postgres import Database
from runledger_postgres.definitions import (
    DefinitionSyncReport,
    ExactDefinitionSyncReport,
    sync_job_definitions,
    sync_job_definitions_exact,
)

from ..errors import CatalogError
from ._entries import CatalogEntries, require_kind
from .scope import JobCatalogSyncScope


class CatalogDefinitions(CatalogEntries):
    """A catalog that writes its definitions."""

    def sync_definitions(self, db: Database) -> DefinitionSyncReport:
        """Write the definitions of all jobs; leave others alone.

        A definition that an operator disabled stays disabled. Where nothing differs, nothing is
        locked or written.

        Returns:
            The types that it disabled, sorted.

        Raises:
            QueryError: A `job_definition.*` or `db.*` code; nothing is written then.
                `job_definition.active_schedule_exists` if an active schedule uses a type that
                would be disabled.

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
            CatalogError: `catalog.empty_exact_sync_catalog`,
                `catalog.job_type_outside_exact_sync_scope`, or
                `catalog.invalid_exact_sync_scope` if it is no `JobCatalogSyncScope`.
            QueryError: As `sync_definitions`; nothing is written then.

        Transaction: joins the caller's or opens one.
        """
        if not self._jobs:
            raise CatalogError(
                "catalog.empty_exact_sync_catalog", "an exact sync of no job would disable all"
            )
        require_kind(
            scope,
            JobCatalogSyncScope,
            "catalog.invalid_exact_sync_scope",
            "a scope is a JobCatalogSyncScope",
            field="scope",
        )
        outside = sorted(set(self._jobs) - scope.job_types)
        if outside:
            raise CatalogError(
                "catalog.job_type_outside_exact_sync_scope",
                f"the scope does not name {', '.join(outside)}",
                field="scope",
            )
        return sync_job_definitions_exact(db, self.definitions(), scope=sorted(scope.job_types))
