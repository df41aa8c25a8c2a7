"""Break each guard, one at a time, and see the tests go red.

A file of tests/mutants is one plausible mistake: a patch, under lines that say what it breaks and
which tests must notice. Each is applied to a copy of the tree, never to the tree itself, and only
those tests run. Red is a test that fails by an assertion; what cannot be imported, collected or set
up proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants_report import PROOFS, REPORT

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("packages", "migrations", "pyproject.toml")
# No test needs the plugin of hypothesis, and to import it takes longer than most of them.
PLUGINS = ("mutants_report", "no:cacheprovider", "no:hypothesispytest")
OPTIONS = ("-q", "--timeout=60", *(f"-p{plugin}" for plugin in PLUGINS))
RUN_SECONDS = 240
SHOWN_LINES = 25


@dataclass(frozen=True)
class Mutant:
    """One mistake, the tests that must notice it, and errors that count beside assertions."""

    name: str
    breaks: str
    red: list[str]
    by: list[str]
    patch: str


def read_mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """Return the mutants of these names, all if none is given."""
    paths = sorted(ROOT.glob("tests/mutants/*.patch"))
    if unknown := sorted(set(names) - {path.stem for path in paths}):
        raise SystemExit(f"no such mutant: {', '.join(unknown)}")
    return [read_mutant(path) for path in paths if not names or path.stem in names]


def read_mutant(path: Path) -> Mutant:
    """Read a patch and the lines above it: `Breaks:`, `Red:` and, if need be, `By:`."""
    patch = path.read_text("utf-8")
    lines = [line.split(": ", 1) for line in patch.partition("\n--- ")[0].splitlines()]
    said = {key: [line[-1] for line in lines if line[0] == key] for key in ("Breaks", "Red", "By")}
    if len(said["Breaks"]) != 1 or not said["Red"] or sum(map(len, said.values())) != len(lines):
        raise SystemExit(f"{path.name}: the head is one line Breaks:, lines Red: and lines By:")
    return Mutant(path.stem, said["Breaks"][0], said["Red"], said["By"], patch)


def apply_patch(mutant: Mutant, folder: Path, *options: str) -> str:
    """Apply the patch inside of a folder; return what is wrong, empty if nothing."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    applied = subprocess.run(
        [shutil.which("git") or "git", "apply", *options, "-"],
        cwd=folder,
        # In a repository around the folder git would skip what is not that repository's.
        env=outside | {"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        input=mutant.patch.encode(),
        capture_output=True,
        check=False,
    )
    return applied.stderr.decode().strip()


def run_mutant(mutant: Mutant) -> tuple[str, str]:
    """Return the verdict, empty if every named test went red, and what pytest printed."""
    with tempfile.TemporaryDirectory(prefix="runledger-mutant-") as scratch:
        tree, report = Path(scratch, "tree"), Path(scratch, "report")
        tree.mkdir()
        report.touch()
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
            elif (ROOT / name).is_file():
                shutil.copy(ROOT / name, tree)
        if problem := apply_patch(mutant, tree):
            return "does not apply", problem
        # Before the installed packages, which are those of the tree itself.
        folders = [*sorted(tree.glob("packages/*/src")), Path(__file__).parent]
        variables = {"PYTHONPATH": os.pathsep.join(map(str, folders)), REPORT: str(report)}
        variables |= {"RUNLEDGER_TEST_SIZE": "ci", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *OPTIONS, *mutant.red],
                cwd=tree,
                env=os.environ | variables,
                capture_output=True,
                timeout=RUN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done in {RUN_SECONDS} s", ""
        records = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    return judge(mutant, done.returncode, records), done.stdout.decode(errors="replace")


def judge(mutant: Mutant, status: int, records: Sequence[dict[str, Any]]) -> str:
    """Return why it is not proven that the tests notice the mutant; empty if it is."""
    for record in records:
        if record["when"] not in {"call", "teardown"}:
            return f"{record['when']} failed, {record['kinds'][0]}: {record['test']}"
    if status not in {0, 1}:
        return f"pytest ended with status {status}"
    for test in mutant.red:
        failures = [r["kinds"] for r in records if test in {r["test"], r["test"].split("[")[0]}]
        if not failures:
            return f"green: {test}"
        if not any(PROOFS.union(mutant.by).intersection(f) for f in failures):
            return f"no assertion, but {failures[0][0]}: {test}"
    return ""


def main() -> int:
    """Run the mutants, print a line for each, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all by default")
    parser.add_argument("--parallel", type=int, default=2, help="how many run at once")
    options = parser.parse_args()
    mutants, begun, survivors = read_mutants(options.names), time.monotonic(), 0
    with ThreadPoolExecutor(options.parallel) as threads:
        running = {threads.submit(run_mutant, mutant): mutant for mutant in mutants}
        for number, done in enumerate(as_completed(running), 1):
            mutant, (verdict, output) = running[done], done.result()
            print(f"{number:3}/{len(mutants)} {time.monotonic() - begun:4.0f} s", end="  ")
            print(f"{mutant.name:34}  {verdict or 'red'}", flush=True)
            if verdict:
                survivors += 1
                print(*output.splitlines()[-SHOWN_LINES:], sep="\n", flush=True)
    print(f"{len(mutants) - survivors} red, {survivors} not, in {time.monotonic() - begun:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
