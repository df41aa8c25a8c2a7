"""Nothing grows: not with the jobs of one Supervisor, not with starts and stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runledger_test_support.databases import temporary_database

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

Measures = dict[str, list[dict[str, float]]]

# Caches of Python and of psycopg fill for a while; a leak of a job's own would be thousands.
OBJECTS_SPARE = 500
MEGABYTES_SPARE = 6.0


@pytest.fixture(scope="module")
def measures(runledger_server: Any, runledger_template: str) -> Measures:
    """What one process measured of itself: of its own, so that no test adds to it."""
    is_full = os.environ.get("RUNLEDGER_TEST_SIZE", "ci") == "full"
    jobs, cycles = (100_000, 20) if is_full else (3_000, 5)
    with temporary_database(runledger_server, prefix="leaks", template=runledger_template) as one:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "soak.endurance",
                json.dumps({"dsn": one.dsn, "jobs": jobs, "cycles": cycles}),
            ],
            cwd=Path(__file__).parent,
            # One arena: how many threads ran at once shall not decide what memory is given back.
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(json.dumps(found, indent=1))  # noqa: T201  # pytest shows it with a failure
    return found


@pytest.mark.parametrize("when", ["working", "stopped"])
@pytest.mark.parametrize("what", ["threads", "connections", "descriptors"])
def test_counts_stay_what_they_were(measures: Measures, when: str, what: str) -> None:
    assert growth(measures[when], what) <= 0, measures


@pytest.mark.parametrize("when", ["working", "stopped"])
def test_objects_and_memory_stay_what_they_were(measures: Measures, when: str) -> None:
    assert growth(measures[when], "objects") < OBJECTS_SPARE, measures
    assert growth(measures[when], "megabytes") < MEGABYTES_SPARE, measures


def growth(measures: list[dict[str, float]], what: str) -> float:
    """Return by how much the later half is above the earlier one, at their highest."""
    middle = len(measures) // 2
    earlier, later = measures[:middle], measures[middle:]
    return max(one[what] for one in later) - max(one[what] for one in earlier)
