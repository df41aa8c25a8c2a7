"""`runledger schedules preview`: the next fires of a schedule, or of a cron expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import click
import psycopg

from runledger_core import JsonValue, NotFoundError, visible_text
from runledger_postgres.schedules import JobScheduleRecord, get_job_schedule_by_name

from ..cron import jitter_seconds, next_fire_after
from ._database import Target, database_options
from ._options import json_option
from ._output import print_json, print_table, show_distance, show_instant
from ._schedule_list import EXHAUSTED

_MOST_FIRES: Final = 1_000
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class _Fire:
    scheduled_for: datetime
    run_at: datetime | None


@click.command("preview")
@click.argument("name", required=False)
@click.option("--cron", metavar="EXPRESSION", help="Of this expression; takes no database.")
@click.option(
    "--count",
    type=click.IntRange(1, _MOST_FIRES),
    default=5,
    show_default=True,
    help="How many fires to show.",
)
@json_option
@database_options
def preview(
    name: str | None, *, cron: str | None, count: int, as_json: bool, target: Target
) -> None:
    """Show the next fires of a stored schedule, or of a cron expression, in UTC.

    RUNS is when the job of a fire may start, where the schedule has jitter. A fire that is overdue
    comes first: it is made once, late, and those after it up to now are left out.
    """
    if (name is None) == (cron is None):
        message = "give the NAME of a schedule or --cron EXPRESSION"
        raise click.UsageError(message)
    if cron is not None:
        fires = _fires_of_expression(cron, count)
    else:
        with target.connect() as connection:
            schedule = _require(connection, name or "")
        if not schedule.is_active:
            click.echo("note: it is paused; these are the fires it would have", err=True)
        cron, fires = schedule.cron_expr, _fires_of_schedule(schedule, count)
    if as_json:
        print_json({"cron_expr": cron, "fires": [_to_json(fire) for fire in fires]})
    elif fires:
        _print(fires)
    else:
        click.echo("no further fire")


def _require(connection: psycopg.Connection, name: str) -> JobScheduleRecord:
    schedule = get_job_schedule_by_name(connection, name)
    if schedule is None:
        raise NotFoundError("cli.schedule_not_found", f"there is no schedule {visible_text(name)}")
    return schedule


def _fires_of_expression(cron: str, count: int) -> list[_Fire]:
    return [_Fire(fire, fire) for fire in _following(cron, datetime.now(UTC), count)]


def _fires_of_schedule(schedule: JobScheduleRecord, count: int) -> list[_Fire]:
    if schedule.last_error_code == EXHAUSTED and not schedule.is_active:
        return []
    first = schedule.next_fire_at
    rest = _following(schedule.cron_expr, max(first, datetime.now(UTC)), count - 1)
    return [_Fire(fire, _run_at(schedule, fire)) for fire in (first, *rest)]


def _run_at(schedule: JobScheduleRecord, fire: datetime) -> datetime | None:
    jitter = jitter_seconds(schedule.id, fire, schedule.max_jitter_seconds)
    try:
        return fire + timedelta(seconds=jitter)
    except OverflowError:
        # Beyond the year 9999.
        return None


def _following(cron: str, instant: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    following = next_fire_after(cron, instant)
    while following is not None and len(found) < count:
        found.append(following)
        following = next_fire_after(cron, following)
    return found


def _print(fires: Sequence[_Fire]) -> None:
    has_jitter = any(fire.run_at != fire.scheduled_for for fire in fires)
    headers = ["FIRE", "DAY", "WHEN", *(["RUNS"] if has_jitter else [])]
    rows = [
        [
            show_instant(fire.scheduled_for, timespec="seconds"),
            _DAYS[fire.scheduled_for.weekday()],
            show_distance(fire.scheduled_for),
            *([show_instant(fire.run_at, timespec="seconds")] if has_jitter else []),
        ]
        for fire in fires
    ]
    print_table(headers, rows, flexible=())


def _to_json(fire: _Fire) -> dict[str, JsonValue]:
    return {
        "scheduled_for": fire.scheduled_for.astimezone(UTC).isoformat(),
        "run_at": None if fire.run_at is None else fire.run_at.astimezone(UTC).isoformat(),
    }
