"""A process ends soon after its deadline, whatever its handlers do."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

DEADLINE_SECONDS = 1.0
# Two seconds are promised; a busy machine takes a while to end an interpreter.
MOST_SECONDS = DEADLINE_SECONDS + 2.0 + 5.0

PROGRAM = """
import asyncio, sys, threading, time
from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, upsert_job_definition
from runledger_runtime import JobRegistry, JobsConfig, Supervisor, SupervisorError

started = threading.Event()

def thread_never_returns(context, payload):
    started.set()
    threading.Event().wait()

async def coroutine_swallows_cancellation(context, payload):
    started.set()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def coroutine_blocks_the_loop(context, payload):
    started.set()
    time.sleep(3600)

async def coroutine_waits_for_a_thread(context, payload):
    started.set()
    await asyncio.to_thread(time.sleep, 3600)

pool = connect_pool(sys.argv[1])
upsert_job_definition(pool, JobDefinitionSpec("jobs.stuck"))
registry = JobRegistry()
registry.register_function("jobs.stuck", globals()[sys.argv[2]])
config = JobsConfig(handler_grace_seconds=int(sys.argv[3]))
supervisor = Supervisor.builder(pool, config).with_registry(registry).build()
enqueue_job(pool, JobEnqueue("jobs.stuck", {}))
started.wait()
print("started", flush=True)
sys.stdin.readline()
try:
    supervisor.shutdown_with_timeout(float(sys.argv[4]))
except SupervisorError as error:
    print(error.code, flush=True)
pool.close()
"""


@pytest.mark.parametrize("grace_seconds", [0, 5])
@pytest.mark.parametrize(
    "handler",
    [
        "thread_never_returns",
        "coroutine_swallows_cancellation",
        "coroutine_blocks_the_loop",
        "coroutine_waits_for_a_thread",
    ],
)
def test_process_ends_within_two_seconds_of_the_deadline(
    runledger_database: Any, handler: str, grace_seconds: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, runledger_database.dsn, handler]
    command += [str(grace_seconds), str(DEADLINE_SECONDS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        began = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        try:
            said, complaints = process.communicate(timeout=30)
        finally:
            process.kill()

    assert time.monotonic() - began < MOST_SECONDS
    assert process.returncode == 0
    assert said == "supervisor.shutdown_timeout\n"
    assert "Traceback" not in complaints
