"""A process that enqueues and ends without closing anything: no noise, no wait."""

import os
import subprocess
import sys
import time

import pytest

from runledger_core import JobDefinitionSpec
from runledger_postgres import upsert_job_definition

ENQUEUE = """
from runledger_core import JobEnqueue
from runledger_postgres import connect_pool, enqueue_job

pool = connect_pool()
enqueue_job(pool, JobEnqueue("exit.test", {"n": 1}))
"""


def run(program: str, dsn: str, *options: str) -> tuple[int, str, float]:
    began_at = time.monotonic()
    done = subprocess.run(  # our own interpreter and text
        [sys.executable, *options, "-c", program],
        env=os.environ | {"DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, time.monotonic() - began_at


@pytest.fixture
def dsn(runledger_database, runledger_pool) -> str:
    upsert_job_definition(runledger_pool, JobDefinitionSpec("exit.test"))
    return runledger_database.dsn


@pytest.mark.core
@pytest.mark.parametrize("options", [[], ["-X", "dev", "-W", "error"]])
def test_script_that_enqueues_and_ends_is_silent_and_quick(dsn, options):
    code, stderr, seconds = run(ENQUEUE, dsn, *options)

    assert (code, stderr) == (0, "")
    assert seconds < 10


def test_end_of_the_script_takes_no_time(dsn):
    # From the last statement on; the start of an interpreter is not ours.
    program = f"import time, atexit\n{ENQUEUE}\nprint(time.monotonic(), flush=True)\n"

    done = subprocess.run(  # as above
        [sys.executable, "-c", program],
        env=os.environ | {"DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert time.monotonic() - float(done.stdout) < 2


def test_script_that_ends_by_an_exception_shows_only_that(dsn):
    code, stderr, _ = run(f"{ENQUEUE}\nraise SystemExit('enough')", dsn, "-X", "dev", "-W", "error")

    assert (code, stderr) == (1, "enough\n")


def test_script_that_ends_by_an_error_shows_its_traceback_and_nothing_else(dsn):
    code, stderr, _ = run(f"{ENQUEUE}\n1 / 0", dsn, "-X", "dev", "-W", "error")

    assert code == 1
    assert stderr.startswith("Traceback (most recent call last):\n")
    assert stderr.count("Traceback") == 1
    assert stderr.endswith("ZeroDivisionError: division by zero\n")
