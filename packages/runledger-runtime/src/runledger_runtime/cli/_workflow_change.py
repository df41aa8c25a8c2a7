"""`runledger workflows cancel` and `complete-step`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import click
import psycopg

from runledger_core import (
    UNSET,
    ConflictError,
    JsonValue,
    NotFoundError,
    Scope,
    visible_text,
)
from runledger_core.workflows import WorkflowExternalCompletion, WorkflowStepStatus
from runledger_postgres import cancel_workflow_run, complete_external_workflow_step

from ._database import Target, database_options
from ._errors import CommandFailure
from ._input import decode_argument
from ._options import json_option
from ._output import print_json, row_to_json
from ._scope import run_scope_options

_NOT_FOUND: Final = "NOT_FOUND"


@click.command("cancel")
@click.argument("run_ids", nargs=-1, required=True, type=click.UUID, metavar="ID...")
@run_scope_options
@click.option("--reason", metavar="TEXT", help="Kept on the steps and jobs that are canceled.")
@json_option
@database_options
def cancel(
    run_ids: Sequence[UUID], *, scope: Scope, reason: str | None, as_json: bool, target: Target
) -> None:
    """Cancel runs: every step that has not ended, and the jobs of those.

    Running handlers are told to stop, and nothing they report afterwards counts. Steps that wait
    for any end of another do not run either. Runs that have ended stay as they are.
    """
    found: dict[str, JsonValue] = {}
    with target.connect() as connection:
        try:
            for run_id in dict.fromkeys(run_ids):
                found[str(run_id)], sentence = _cancel(connection, run_id, scope, reason)
                if not as_json:
                    click.echo(f"{run_id} {sentence}")
        finally:
            # After an error too: each run is canceled on its own, and stays so.
            if as_json and found:
                print_json({"runs": found})
    refused = sum(run == {"status": _NOT_FOUND} for run in found.values())
    if refused:
        raise CommandFailure(
            ConflictError("cli.some_runs_refused", f"{refused} of {len(found)} runs are not there")
        )


def _cancel(
    connection: psycopg.Connection, run_id: UUID, scope: Scope, reason: str | None
) -> tuple[JsonValue, str]:
    """Return what became of a run, as JSON and as a sentence."""
    try:
        run = cancel_workflow_run(connection, run_id, scope=scope, reason=reason)
    except NotFoundError:
        return {"status": _NOT_FOUND}, "no such run in this scope"
    if run.is_canceled_now:
        sentence = f"canceled: {run.canceled_steps} steps, {run.canceled_jobs} jobs"
    else:
        sentence = f"has ended before: {run.status}"
    return row_to_json(run), sentence


@click.command("complete-step")
@click.argument("run_id", type=click.UUID, metavar="ID")
@click.argument("step_key", metavar="STEP")
@click.option(
    "--as",
    "status",
    type=click.Choice(
        [status.value for status in WorkflowStepStatus if status.is_terminal], case_sensitive=False
    ),
    default=WorkflowStepStatus.SUCCEEDED.value,
    show_default=True,
    help="How the gate ends.",
)
@click.option("--output", metavar="JSON", help="What it gives, or - for the standard input.")
@click.option("--reason", metavar="TEXT", help="Why it ends so.")
@click.option("--code", metavar="CODE", help="Code of its failure, such as approval.denied.")
@click.option("--message", metavar="TEXT", help="Text of its failure.")
@run_scope_options
@json_option
@database_options
def complete_step(
    run_id: UUID,
    step_key: str,
    *,
    status: str,
    output: str | None,
    reason: str | None,
    code: str | None,
    message: str | None,
    scope: Scope,
    as_json: bool,
    target: Target,
) -> None:
    """Complete the open gate STEP of a run, and let go on what waits for it.

    The same command again does nothing more.
    """
    completion = WorkflowExternalCompletion(
        WorkflowStepStatus(status),
        output=UNSET if output is None else decode_argument(output, field="output"),
        reason=reason,
        code=code,
        message=message,
    )
    with target.connect() as connection:
        step = complete_external_workflow_step(
            connection, run_id, step_key, completion, scope=scope
        )
    if as_json:
        print_json({"step": row_to_json(step)})
    else:
        click.echo(f"{visible_text(step.step_key)} {step.status.lower()}")
