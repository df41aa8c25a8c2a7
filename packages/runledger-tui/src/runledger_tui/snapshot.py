"""The snapshot as text for people and as JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TextIO, TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from runledger_core import JobStatus, ScopeKind, WorkflowRunStatus, visible_text
from runledger_postgres.admin import BoundedCount
from runledger_postgres.workers import WorkerRecord, WorkerState

from .fetch import Snapshot, is_live
from .format import format_count, format_instant, format_seconds

_Status = TypeVar("_Status", bound=StrEnum)

_STYLES: Final = {
    JobStatus.PENDING: "yellow",
    JobStatus.LEASED: "cyan",
    JobStatus.SUCCEEDED: "green",
    JobStatus.DEAD_LETTERED: "bold red",
    JobStatus.CANCELED: "bright_black",
}
_RUN_STYLES: Final = {
    WorkflowRunStatus.RUNNING: "cyan",
    WorkflowRunStatus.WAITING_FOR_EXTERNAL: "yellow",
    WorkflowRunStatus.SUCCEEDED: "green",
    WorkflowRunStatus.COMPLETED_WITH_ERRORS: "bold red",
    WorkflowRunStatus.CANCELED: "bright_black",
}


def render_text(snapshot: Snapshot, stream: TextIO) -> str:
    """Return the snapshot as tables, as wide and colourful as `stream` can show them."""
    # Database text is never markup: "[link=...]" in a job type is shown as it is.
    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(_heading(snapshot), soft_wrap=True)
        for part in (
            _counts("Jobs", snapshot.counts, _STYLES),
            _runs(snapshot),
            _oldest(snapshot),
            _workers(snapshot),
        ):
            console.print()
            console.print(part)
    return captured.get()


def render_json(snapshot: Snapshot) -> str:
    """Return the snapshot as one JSON object.

    Its keys: `taken_at`; `organization_id` (null for all jobs); `jobs` and `workflow_runs`, by
    status `count` and `is_exact`; `oldest_waiting`, by job type; `workers`, last seen first. Times
    are ISO 8601 in UTC, lengths of time are seconds. Control characters are marks, as in the text.
    """
    organization_id = snapshot.scope.organization_id
    return json.dumps(
        {
            "taken_at": snapshot.taken_at.isoformat(),
            "organization_id": None if organization_id is None else str(organization_id),
            "jobs": _counts_json(snapshot.counts),
            "workflow_runs": _counts_json(snapshot.runs),
            "oldest_waiting": [
                {
                    "job_type": visible_text(waiting.job_type),
                    "job_id": str(waiting.job_id),
                    "due_at": waiting.due_at.isoformat(),
                    "waiting_seconds": round(waiting.waiting_seconds, 3),
                }
                for waiting in snapshot.oldest_waiting
            ],
            "workers": [_worker_json(worker) for worker in snapshot.workers],
        },
        indent=2,
    )


def _counts_json(counts: Mapping[_Status, BoundedCount]) -> dict[str, object]:
    return {
        status.value: {"count": count.total, "is_exact": count.is_exact}
        for status, count in counts.items()
    }


def _worker_json(worker: WorkerRecord) -> dict[str, object]:
    return {
        "worker_id": visible_text(worker.worker_id),
        "host": visible_text(worker.host),
        "pid": worker.pid,
        "version": visible_text(worker.version),
        "job_types": [visible_text(job_type) for job_type in worker.job_types],
        "concurrency": worker.concurrency,
        "state": worker.state.value,
        "is_live": is_live(worker),
        "started_at": worker.started_at.isoformat(),
        "last_seen_at": worker.last_seen_at.isoformat(),
        "seconds_since_seen": round(worker.seconds_since_seen, 3),
    }


def _heading(snapshot: Snapshot) -> Text:
    scope = snapshot.scope
    whose = (
        f"organization {scope.organization_id}"
        if scope.kind is ScopeKind.ORGANIZATION
        else "all organizations"
    )
    return Text(f"Runledger, {whose}, {format_instant(snapshot.taken_at)}", style="bold")


def _counts(
    title: str, counts: Mapping[_Status, BoundedCount], styles: Mapping[_Status, str]
) -> RenderableType:
    table = _table(title)
    table.add_column("Status")
    table.add_column("Count", justify="right")
    for status, count in counts.items():
        number = format_count(count.total, is_exact=count.is_exact)
        table.add_row(Text(status.value, style=styles[status]), Text(number))
    return table


def _runs(snapshot: Snapshot) -> RenderableType:
    if not any(count.total for count in snapshot.runs.values()):
        return Text("There are no workflow runs.")
    return _counts("Workflow runs", snapshot.runs, _RUN_STYLES)


def _oldest(snapshot: Snapshot) -> RenderableType:
    if not snapshot.oldest_waiting:
        return Text("No job is due and waiting.")
    table = _table("Oldest waiting job of each type")
    table.add_column("Job type", overflow="fold")
    table.add_column("Waiting", justify="right")
    table.add_column("Job", overflow="fold")
    for waiting in sorted(snapshot.oldest_waiting, key=lambda waiting: -waiting.waiting_seconds):
        table.add_row(
            Text(visible_text(waiting.job_type)),
            Text(format_seconds(waiting.waiting_seconds)),
            Text(str(waiting.job_id)),
        )
    return table


def _workers(snapshot: Snapshot) -> RenderableType:
    if not snapshot.workers:
        return Text("No worker reports.")
    live = sum(is_live(worker) for worker in snapshot.workers)
    table = _table(f"Workers: {live} live, {len(snapshot.workers) - live} silent")
    table.add_column("Worker", overflow="fold")
    table.add_column("Process", overflow="fold")
    table.add_column("State")
    table.add_column("Seen", justify="right")
    table.add_column("Slots", justify="right")
    table.add_column("Job types", overflow="fold")
    for worker in snapshot.workers:
        table.add_row(
            Text(visible_text(worker.worker_id)),
            Text(f"{visible_text(worker.host)}:{worker.pid}"),
            _worker_state(worker),
            Text(f"{format_seconds(worker.seconds_since_seen)} ago"),
            Text(f"{worker.concurrency:,}"),
            Text(visible_text(", ".join(worker.job_types))),
        )
    return table


def _worker_state(worker: WorkerRecord) -> Text:
    if not is_live(worker):
        return Text(f"silent ({worker.state.value})", style="bold red")
    return Text(
        worker.state.value, style="green" if worker.state is WorkerState.RUNNING else "yellow"
    )


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
