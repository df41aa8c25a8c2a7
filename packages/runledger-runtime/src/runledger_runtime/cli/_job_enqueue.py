"""`runledger jobs enqueue`: make one job."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import click

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job

from ._database import Target, database_options
from ._input import decode_argument
from ._options import json_option
from ._output import print_json

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS: Final = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> timedelta | None:
    if value is None:
        return None
    match = _DURATION.fullmatch(value)
    if match is None:
        message = "write a number with s, m, h or d, such as 90s or 5m"
        raise click.BadParameter(message, ctx, parameter)
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        message = "is too long"
        raise click.BadParameter(message, ctx, parameter) from None


def _instant(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        message = "write it as 2030-01-31T08:00:00Z"
        raise click.BadParameter(message, ctx, parameter) from None
    if instant.tzinfo is None:
        message = "needs a UTC offset, such as the Z in 2030-01-31T08:00:00Z"
        raise click.BadParameter(message, ctx, parameter)
    return instant


@click.command("enqueue")
@click.argument("job_type", metavar="TYPE")
@click.argument("payload", metavar="[PAYLOAD]", default="{}")
@click.option("--key", metavar="TEXT", help="Idempotency key: at most one job of type and key.")
@click.option("--priority", type=int, help="Larger runs first; may be negative.")
@click.option("--max-attempts", type=int, help="Attempts before the job is given up.")
@click.option("--timeout", type=int, metavar="SECONDS", help="Time for one attempt.")
@click.option("--run-at", callback=_instant, metavar="INSTANT", help="Not before this instant.")
@click.option(
    "--delay", callback=_duration, metavar="TIME", help="Not before so long: 90s, 5m, 2h."
)
@click.option("--org", type=click.UUID, metavar="UUID", help="Owner of the job; none without it.")
@json_option
@database_options
def enqueue(
    job_type: str,
    payload: str,
    *,
    key: str | None,
    priority: int | None,
    max_attempts: int | None,
    timeout: int | None,
    run_at: datetime | None,
    delay: timedelta | None,
    org: UUID | None,
    as_json: bool,
    target: Target,
) -> None:
    """Make a job of TYPE; PAYLOAD is JSON, or - for the standard input.

    What is left out comes from the definition of the type.
    """
    request = JobEnqueue(
        job_type,
        decode_argument(payload, field="payload"),
        organization_id=org,
        priority=priority,
        max_attempts=max_attempts,
        timeout_seconds=timeout,
        next_run_at=_due(run_at, delay, key),
        idempotency_key=key,
    )
    with target.connect() as connection:
        job = enqueue_job(connection, request)
    if as_json:
        print_json({"id": str(job.id), "disposition": job.disposition})
    else:
        click.echo(f"{job.id} {job.disposition.lower()}")


def _due(run_at: datetime | None, delay: timedelta | None, key: str | None) -> datetime | None:
    if delay is None:
        return run_at
    if run_at is not None:
        message = "give --run-at or --delay, not both"
        raise click.UsageError(message)
    if key is not None:
        # Repeated a second later it would be a different request under the same key.
        message = "give --run-at with --key: a delay is another instant each time"
        raise click.UsageError(message)
    try:
        return datetime.now(UTC) + delay
    except OverflowError:
        message = "--delay ends beyond the year 9999"
        raise click.UsageError(message) from None
