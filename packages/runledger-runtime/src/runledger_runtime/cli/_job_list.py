"""`runledger jobs list`, and the filter that bulk verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import click

from runledger_core import JobStatus, Scope

from ._database import Target, database_options
from ._listing import Listing, limit_option
from ._options import all_of, json_option, status_option
from ._output import show_distance, show_value
from ._scope import scope_options

if TYPE_CHECKING:
    from runledger_postgres import JobFilter, JobSummary

filter_options: Final = all_of(
    status_option(JobStatus, of="jobs"),
    click.option("--type", "job_type", metavar="TYPE", help="Only this job type."),
    click.option(
        "--type-contains", metavar="TEXT", help="Only job types with this text in their name."
    ),
)


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
@limit_option("jobs")
@click.option("--after", type=click.UUID, metavar="ID", help="Go on after this job, to older ones.")
@json_option
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
    _JOBS.print_page(jobs, limit=limit, as_json=as_json)


def _cells(job: JobSummary) -> tuple[str, ...]:
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


_JOBS: Final[Listing[JobSummary]] = Listing(
    "jobs",
    ("ID", "TYPE", "STATUS", "ATTEMPT", "WHEN", "ERROR"),
    flexible=("TYPE", "ERROR"),
    cells=_cells,
    cursor=lambda job: str(job.id),
)
