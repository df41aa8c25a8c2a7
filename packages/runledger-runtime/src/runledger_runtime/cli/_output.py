"""Printing: tables and details for people, JSON for programs, data never obeyed by the terminal."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from runledger_core import JsonInput, JsonValue, UnavailableError, Unset, visible_text

from ._errors import CommandFailure
from ._text import json_line

if TYPE_CHECKING:
    from rich.console import Console

NOTHING: Final = "-"

_WRITE_ERRORS: Final = frozenset(
    {errno.EAGAIN, errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}
)
_NOT_WRITTEN: Final = "cli.output_not_written"

# Room for an id, a status and something beside them.
_WIDE_ENOUGH: Final = 100
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))

STATUS_STYLES: Final = {
    "PENDING": "yellow",
    "LEASED": "cyan",
    "SUCCEEDED": "green",
    "DEAD_LETTERED": "red",
    "CANCELED": "magenta",
    "RUNNING": "cyan",
    "ENQUEUED": "yellow",
    "WAITING_FOR_EXTERNAL": "yellow",
    "FAILED": "red",
    "COMPLETED_WITH_ERRORS": "red",
}


def require_output() -> None:
    """Refuse a closed standard output.

    Raises:
        UnavailableError: `cli.output_not_written`.
    """
    # None if its descriptor was closed when Python started.
    if not sys.stdout:
        raise UnavailableError(_NOT_WRITTEN, "the standard output is closed; nothing was done")


def output_failure(error: OSError) -> CommandFailure | None:
    """Return what to tell of an error if it is one of writing to the standard output."""
    # A file that a command opens has its name in the error.
    if error.errno not in _WRITE_ERRORS or error.filename is not None:
        return None
    # Python would write what is left when it ends, and fail with words of its own.
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    return CommandFailure(
        UnavailableError(_NOT_WRITTEN, f"the output cannot be written: {error.strerror}"),
        next_step="make room, or send it elsewhere; what the command did is done",
    )


def print_json(value: JsonInput) -> None:
    """Print one JSON document on one line."""
    click.echo(json_line(value))


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    flexible: Collection[str],
    wraps: bool = False,
) -> None:
    """Print rows in columns: made to fit on a terminal, whole and unstyled elsewhere.

    Args:
        headers: Titles of the columns.
        rows: Cells; as many in each as there are titles.
        flexible: Titles of the columns that a narrow terminal shortens.
        wraps: Wrap the cells of those instead of cutting them.
    """
    cells = [[visible_text(cell) for cell in row] for row in rows]
    # On a narrow terminal too: it wraps lines, while cut columns would tell nothing.
    if sys.stdout.isatty() and shutil.get_terminal_size().columns >= _WIDE_ENOUGH:
        _print_rich_table(headers, cells, flexible, wraps=wraps)
        return
    widths = [max(len(cell) for cell in column) for column in zip(headers, *cells, strict=True)]
    for row in [list(headers), *cells]:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def print_heading(text: str) -> None:
    """Print the title of a part."""
    click.echo()
    click.secho(text, bold=True)


def make_console(*, to_stderr: bool = False) -> Console:
    """Return a rich console that takes all text literally."""
    from rich.console import Console  # noqa: PLC0415  # Most verbs print without it.

    return Console(stderr=to_stderr, markup=False, highlight=False, emoji=False)


def show_instant(instant: datetime | None, *, timespec: str = "milliseconds") -> str:
    """Return an instant in UTC to the millisecond, or as `timespec` says; a dash for none."""
    if instant is None:
        return NOTHING
    text = instant.astimezone(UTC).isoformat(sep=" ", timespec=timespec)
    return text.replace("+00:00", "Z")


def show_distance(instant: datetime | None) -> str:
    """Return how far an instant is from now, such as `in 5m` or `3h ago`."""
    if instant is None:
        return NOTHING
    seconds = (instant - datetime.now(UTC)).total_seconds()
    distance = abs(seconds)
    unit, length = next(((unit, length) for unit, length in _UNITS if distance >= length), ("s", 1))
    text = f"{int(distance // length)}{unit}"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def show_value(value: object) -> str:
    """Return a value for a cell; what is absent is a dash."""
    return NOTHING if value is None else str(value)


def show_progress(done: int | None, total: int | None) -> str:
    """Return progress as it fits a cell."""
    if done is None and total is None:
        return NOTHING
    return f"{done or 0}/{'?' if total is None else total}"


# Any: a dataclass instance has no better type.
def row_to_json(row: Any) -> dict[str, JsonValue]:
    """Return the fields of a row as JSON; those that are unset are left out."""
    values = ((field.name, getattr(row, field.name)) for field in fields(row))
    return {name: _to_json(value) for name, value in values if not isinstance(value, Unset)}


def _to_json(value: Any) -> JsonValue:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case UUID():
            return str(value)
        case _:
            # Enumerations are texts, and JSON columns are decoded.
            return value


def _print_rich_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], flexible: Collection[str], *, wraps: bool
) -> None:
    from rich.table import Table  # noqa: PLC0415  # As above.
    from rich.text import Text  # noqa: PLC0415  # As above.

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        # Only columns that may wrap are made narrower while there are any.
        table.add_column(header, no_wrap=header not in flexible, overflow="fold")
    for row in rows:
        table.add_row(
            *(
                Text(
                    cell,
                    style=STATUS_STYLES.get(cell, ""),
                    no_wrap=not wraps,
                    overflow="fold" if wraps else "ellipsis",
                )
                for cell in row
            )
        )
    make_console().print(table)
