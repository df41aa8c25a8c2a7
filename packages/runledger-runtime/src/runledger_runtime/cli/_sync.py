"""What `runledger worker` writes before it runs: the catalog's definitions and schedules."""

from __future__ import annotations

from typing import Any

import click
import psycopg

from runledger_core import visible_text, with_fields
from runledger_postgres.definitions import get_job_definition

from ..catalog import CatalogJobScheduleSpec, JobCatalog


def sync_catalog(connection: psycopg.Connection[Any], catalog: JobCatalog) -> None:
    """Write definitions and schedules; a schedule of a job that an operator disabled is paused.

    It could not be active, and a worker that refused to start for it would do none of the other
    jobs either.
    """
    catalog.sync_definitions(connection)
    schedules = [_startable(connection, spec) for spec in catalog.schedules()]
    catalog.sync_schedules_with(connection, schedules)


def _startable(
    connection: psycopg.Connection[Any], spec: CatalogJobScheduleSpec
) -> CatalogJobScheduleSpec:
    definition = get_job_definition(connection, spec.job_type)
    if not spec.is_active or definition is None or definition.is_enabled:
        return spec
    click.echo(
        f"warning: the schedule {visible_text(spec.name)} is paused, since its job type"
        f" {visible_text(spec.job_type)} is disabled; after runledger definitions enable, restart"
        " or run runledger schedules resume",
        err=True,
    )
    paused = with_fields(spec.upsert, is_active=False)
    return with_fields(spec, is_active=False, upsert=paused)
