"""What was measured, as tables for the terminal and for a page, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from .model import (
    CLIENT_CPU,
    COMMITS,
    RATE,
    SERVER_CPU,
    STATEMENTS,
    WAL,
    Contender,
    Figure,
    Reading,
)
from .runner import Runs
from .samples import Spread, ratios, spread_of

FIGURE_COLUMNS = ("figure", "ours", "compared with", "ratio", "target", "met")
CONTENDER_COLUMNS = (
    "contender",
    "jobs/s",
    "commits / job",
    "statements / job",
    "WAL B / job",
    "client CPU us",
    "server CPU us",
)


@dataclass(frozen=True)
class Line:
    """A figure with what was measured for it.

    Attributes:
        is_met: None without a target, or with nothing to compare with it.
    """

    figure: Figure
    ours: Spread | None
    baseline: Spread | None
    ratio: Spread | None
    is_met: bool | None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of FIGURE_COLUMNS."""
        unit, target = self.figure.reading.unit, self.figure.target
        met = {True: "yes", False: "no", None: ""}[self.is_met]
        return (
            self.figure.title,
            f"{show_spread(self.ours)} {unit}",
            "" if self.baseline is None else f"{show_spread(self.baseline)} {unit}",
            "" if self.ratio is None else f"{show_spread(self.ratio)} x",
            "" if target is None else _show_target(self.figure),
            met,
        )


def lines_of(figures: Sequence[Figure], runs: Mapping[str, Runs]) -> list[Line]:
    """Read every figure of the runs."""
    return [_line(figure, runs) for figure in figures]


def _line(figure: Figure, runs: Mapping[str, Runs]) -> Line:
    ours = measures(figure.reading, runs[figure.ours.name])
    baselines = (
        [] if figure.baseline is None else measures(figure.reading, runs[figure.baseline.name])
    )
    ratio = spread_of(ratios(ours, baselines)) if baselines else None
    middle, target = spread_of(ours), figure.target
    judged = ratio if target is not None and target.is_ratio else middle
    is_met = None if target is None or judged is None else target.is_met(judged.median)
    return Line(figure, middle, spread_of(baselines), ratio, is_met)


def measures(reading: Reading, runs: Runs) -> list[float]:
    """Return what a reading is in each run that it is read of."""
    if reading.is_counted:
        return [] if runs.counted is None else [reading.read(runs.counted)]
    return [reading.read(sample) for sample in runs.timed]


def contender_cells(runs: Runs) -> tuple[str, ...]:
    """Return the cells of CONTENDER_COLUMNS; what cannot be told apart from helpers stays empty."""
    readings = [RATE, COMMITS, STATEMENTS, WAL, CLIENT_CPU, SERVER_CPU]
    whole = [RATE, CLIENT_CPU]
    cells = [runs.contender.name]
    for reading in readings:
        middle = spread_of(measures(reading, runs))
        is_told = reading in whole or not runs.contender.helpers
        if middle is None or not is_told:
            cells.append("")
        else:
            cells.append(show_spread(middle) if reading is RATE else show(middle.median))
    return tuple(cells)


def counts_jobs(contender: Contender, runs: Runs) -> bool:
    """Whether a contender's rate means anything."""
    return contender.values is None and all(sample.jobs for sample in runs.timed)


def contender_rows(runs: Mapping[str, Runs]) -> list[tuple[str, ...]]:
    """Return the cells of every contender that did jobs as fast as it could."""
    return [contender_cells(each) for each in runs.values() if counts_jobs(each.contender, each)]


def tables(lines: Sequence[Line], runs: Mapping[str, Runs]) -> list[Table]:
    """Return the tables for a terminal."""
    figures = Table(*FIGURE_COLUMNS, box=box.SIMPLE, title="Figures: median (lowest - highest)")
    for line in lines:
        style = {True: "green", False: "red", None: ""}[line.is_met]
        figures.add_row(*line.cells(), style=style)
    contenders = Table(*CONTENDER_COLUMNS, box=box.SIMPLE, title="What a job costs")
    for cells in contender_rows(runs):
        contenders.add_row(*cells)
    for table in (figures, contenders):
        for column in table.columns[1:]:
            column.justify = "right"
    return [figures, contenders]


def markdown(lines: Sequence[Line], runs: Mapping[str, Runs], about: Mapping[str, object]) -> str:
    """Return the same tables for a page, with the circumstances below."""
    figures = _markdown_table(FIGURE_COLUMNS, [line.cells() for line in lines])
    contenders = _markdown_table(CONTENDER_COLUMNS, contender_rows(runs))
    return f"{figures}\n\n{contenders}\n\n{_sentence(about)}\n"


def put_into(page: str, section: str, text: str) -> str:
    """Return a page whose section holds the text.

    Raises:
        ValueError: The page has no such section.
    """
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->"
    before, opened, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        message = f"the page has no section {section}"
        raise ValueError(message)
    return f"{before}{begin}{text}{end}{after}"


def _sentence(about: Mapping[str, object]) -> str:
    return (
        f"PostgreSQL {about['server_version']}, Python {about['python']}, psycopg"
        f" {about['psycopg']}, {about['cores']} cores for both, {about['measured_on']};"
        f" {about['repeats']} runs of {about['seconds']:g} s or more."
    )


def as_json(
    lines: Sequence[Line], runs: Mapping[str, Runs], about: Mapping[str, object]
) -> dict[str, object]:
    """Return everything that was measured, and under which circumstances."""
    return {
        "about": dict(about),
        "figures": {
            line.figure.name: {
                "cells": dict(zip(FIGURE_COLUMNS, line.cells(), strict=True)),
                "is_met": line.is_met,
            }
            for line in lines
        },
        "contenders": {
            name: {
                "timed": [sample.as_json() for sample in each.timed],
                "counted": None if each.counted is None else each.counted.as_json(),
            }
            for name, each in runs.items()
        },
    }


def show(number: float) -> str:
    """Return a number with three digits that count, or all before the point."""
    if number == 0:
        return "0"
    for bound, digits in ((100, 0), (10, 1), (1, 2), (0.1, 3)):
        if abs(number) >= bound:
            return f"{number:,.{digits}f}"
    return f"{number:.4f}"


def show_spread(spread: Spread | None) -> str:
    """Return the median, and the ends if there are any."""
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return show(spread.median)
    return f"{show(spread.median)} ({show(spread.low)} - {show(spread.high)})"


def _show_target(figure: Figure) -> str:
    target = figure.target
    if target is None:
        return ""
    sign = "<=" if target.is_upper else ">="
    return f"{sign} {target.bound:,g} {'x' if target.is_ratio else figure.reading.unit}"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [_markdown_row(columns), "|---" + "|--:" * (len(columns) - 1) + "|"]
    return "\n".join([*head, *map(_markdown_row, rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
