"""`runledger jobs show`: everything about one job."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import click

from runledger_core import JsonValue, NotFoundError, Scope, Unset, visible_text
from runledger_core.limits import INT64_MAX
from runledger_postgres import (
    JobAttemptRecord,
    JobEventCursor,
    JobEventRecord,
    JobRecord,
    get_job,
    list_job_attempts,
    list_job_events,
)

from ._database import Target, database_options
from ._output import (
    NOTHING,
    print_heading,
    print_json,
    print_table,
    row_to_json,
    show_instant,
    show_progress,
    show_value,
)
from ._scope import scope_options
from ._text import json_block, json_line

# The newest; somebody who needs more has SQL.
_HISTORY: Final = 200
_ATTEMPT_HEADERS: Final = ("RUN.ATTEMPT", "OUTCOME", "TOOK", "ENDED", "WORKER", "ERROR")
_EVENT_HEADERS: Final = ("AT", "EVENT", "RUN.ATTEMPT", "PROGRESS", "DETAILS")


@click.command("show")
@click.argument("job_id", type=click.UUID, metavar="ID")
@scope_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@database_options
def show(job_id: UUID, *, scope: Scope, as_json: bool, target: Target) -> None:
    """Show a job: its row, payload, attempts and timeline."""
    with target.connect() as connection:
        job = get_job(connection, job_id, scope=scope)
        if job is None:
            raise NotFoundError("job.not_found", "no such job in this scope", field="job_id")
        attempts = list_job_attempts(
            connection, job_id, scope=scope, limit=_HISTORY, before=INT64_MAX
        )
        events = list_job_events(
            connection, job_id, scope=scope, limit=_HISTORY, before=JobEventCursor.END
        )
    if as_json:
        document: dict[str, JsonValue] = {
            "job": row_to_json(job),
            "attempts": [row_to_json(attempt) for attempt in attempts],
            "events": [row_to_json(event) for event in events],
        }
        print_json(document)
        return
    _print_job(job)
    _print_bodies(job)
    if attempts:
        print_heading("Attempts")
        print_table(
            _ATTEMPT_HEADERS,
            [_attempt_row(attempt) for attempt in attempts],
            flexible=("WORKER", "ERROR"),
            wraps=True,
        )
    print_heading("Timeline")
    print_table(
        _EVENT_HEADERS,
        [_event_row(event) for event in events],
        flexible=("DETAILS",),
        wraps=True,
    )


def _print_job(job: JobRecord) -> None:
    lines = {
        "job": str(job.id),
        "type": job.job_type,
        "status": job.status + (f" ({job.status_reason})" if job.status_reason else ""),
        "error": f"{job.last_error_code}: {job.last_error_message}"
        if job.last_error_code
        else None,
        "run": f"{job.run_number}, attempt {job.attempt} of {job.max_attempts}",
        "progress": show_progress(job.progress_done, job.progress_total),
        "stage": job.stage,
        "priority": str(job.priority),
        "timeout": f"{job.timeout_seconds} s",
        "organization": show_value(job.organization_id),
        "workflow run": None if job.workflow_run_id is None else str(job.workflow_run_id),
        "key": job.idempotency_key,
        "worker": job.worker_id,
        "lease until": None if job.lease_expires_at is None else show_instant(job.lease_expires_at),
        "enqueued": show_instant(job.created_at),
        "due": show_instant(job.next_run_at),
        "started": show_instant(job.started_at),
        "ended": show_instant(job.finished_at),
    }
    shown = {name: text for name, text in lines.items() if text is not None and text != NOTHING}
    width = max(len(name) for name in shown)
    for name, text in shown.items():
        click.echo(f"{name.ljust(width)}  {visible_text(text)}")


def _print_bodies(job: JobRecord) -> None:
    bodies = {"Payload": job.payload, "Checkpoint": job.checkpoint, "Output": job.output}
    for name, body in bodies.items():
        if not isinstance(body, Unset):
            print_heading(name)
            click.echo(json_block(body))


def _attempt_row(attempt: JobAttemptRecord) -> tuple[str, ...]:
    took = (attempt.finished_at - attempt.leased_at).total_seconds()
    error = f"{attempt.error_code}: {attempt.error_message}" if attempt.error_code else NOTHING
    return (
        f"{attempt.run_number}.{attempt.attempt}",
        attempt.outcome,
        f"{took:.3f} s",
        show_instant(attempt.finished_at),
        attempt.worker_id,
        error,
    )


def _event_row(event: JobEventRecord) -> tuple[str, ...]:
    details = NOTHING
    if not isinstance(event.payload, Unset) and event.payload:
        details = json_line(event.payload)
    return (
        show_instant(event.occurred_at),
        event.event_type,
        f"{event.run_number}.{event.attempt or NOTHING}",
        show_progress(event.progress_done, event.progress_total),
        details,
    )
