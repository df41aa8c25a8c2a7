"""The command group: verbs are imported when they are called."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any, Final, NoReturn

import click

from runledger_core import RunledgerError, UnavailableError

from .._version import __version__
from ._errors import EXIT_INTERRUPTED, CommandFailure
from ._output import output_failure, require_output

_VERBS: Final = {
    "definitions": "Look at job types, and stop or resume their enqueues.",
    "demo": "Show real jobs at work on a PostgreSQL that comes along.",
    "jobs": "Look at jobs, make them, and change them.",
    "migrate": "Create or upgrade the schema, check it, or print it.",
    "schedules": "Look at schedules and their next fires, pause and resume them.",
    "worker": "Run the jobs of a catalog until told to stop.",
    "workflows": "Look at workflow runs, draw and cancel them, complete their gates.",
}
PROCESS_IS_OURS: Final = object()
"""The object of click's context in a process that was started for the command."""

# It prints nothing, and runs where nobody looks.
_SILENT: Final = "worker"


class _Verbs(click.Group):
    """Imports the module of a verb on demand, and turns errors into sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _VERBS:
            return None
        if cmd_name != _SILENT:
            require_output()
        try:
            command: click.Command = import_module(f"{__package__}.{cmd_name}").command
        except ImportError as error:
            raise CommandFailure(_missing_package(error)) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: looking at the commands would import all of them.
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))

    # Any: as click declares it.
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RunledgerError as error:
            raise CommandFailure(error) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def _missing_package(error: ImportError) -> UnavailableError:
    # psycopg without its C parts looks for the system's libpq when it is imported.
    if "pq wrapper" in str(error):
        what, how = "the PostgreSQL client library libpq", "'runledger-postgres[binary]'"
    elif (error.name or "").startswith("runledger_"):
        raise error
    else:
        what, how = f"the package {error.name}", "'runledger-runtime'"
    return UnavailableError("cli.missing_package", f"{what} is missing: pip install {how}")


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="runledger")
def runledger() -> None:
    """Durable jobs on PostgreSQL.

    Verbs that need a database take it from --database-url, else from --embedded DIR (a server in
    a folder, started or reused), else from the environment's DATABASE_URL.
    """


def main() -> NoReturn:
    """Run the command of this process and exit."""
    _heed_sigterm_as_first_process()
    try:
        runledger(prog_name="runledger", obj=PROCESS_IS_OURS)
    except OSError as error:
        failure = output_failure(error)
        if failure is None:
            raise
        failure.show()
        sys.exit(failure.exit_code)
    raise AssertionError  # click has ended the process


def _heed_sigterm_as_first_process() -> None:
    # The first process of a container gets no signal that it does not handle: until a worker does,
    # a stop would be lost.
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    if os.getpid() != 1:
        # A forked child, which has the handler too, dies of the signal as any other.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    sys.exit(128 + number)
