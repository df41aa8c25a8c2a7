"""`runledger definitions`: look at job types, and stop or resume their enqueues."""

from __future__ import annotations

from typing import Final

import click

from runledger_core import ValidationError, visible_text
from runledger_postgres import JobDefinitionRecord, list_job_definitions, update_job_definition

from ._database import Target, database_options
from ._listing import Listing, limit_option
from ._options import all_of, json_option
from ._output import print_json, row_to_json, show_distance

_change_options: Final = all_of(
    click.argument("job_type", metavar="TYPE"), json_option, database_options
)


@click.group("definitions")
def command() -> None:
    """Look at job types, and stop or resume their enqueues."""


@command.command("list")
@click.option(
    "--type-contains", metavar="TEXT", help="Only job types with this text in their name."
)
@limit_option("definitions")
@click.option("--after", metavar="TYPE", help="Go on after this type.")
@json_option
@database_options
def list_command(
    type_contains: str | None, *, limit: int, after: str | None, as_json: bool, target: Target
) -> None:
    """List definitions in the order of their types.

    ATTEMPTS, TIMEOUT (seconds) and PRIORITY are what new jobs of a type get unless they ask for
    something else.
    """
    with target.connect() as connection:
        definitions = list_job_definitions(
            connection, job_type_contains=type_contains, limit=limit, after=after
        )
    _DEFINITIONS.print_page(definitions, limit=limit, as_json=as_json)


@command.command("enable")
@_change_options
def enable(job_type: str, *, as_json: bool, target: Target) -> None:
    """Let jobs of a type be enqueued again."""
    _set_enabled(job_type, target, is_enabled=True, as_json=as_json)


@command.command("disable")
@_change_options
def disable(job_type: str, *, as_json: bool, target: Target) -> None:
    """Let no more jobs of a type be enqueued; those that are queued still run.

    Refused while an active schedule uses the type. It lasts until `definitions enable`, or until a
    program writes its definitions with an exact sync; `runledger worker` does not do that.
    """
    _set_enabled(job_type, target, is_enabled=False, as_json=as_json)


def _set_enabled(job_type: str, target: Target, *, is_enabled: bool, as_json: bool) -> None:
    with target.connect() as connection:
        definition = update_job_definition(connection, job_type, is_enabled=is_enabled)
    if definition is None:
        raise ValidationError(
            "job.definition_not_found", "no definition has this job type", field="job_type"
        )
    if as_json:
        print_json(row_to_json(definition))
        return
    click.echo(f"{visible_text(job_type)} is {'enabled' if is_enabled else 'disabled'}")


def _cells(definition: JobDefinitionRecord) -> tuple[str, ...]:
    return (
        definition.job_type,
        "yes" if definition.is_enabled else "no",
        str(definition.max_attempts),
        f"{definition.default_timeout_seconds}s",
        str(definition.default_priority),
        str(definition.version),
        show_distance(definition.updated_at),
    )


_DEFINITIONS: Final[Listing[JobDefinitionRecord]] = Listing(
    "definitions",
    ("TYPE", "ENABLED", "ATTEMPTS", "TIMEOUT", "PRIORITY", "VERSION", "CHANGED"),
    flexible=("TYPE",),
    cells=_cells,
    cursor=lambda definition: definition.job_type,
)
