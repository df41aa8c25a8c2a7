"""`runledger jobs show`: everything about one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import click

from runledger_core import JsonValue, NotFoundError, Scope, Unset
from runledger_core.limits import INT64_MAX
from runledger_postgres import (
    JobAttemptRecord,
    JobEventCursor,
    JobEventRecord,
    JobLogRecord,
    JobRecord,
    get_job,
    list_job_attempts,
    list_job_events,
    list_job_logs,
)
from runledger_postgres.jobs import LOG_END

from ._database import Target, database_options
from ._details import print_body, print_fields, show_error, show_status
from ._options import json_option
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
from ._text import json_line, visible_block

# The newest; somebody who needs more has SQL.
_HISTORY: Final = 200
_ATTEMPT_HEADERS: Final = ("RUN.ATTEMPT", "OUTCOME", "TOOK", "ENDED", "WORKER", "ERROR")
_EVENT_HEADERS: Final = ("AT", "EVENT", "RUN.ATTEMPT", "PROGRESS", "DETAILS")
_LOG_HEADERS: Final = ("AT", "LEVEL", "RUN.ATTEMPT", "MESSAGE", "DETAILS")


@click.command("show")
@click.argument("job_id", type=click.UUID, metavar="ID")
@scope_options
@json_option
@database_options
def show(job_id: UUID, *, scope: Scope, as_json: bool, target: Target) -> None:
    """Show a job: its row, payload, attempts, timeline and log."""
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
        logs = list_job_logs(connection, job_id, scope=scope, limit=_HISTORY, before=LOG_END)
    if as_json:
        document: dict[str, JsonValue] = {
            "job": row_to_json(job),
            "attempts": [row_to_json(attempt) for attempt in attempts],
            "events": [row_to_json(event) for event in events],
            "logs": [row_to_json(log) for log in logs],
        }
        print_json(document)
        return
    _print_job(job)
    print_body("Payload", job.payload)
    print_body("Checkpoint", job.checkpoint)
    print_body("Output", job.output)
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
    if logs:
        _print_log(logs)


def _print_job(job: JobRecord) -> None:
    print_fields(
        {
            "job": str(job.id),
            "type": job.job_type,
            "status": show_status(job.status, job.status_reason),
            "error": show_error(job.last_error_code, job.last_error_message),
            "run": f"{job.run_number}, attempt {job.attempt} of {job.max_attempts}",
            "progress": show_progress(job.progress_done, job.progress_total),
            "stage": job.stage,
            "priority": str(job.priority),
            "timeout": f"{job.timeout_seconds} s",
            "organization": show_value(job.organization_id),
            "workflow run": show_value(job.workflow_run_id),
            "key": job.idempotency_key,
            "worker": job.worker_id,
            "lease until": show_instant(job.lease_expires_at),
            "enqueued": show_instant(job.created_at),
            "due": show_instant(job.next_run_at),
            "started": show_instant(job.started_at),
            "ended": show_instant(job.finished_at),
        }
    )


def _attempt_row(attempt: JobAttemptRecord) -> tuple[str, ...]:
    took = (attempt.finished_at - attempt.leased_at).total_seconds()
    return (
        f"{attempt.run_number}.{attempt.attempt}",
        attempt.outcome,
        f"{took:.3f} s",
        show_instant(attempt.finished_at),
        attempt.worker_id,
        show_error(attempt.error_code, attempt.error_message),
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


def _print_log(logs: Sequence[JobLogRecord]) -> None:
    print_heading("Log")
    print_table(
        _LOG_HEADERS,
        [_log_row(log) for log in logs],
        flexible=("MESSAGE", "DETAILS"),
        wraps=True,
    )
    # The newest says why the job is where it is; --json has the others.
    traceback = next(filter(None, map(_traceback_of, reversed(logs))), None)
    if traceback is not None:
        print_heading("Traceback")
        click.echo(visible_block(traceback.rstrip()))


def _log_row(log: JobLogRecord) -> tuple[str, ...]:
    details = NOTHING
    if not isinstance(log.payload, Unset) and log.payload and _traceback_of(log) is None:
        details = json_line(log.payload)
    number = NOTHING if log.attempt is None else f"{log.run_number}.{log.attempt}"
    return (show_instant(log.occurred_at), log.level, number, log.message, details)


def _traceback_of(log: JobLogRecord) -> str | None:
    traceback = log.payload.get("traceback") if isinstance(log.payload, dict) else None
    return traceback if isinstance(traceback, str) else None
