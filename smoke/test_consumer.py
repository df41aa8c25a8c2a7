"""What a stranger does with the wheels; scripts/smoke.py runs this where only they are found."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from runledger_postgres.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    with EmbeddedServer.temporary() as server:
        yield server.dsn()


@pytest.fixture
def run(database_url, tmp_path):
    environment = os.environ | {"DATABASE_URL": database_url}

    def run_command(*command: str) -> str:
        done = subprocess.run(
            [*command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    return run_command


def installed(command: str) -> str:
    return str(Path(sys.executable).with_name(command))


def test_driver_brings_its_own_libpq():
    assert psycopg.pq.__impl__ == "binary"


def test_service_ends_one_job_well_and_one_as_a_dead_letter(run):
    report = json.loads(run(sys.executable, "-m", "smoke_consumer"))

    assert report == {"good": "SUCCEEDED", "bad": "DEAD_LETTERED"}


def test_runledger_tells_its_version(run):
    assert "0.4.0" in run(installed("runledger"), "--version")


def test_schema_of_the_service_is_current(run):
    run(installed("runledger"), "migrate", "--check")


def test_tui_prints_a_snapshot_for_scripts(run):
    assert json.loads(run(installed("runledger-tui"), "--once", "--json"))


def test_demo_needs_no_more_than_its_extra(run):
    assert "it adds up" in run(installed("runledger"), "demo")


def test_plugin_hands_out_a_migrated_database(runledger_pool):
    with runledger_pool.connection() as connection:
        row = connection.execute("SELECT count(*) FROM runledger.job_queue").fetchone()

    assert row == (0,)
