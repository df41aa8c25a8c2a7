"""Measure Runledger against hand-written SQL on a PostgreSQL server of its own.

Contenders take turns, since a machine drifts: only ratios within one run count. Progress goes to
standard error, tables to standard output; docs/performance.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.catalogue import FIGURES
from benchmarks.costs import COSTS
from benchmarks.model import Figure
from benchmarks.report import as_json, lines_of, markdown, put_into, tables
from benchmarks.runner import Pace, Runner
from benchmarks.server import benchmark_server

_FULL: Final = Pace(seconds=5.0, repeats=5, settle=1.0)
_QUICK: Final = Pace(seconds=0.5, repeats=1, settle=0.3)
_QUICK_SCALE: Final = 0.1


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="measure against hand-written SQL")
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures or groups; default: all")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--quick", action="store_true", help="short runs: a look, no figures")
    parser.add_argument("--costs", action="store_true", help="what each index and row write costs")
    parser.add_argument("--repeats", type=int, help="runs of each contender")
    parser.add_argument("--bin", metavar="DIR", help="folder with postgres; default: the wheel's")
    parser.add_argument("--directory", metavar="DIR", help="where the server's folder is made")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything measured")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the tables into a page")
    return parser.parse_args(arguments)


def chosen(figures: Sequence[Figure], names: Sequence[str]) -> list[Figure]:
    """Return the figures of these names and groups; all if there are none."""
    known = {figure.name for figure in figures} | {figure.group for figure in figures}
    if unknown := sorted(set(names) - known):
        message = f"no figure or group is called {', '.join(unknown)}; see --list"
        raise SystemExit(message)
    return [figure for figure in figures if not names or {figure.name, figure.group} & set(names)]


def circumstances(pace: Pace, server: dict[str, str]) -> dict[str, object]:
    """Return what the figures depend on."""
    return {
        "python": platform.python_version(),
        "psycopg": version("psycopg"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "seconds": pace.seconds,
        "repeats": pace.repeats,
        "measured_on": time.strftime("%Y-%m-%d"),
        "server_version": server["server_version"],
        "server": server,
    }


def tell(sentence: str) -> None:
    """Tell of progress."""
    print(time.strftime("%H:%M:%S"), sentence, file=sys.stderr, flush=True)


def main() -> int:
    """Run what was asked for and print it."""
    arguments = parse()
    figures = chosen(COSTS if arguments.costs else FIGURES, arguments.names)
    if arguments.list:
        for figure in figures:
            print(f"{figure.group:14} {figure.name:18} {figure.title}")
        return 0
    pace = _QUICK if arguments.quick else _FULL
    if arguments.repeats is not None:
        pace = Pace(pace.seconds, max(1, arguments.repeats), pace.settle)
    scale = _QUICK_SCALE if arguments.quick else 1.0
    tell("starting PostgreSQL")
    with benchmark_server(bin_dir=arguments.bin, parent=arguments.directory, scale=scale) as server:
        about = circumstances(pace, server.description())
        runs = Runner(server, pace, tell).run(figures)
    lines = lines_of(figures, runs)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in tables(lines, runs):
        console.print(table)
    if arguments.quick:
        tell("a quick run is a look: its figures mean little")
    if arguments.page:
        section = "costs" if arguments.costs else "figures"
        page, text = arguments.page.read_text("utf-8"), markdown(lines, runs, about)
        arguments.page.write_text(put_into(page, section, text), "utf-8")
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(lines, runs, about), indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
