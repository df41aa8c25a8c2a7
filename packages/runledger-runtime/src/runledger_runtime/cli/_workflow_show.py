"""`runledger workflows show`: a run and its steps, or one of them in full."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import click
import psycopg

from runledger_core import UNSET, JsonValue, NotFoundError, Scope, Unset
from runledger_core.workflows import WorkflowRunStatus
from runledger_postgres import (
    WorkflowRunRecord,
    WorkflowStepRecord,
    WorkflowStepSummary,
    get_workflow_step,
    list_workflow_steps,
)

from ._database import Target, database_options
from ._details import print_body, print_fields, show_error, show_status
from ._listing import Listing, limit_option
from ._options import json_option
from ._output import (
    NOTHING,
    print_heading,
    print_json,
    row_to_json,
    show_distance,
    show_instant,
    show_value,
)
from ._scope import run_scope_options
from ._workflow_list import show_counters
from ._workflow_run import require_run

_GATE: Final = "(gate)"


@click.command("show")
@click.argument("run_id", type=click.UUID, metavar="ID")
@click.option("--step", "step_key", metavar="KEY", help="Show this step with payload and output.")
@limit_option("steps", default=200)
@click.option("--after", type=click.UUID, metavar="ID", help="Go on after the step of this id.")
@run_scope_options
@json_option
@database_options
def show(
    run_id: UUID,
    *,
    step_key: str | None,
    limit: int,
    after: UUID | None,
    scope: Scope,
    as_json: bool,
    target: Target,
) -> None:
    """Show a run: its row, metadata, result and steps.

    WAITS FOR tells how many prerequisites of all have not ended; WHEN tells how long ago a step
    ended, began, or was released.
    """
    with target.connect() as connection:
        run = require_run(connection, run_id, scope=scope)
        if step_key is not None:
            step = _require_step(connection, run_id, step_key, scope)
            _print_step(step, as_json=as_json)
            return
        steps = list_workflow_steps(connection, run_id, scope=scope, limit=limit, after=after)
        result = _result(connection, run, scope)
    if as_json:
        document = {"run": row_to_json(run), **_STEPS.to_json(steps, limit=limit)}
        print_json(document if isinstance(result, Unset) else {**document, "result": result})
        return
    _print_run(run)
    print_body("Metadata", run.metadata)
    print_body("Result", result)
    print_heading("Steps")
    _STEPS.print_rows(steps, limit=limit)


def _require_step(
    connection: psycopg.Connection, run_id: UUID, step_key: str, scope: Scope
) -> WorkflowStepRecord:
    step = get_workflow_step(connection, run_id, step_key, scope=scope)
    if step is None:
        raise NotFoundError("cli.step_not_found", "the run has no such step", field="step_key")
    return step


def _result(
    connection: psycopg.Connection, run: WorkflowRunRecord, scope: Scope
) -> JsonValue | Unset:
    # What a run that succeeded gives is what its result step gave.
    if run.status is WorkflowRunStatus.SUCCEEDED and run.result_step_key is not None:
        step = get_workflow_step(connection, run.id, run.result_step_key, scope=scope)
        if step is not None:
            return step.output
    return UNSET


def _print_run(run: WorkflowRunRecord) -> None:
    print_fields(
        {
            "run": str(run.id),
            "type": run.workflow_type,
            "status": run.status,
            "steps": show_counters(run),
            "result step": run.result_step_key,
            "organization": show_value(run.organization_id),
            "key": run.idempotency_key,
            "enqueued": show_instant(run.created_at),
            "ended": show_instant(run.finished_at),
        }
    )


def _print_step(step: WorkflowStepRecord, *, as_json: bool) -> None:
    if as_json:
        print_json({"step": row_to_json(step)})
        return
    pending, total = step.dependency_count_pending, step.dependency_count_total
    print_fields(
        {
            "step": step.step_key,
            "type": step.job_type or _GATE,
            "status": show_status(step.status, step.status_reason),
            "error": show_error(step.last_error_code, step.last_error_message),
            "waits for": f"{pending} of {total}" if total else None,
            "attempt": _attempt(step),
            "job": show_value(step.job_id),
            "organization": show_value(step.organization_id),
            "released": show_instant(step.released_at),
            "started": show_instant(step.started_at),
            "ended": show_instant(step.finished_at),
        }
    )
    print_body("Payload", step.payload)
    print_body("Output", step.output)


def _cells(step: WorkflowStepSummary) -> tuple[str, ...]:
    pending, total = step.dependency_count_pending, step.dependency_count_total
    return (
        step.step_key,
        step.job_type or _GATE,
        step.status,
        _attempt(step),
        f"{pending}/{total}" if total else NOTHING,
        show_distance(step.finished_at or step.started_at or step.released_at),
        show_value(step.last_error_code),
    )


def _attempt(step: WorkflowStepSummary | WorkflowStepRecord) -> str:
    return NOTHING if step.attempt is None else f"{step.attempt}/{step.max_attempts}"


_STEPS: Final[Listing[WorkflowStepSummary]] = Listing(
    "steps",
    ("STEP", "TYPE", "STATUS", "ATTEMPT", "WAITS FOR", "WHEN", "ERROR"),
    flexible=("STEP", "TYPE", "ERROR"),
    wraps=True,
    cells=_cells,
    cursor=lambda step: str(step.id),
)
