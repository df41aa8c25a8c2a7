"""`runledger migrate`: create or upgrade the schema, check it, or print it."""

from __future__ import annotations

import click

from runledger_core import visible_text
from runledger_postgres import migrate, migration_script

from ._database import Target, database_options


@click.command("migrate")
@click.option("--check", "checks", is_flag=True, help="Only say whether the schema is current.")
@click.option(
    "--sql",
    "prints",
    is_flag=True,
    help="Print a script instead: what the database lacks, or without any the whole schema.",
)
@database_options
def command(*, checks: bool, prints: bool, target: Target) -> None:
    """Create the schema of this version, or upgrade to it.

    Safe to run at any time, from any number of processes, beside running workers.
    """
    if checks and prints:
        message = "give either --check or --sql"
        raise click.UsageError(message)
    if checks:
        _check(target)
    elif prints:
        _print_script(target)
    else:
        _migrate(target)


def _migrate(target: Target) -> None:
    with target.connect(may_create=True, checks_schema=False) as connection:
        applied = migrate(
            connection, on_progress=lambda name: click.echo(f"applying {visible_text(name)}")
        )
    if applied:
        click.echo(f"the schema is current: {len(applied)} migrations applied")
    else:
        click.echo("the schema is current: nothing to do")


def _check(target: Target) -> None:
    with target.connect():
        click.echo("the schema is current")


def _print_script(target: Target) -> None:
    if target.is_given:
        with target.connect(may_create=True, checks_schema=False) as connection:
            script = migration_script(connection)
    else:
        script = migration_script()
    click.echo(script, nl=False)
