"""The threads of a worker do not hold the process of a program that is through."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

PROGRAM = """
import sys, threading
from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, upsert_job_definition
from runledger_runtime import JobRegistry, JobsConfig, Supervisor, SupervisorError

started = threading.Event()

def never_ends(context, payload):
    started.set()
    threading.Event().wait()

pool = connect_pool(sys.argv[1])
upsert_job_definition(pool, JobDefinitionSpec("jobs.stuck"))
registry = JobRegistry()
registry.register_function("jobs.stuck", never_ends)
supervisor = Supervisor.builder(pool, JobsConfig()).with_registry(registry).build()
enqueue_job(pool, JobEnqueue("jobs.stuck", {}))
started.wait()
try:
    supervisor.shutdown_with_timeout(0.1)
except SupervisorError as error:
    print(error.code, flush=True)
pool.close()
"""
PATIENCE_SECONDS = 20


def test_handler_that_never_ends_does_not_hold_a_program_that_is_through(
    runledger_database: Any,
) -> None:
    command = [sys.executable, "-c", PROGRAM, runledger_database.dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
        code = process.poll()
        process.kill()

    assert said == "supervisor.shutdown_timeout\n"
    assert code == 0


WHOLE_LIFE = """
import sys, threading
from runledger_core import JobEnqueue
from runledger_postgres import connect_pool, enqueue_job
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

catalog, ran = JobCatalog(), threading.Event()
catalog.job("jobs.one", lambda context, payload: ran.set())
with connect_pool(sys.argv[1]) as pool:
    catalog.sync_definitions(pool)
    enqueue_job(pool, JobEnqueue("jobs.one", {}))
    with Supervisor.builder(pool, JobsConfig()).with_catalog(catalog).build() as supervisor:
        ran.wait(30)
        {end}
"""


@pytest.mark.parametrize("options", [[], ["-X", "dev", "-W", "error"]])
@pytest.mark.parametrize(
    ("end", "code", "stderr"), [("pass", 0, ""), ("raise SystemExit('enough')", 1, "enough\n")]
)
def test_program_that_runs_a_supervisor_and_ends_is_silent(
    runledger_database: Any, options: list[str], end: str, code: int, stderr: str
) -> None:
    program = WHOLE_LIFE.replace("{end}", end)

    done = subprocess.run(  # our own interpreter and text
        [sys.executable, *options, "-c", program, runledger_database.dsn],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (code, stderr)
