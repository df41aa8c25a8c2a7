"""Errors of the command line, and how every error is shown: its code, its sentence, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, Final

import click

from runledger_core import RunledgerError, visible_text

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cli.app_import_failed": "The module of --app cannot be imported.",
        "cli.app_not_a_catalog": "What --app names is no JobCatalog and gives none.",
        "cli.app_not_found": "The module of --app, or the name in it, does not exist.",
        "cli.confirmation_required": "A command for many jobs needs --yes.",
        "cli.demo_failed": "The demo did not end as it should, or its numbers do not add up.",
        "cli.embedded_directory_missing": "The directory of --embedded does not exist.",
        "cli.missing_package": "A package that the command needs is not installed.",
        "cli.output_not_written": "The standard output is closed, or cannot be written to.",
        "cli.schedule_not_found": "No schedule has this name.",
        "cli.some_jobs_refused": "Some of the named jobs could not be changed.",
        "cli.some_runs_refused": "Some of the named workflow runs could not be changed.",
        "cli.some_schedules_refused": "Some of the schedules could not be changed.",
        "cli.step_not_found": "The workflow run has no step of this key.",
    }
)
"""What each code of this package means, for documentation and for tests."""

_NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cli.app_import_failed": "correct the module; the error is the one that Python reported",
        "cli.app_not_a_catalog": "name it as --app package.module:catalog",
        "cli.app_not_found": "name it as --app package.module:catalog, and run where that imports",
        "cli.confirmation_required": "add --yes to do it",
        "cli.demo_failed": "run it again; a machine that is very busy may take too long",
        "cli.embedded_directory_missing": "runledger demo, or: runledger migrate --embedded DIR",
        "cli.missing_package": "install it, then run the command again",
        "cli.output_not_written": "send the output to a file, or to /dev/null",
        "cli.schedule_not_found": "runledger schedules list shows the names",
        "cli.some_jobs_refused": "runledger jobs show ID tells what a job's status is",
        "cli.some_runs_refused": (
            "runledger workflows list; with --org or --global only runs in there are seen"
        ),
        "cli.some_schedules_refused": (
            "runledger schedules list shows the names, runledger definitions list the types"
        ),
        "cli.step_not_found": "runledger workflows show ID shows the steps",
        "config.database_url_invalid": (
            "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with @ / : ? # % in the"
            " password as %40 %2F %3A %3F %23 %25"
        ),
        "config.database_url_missing": (
            "set DATABASE_URL, or give --database-url URL or --embedded DIR;"
            " runledger demo needs none of them"
        ),
        "db.permission_denied": "use a role that may, or have the permission granted",
        "job.definition_not_found": (
            "runledger definitions list shows the types; a worker writes those of its catalog when"
            " it starts"
        ),
        "job.definition_not_found_or_disabled": (
            "runledger definitions list shows the types: enable a disabled one (definitions enable"
            " TYPE); a worker whose catalog has a type writes its definition"
        ),
        "job.not_found": "runledger jobs list; with --org or --global only jobs in there are seen",
        "job.undecodable_row": (
            "look at it in psql: SELECT payload FROM runledger.job_queue WHERE id = 'ID'"
        ),
        "job_definition.active_schedule_exists": (
            "runledger schedules list --active shows them; pause each (schedules pause NAME), then"
            " try again"
        ),
        "workflow.external_step_not_found": "runledger workflows show ID shows the steps",
        "workflow.external_step_not_waiting": (
            "runledger workflows show ID tells what the gate waits for"
        ),
        "workflow.release_conflict": "try again in a moment",
        "workflow.run_not_found": (
            "runledger workflows list; with --org or --global only runs in there are seen"
        ),
    }
)

EXIT_FAILURE: Final = 1
EXIT_UNSETTLED: Final = 70
EXIT_INTERRUPTED: Final = 130


class CommandFailure(click.ClickException):
    """Ends the command with a coded error on stderr; never with a traceback."""

    exit_code = EXIT_FAILURE

    def __init__(self, error: RunledgerError, *, next_step: str | None = None) -> None:
        """Take an error that is safe to show.

        Args:
            next_step: What to do; None for what is known about the code.
        """
        super().__init__(str(error))
        self.error = error
        self.next_step = next_step or _NEXT_STEPS.get(error.code)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error, and the next step if there is one."""
        del file
        click.echo(f"error: {visible_text(str(self.error))}", err=True)
        # Storage errors have one; it tells a database administrator more than our words.
        sqlstate: object = getattr(self.error, "sqlstate", None)
        if sqlstate is not None:
            click.echo(f" info: the database answered with SQLSTATE {sqlstate}", err=True)
        if self.next_step is not None:
            click.echo(f" next: {visible_text(self.next_step)}", err=True)
