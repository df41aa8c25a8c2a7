"""The `runledger-tui` command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Final
from uuid import UUID

from runledger_core import (
    NotFoundError,
    RunledgerError,
    Scope,
    UnavailableError,
    ValidationError,
    visible_text,
)

from . import __version__

_FAILED: Final = 1
_INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Errors are one line on stderr with a stable code, never a traceback, never a connection string.

    Args:
        argv: Arguments without the program's name; the process's own if None.

    Returns:
        0; 1 after an error; 130 after Ctrl-C. Wrong usage ends with SystemExit 2.
    """
    arguments = _parse(argv)
    _prepare_streams()
    try:
        _print_snapshot(arguments)
    except RunledgerError as error:
        print(f"runledger-tui: {visible_text(str(error))}", file=sys.stderr)  # noqa: T201  # a command
        return _FAILED
    except BrokenPipeError:
        # Who reads has seen enough; Python would flush, and complain, once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _print_snapshot(arguments: argparse.Namespace) -> None:
    try:
        # Here, so that --help needs no driver.
        from .fetch import fetch_snapshot  # noqa: PLC0415  # see above
        from .snapshot import render_json, render_text  # noqa: PLC0415  # see above
    except ImportError as error:
        # psycopg says so in an ImportError, with the causes of each way it tried.
        raise UnavailableError(
            "tui.driver_missing",
            "psycopg finds no libpq; install psycopg[binary] or the system's libpq",
        ) from error
    scope = Scope.ADMIN if arguments.org is None else Scope.organization(arguments.org)
    with _database_url(arguments) as database_url:
        snapshot = fetch_snapshot(database_url, scope, check_schema=not arguments.skip_schema_check)
    text = render_json(snapshot) + "\n" if arguments.json else render_text(snapshot, sys.stdout)
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _database_url(arguments: argparse.Namespace) -> Generator[str]:
    if arguments.embedded is not None:
        with _embedded_url(arguments.embedded) as database_url:
            yield database_url
        return
    database_url = arguments.database_url or os.environ.get("DATABASE_URL")
    if not database_url:
        raise ValidationError(
            "config.database_url_missing",
            "pass --database-url or --embedded, or set DATABASE_URL",
            field="DATABASE_URL",
        )
    yield database_url


@contextmanager
def _embedded_url(directory: Path) -> Generator[str]:
    from runledger_postgres.embedded import EmbeddedServer  # noqa: PLC0415  # for --embedded only

    # A viewer makes no new cluster where somebody mistyped a name.
    if not _has_entries(directory):
        raise NotFoundError(
            "tui.embedded_not_found", f"{directory} holds no embedded server", field="embedded"
        )
    with EmbeddedServer(directory, on_notice=_print_notice) as server:
        yield server.dsn()


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


def _print_notice(sentence: str) -> None:
    print(f"runledger-tui: {visible_text(sentence)}", file=sys.stderr)  # noqa: T201  # a command


def _prepare_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not an exception.
            stream.reconfigure(errors="replace")
    # What libraries have to say comes as errors and notices.
    logging.getLogger("runledger_postgres").addHandler(logging.NullHandler())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="runledger-tui",
        description="Look at a Runledger job queue. Only reads: a role with SELECT is enough.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--once", action="store_true", help="print a snapshot and exit")
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON")
    database = parser.add_mutually_exclusive_group()
    database.add_argument(
        "--database-url", metavar="URL", help="the database (default: DATABASE_URL)"
    )
    database.add_argument(
        "--embedded", metavar="DIR", type=Path, help="the embedded server of a directory"
    )
    parser.add_argument(
        "--org", metavar="UUID", type=_uuid, help="count the jobs of one organization only"
    )
    parser.add_argument(
        "--skip-schema-check",
        action="store_true",
        help="read a database whose schema is not that of this version",
    )
    # The error of parse_args repeats unknown arguments, and one may be a connection string.
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"{len(unknown)} unknown arguments")
    if not arguments.once:
        parser.error("this version has no screens, only the snapshot: pass --once")
    return arguments


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError("not a UUID") from None
