"""`runledger schedules list`."""

from __future__ import annotations

from typing import Final

import click

from runledger_postgres.schedules import JobScheduleSummary, list_job_schedules

from ._database import Target, database_options
from ._listing import Listing, limit_option
from ._options import json_option
from ._output import show_distance, show_value

EXHAUSTED: Final = "job_schedule.exhausted"


@click.command("list")
@click.option(
    "--name-contains", metavar="TEXT", help="Only schedules with this text in their name."
)
@click.option(
    "--active/--paused",
    "is_active",
    default=None,
    help="Only those that fire, or only those that do not.",
)
@limit_option("schedules")
@click.option("--after", metavar="NAME", help="Go on after this schedule.")
@json_option
@database_options
def list_command(
    name_contains: str | None,
    *,
    is_active: bool | None,
    limit: int,
    after: str | None,
    as_json: bool,
    target: Target,
) -> None:
    """List schedules in the order of their names.

    STATE is active, failing (it is tried again; ERROR tells why), paused, or ended, when the cron
    expression has no further fire. NEXT is the next fire.
    """
    with target.connect() as connection:
        schedules = list_job_schedules(
            connection, name_contains=name_contains, is_active=is_active, limit=limit, after=after
        )
    _SCHEDULES.print_page(schedules, limit=limit, as_json=as_json)


def _cells(schedule: JobScheduleSummary) -> tuple[str, ...]:
    return (
        schedule.name,
        schedule.job_type,
        schedule.cron_expr,
        _state(schedule),
        show_distance(schedule.next_fire_at if schedule.is_active else None),
        show_distance(schedule.last_fired_at),
        show_value(schedule.last_error_code),
    )


def _state(schedule: JobScheduleSummary) -> str:
    if schedule.is_active:
        return "failing" if schedule.failure_count else "active"
    return "ended" if schedule.last_error_code == EXHAUSTED else "paused"


_SCHEDULES: Final[Listing[JobScheduleSummary]] = Listing(
    "schedules",
    ("NAME", "TYPE", "CRON", "STATE", "NEXT", "LAST", "ERROR"),
    flexible=("NAME", "TYPE", "CRON", "ERROR"),
    cells=_cells,
    cursor=lambda schedule: schedule.name,
)
