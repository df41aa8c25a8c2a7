"""`runledger jobs list`, and the filter that bulk verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import click

from runledger_core import JobStatus, Scope

from ._database import Target, database_options
from ._output import print_json, print_table, row_to_json, show_distance, show_value
from ._scope import scope_options

if TYPE_CHECKING:
    from runledger_postgres import JobFilter, JobSummary

Function = TypeVar("Function", bound=Callable[..., Any])

_HEADERS: Final = ("ID", "TYPE", "STATUS", "ATTEMPT", "WHEN", "ERROR")
_FLEXIBLE: Final = ("TYPE", "ERROR")
_MOST_ROWS: Final = 1_000


def filter_options(function: Function) -> Function:
    """Add --status, --type and --type-contains."""
    contains = click.option(
        "--type-contains", metavar="TEXT", help="Only job types with this text in their name."
    )
    exactly = click.option("--type", "job_type", metavar="TYPE", help="Only this job type.")
    status = click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([status.value for status in JobStatus], case_sensitive=False),
        help="Only jobs of this status; may be repeated.",
    )
    return status(exactly(contains(function)))


def make_filter(
    scope: Scope, statuses: Sequence[str], *, job_type: str | None, type_contains: str | None
) -> JobFilter:
    """Return the filter of these options."""
    from runledger_postgres import JobFilter  # noqa: PLC0415  # brings SQLAlchemy

    return JobFilter(
        scope,
        status=[JobStatus(status) for status in statuses] or None,
        job_type=job_type,
        job_type_contains=type_contains,
    )


@click.command("list")
@filter_options
@scope_options
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST_ROWS),
    default=50,
    show_default=True,
    help="Most jobs to show.",
)
@click.option("--after", type=click.UUID, metavar="ID", help="Go on after this job, to older ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@database_options
def list_command(
    statuses: Sequence[str],
    *,
    job_type: str | None,
    type_contains: str | None,
    scope: Scope,
    limit: int,
    after: UUID | None,
    as_json: bool,
    target: Target,
) -> None:
    """List jobs, newest first.

    WHEN tells when a pending job is due, when a leased one was last changed, or when it ended.
    """
    from runledger_postgres import list_jobs  # noqa: PLC0415  # As above.

    chosen = make_filter(scope, statuses, job_type=job_type, type_contains=type_contains)
    with target.connect() as connection:
        jobs = list_jobs(connection, chosen, limit=limit, after=after)
    next_after = jobs[-1].id if len(jobs) == limit else None
    if as_json:
        print_json(
            {
                "jobs": [row_to_json(job) for job in jobs],
                "next_after": None if next_after is None else str(next_after),
            }
        )
        return
    if not jobs:
        click.echo("no jobs")
        return
    print_table(_HEADERS, [_row(job) for job in jobs], flexible=_FLEXIBLE)
    if next_after is not None:
        click.echo(f"more: --after {next_after}", err=True)


def _row(job: JobSummary) -> tuple[str, ...]:
    return (
        str(job.id),
        job.job_type,
        job.status,
        _attempt(job),
        _when(job),
        show_value(job.last_error_code),
    )


def _attempt(job: JobSummary) -> str:
    text = f"{job.attempt}/{job.max_attempts}"
    return text if job.run_number == 1 else f"{text} run {job.run_number}"


def _when(job: JobSummary) -> str:
    match job.status:
        case JobStatus.PENDING:
            return show_distance(job.next_run_at)
        case JobStatus.LEASED:
            return show_distance(job.updated_at)
        case _:
            return show_distance(job.finished_at)
