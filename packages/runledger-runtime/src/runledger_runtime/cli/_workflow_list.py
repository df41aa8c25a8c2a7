"""`runledger workflows list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import click

from runledger_core import Scope
from runledger_core.workflows import WorkflowRunStatus

from ._database import Target, database_options
from ._listing import Listing, limit_option
from ._options import json_option, status_option
from ._output import show_distance
from ._scope import run_scope_options

if TYPE_CHECKING:
    from runledger_postgres import WorkflowRunRecord, WorkflowRunSummary


@click.command("list")
@status_option(WorkflowRunStatus, of="runs")
@click.option("--type", "workflow_type", metavar="TYPE", help="Only this type of workflow.")
@click.option("--type-contains", metavar="TEXT", help="Only types with this text in their name.")
@run_scope_options
@limit_option("runs")
@click.option("--after", type=click.UUID, metavar="ID", help="Go on after this run, to older ones.")
@json_option
@database_options
def list_command(
    statuses: Sequence[str],
    *,
    workflow_type: str | None,
    type_contains: str | None,
    scope: Scope,
    limit: int,
    after: UUID | None,
    as_json: bool,
    target: Target,
) -> None:
    """List workflow runs, newest first.

    STEPS tells what is open or went wrong; WHEN tells how long ago the run ended, or began if it
    has not.
    """
    from runledger_postgres import (  # noqa: PLC0415  # brings SQLAlchemy
        WorkflowRunFilter,
        list_workflow_runs,
    )

    chosen = WorkflowRunFilter(
        scope,
        status=[WorkflowRunStatus(status) for status in statuses] or None,
        workflow_type=workflow_type,
        workflow_type_contains=type_contains,
    )
    with target.connect() as connection:
        runs = list_workflow_runs(connection, chosen, limit=limit, after=after)
    _RUNS.print_page(runs, limit=limit, as_json=as_json)


def _cells(run: WorkflowRunSummary) -> tuple[str, ...]:
    return (
        str(run.id),
        run.workflow_type,
        run.status,
        show_counters(run),
        show_distance(run.finished_at or run.started_at),
    )


def show_counters(run: WorkflowRunSummary | WorkflowRunRecord) -> str:
    """Return what is to be said of a run's steps; nothing if all succeeded."""
    counts = {
        "open": run.steps_open - run.steps_waiting_external,
        "waiting": run.steps_waiting_external,
        "failed": run.steps_failed,
        "canceled": run.steps_canceled,
    }
    said = [f"{count} {name}" for name, count in counts.items() if count]
    return ", ".join(said) or "all succeeded"


_RUNS: Final[Listing[WorkflowRunSummary]] = Listing(
    "runs",
    ("ID", "TYPE", "STATUS", "STEPS", "WHEN"),
    flexible=("TYPE", "STEPS"),
    cells=_cells,
    cursor=lambda run: str(run.id),
)
