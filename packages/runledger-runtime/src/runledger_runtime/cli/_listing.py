"""Lists, a page at a time: how long one is, how it is printed, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Generic, TypeVar

import click

from runledger_core import JsonValue, visible_text

from ._options import Function
from ._output import print_json, print_table, row_to_json

Row = TypeVar("Row")

MOST_ROWS: Final = 1_000
"""Of a page, as the storage reads it."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """How rows of one kind are printed.

    Attributes:
        name: Of the rows in sentences and in JSON, in the plural.
        headers: Titles of the columns.
        flexible: Titles of the columns that a narrow terminal shortens.
        wraps: Wrap the cells of those instead of cutting them.
        cells: Gives what a row shows, as much as there are titles.
        cursor: Gives what --after takes to go on behind a row.
    """

    name: str
    headers: Sequence[str]
    _: KW_ONLY
    flexible: Sequence[str]
    wraps: bool = False
    cells: Callable[[Row], Sequence[str]]
    cursor: Callable[[Row], str]

    def print_page(self, rows: Sequence[Row], *, limit: int, as_json: bool) -> None:
        """Print a page, and how to go on if it is full."""
        if as_json:
            print_json(self.to_json(rows, limit=limit))
        elif rows:
            self.print_rows(rows, limit=limit)
        else:
            click.echo(f"no {self.name}")

    def to_json(self, rows: Sequence[Row], *, limit: int) -> dict[str, JsonValue]:
        """Return the rows, and as `next_after` where the next page begins."""
        return {
            self.name: [row_to_json(row) for row in rows],
            "next_after": self._next_after(rows, limit),
        }

    def print_rows(self, rows: Sequence[Row], *, limit: int) -> None:
        """Print the rows as a table, and how to go on if there are as many as may be."""
        cells = [self.cells(row) for row in rows]
        print_table(self.headers, cells, flexible=self.flexible, wraps=self.wraps)
        next_after = self._next_after(rows, limit)
        if next_after is not None:
            click.echo(f"more: --after {visible_text(next_after)}", err=True)

    def _next_after(self, rows: Sequence[Row], limit: int) -> str | None:
        return self.cursor(rows[-1]) if len(rows) == limit else None


def limit_option(rows: str, *, default: int = 50) -> Callable[[Function], Function]:
    """Return --limit, the length of a page."""
    return click.option(
        "--limit",
        type=click.IntRange(1, MOST_ROWS),
        default=default,
        show_default=True,
        help=f"Most {rows} to show.",
    )
