"""Waits beside forks, at the end of a process, and behind a pooler."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import Scope
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import connect_pool
from runledger_postgres.workflows import _waiting, handles
from runledger_postgres.workflows._wait_options import WorkflowRunWaitOptions
from runledger_test_support import DatabaseServer, Pooler
from runledger_test_support.pooler import find_pgbouncer, provide_pooler

from .conftest import JOB_TYPE, Workflows

WAIT_SECONDS = 60
MARKS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND classid = 0 AND objid = 1380743026
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

COMMON = f"""
import os, sys, threading
from runledger_core import JobCompletion, ValidationError
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import claim_jobs, complete_job_success, connect_pool
from runledger_postgres.workflows import _waiting
from runledger_postgres.workflows._wait_options import WorkflowRunWaitOptions
from runledger_postgres.workflows.handles import enqueue_workflow_run_handle

REQUEST = WorkflowDagBuilder("t", {{}}).job("a", "{JOB_TYPE}", {{}}).result_step("a").build()
PATIENT = WorkflowRunWaitOptions(timeout=50, poll_interval=0.05)

def end(pool):
    for job in claim_jobs(pool, worker_id="worker", limit=10, lease_ttl_seconds=60):
        complete_job_success(pool, job.lease, JobCompletion(os.getpid()))
"""

FORK = f"""{COMMON}
pool = connect_pool(sys.argv[1])
handle = enqueue_workflow_run_handle(pool, REQUEST)
results = []
wait = threading.Thread(target=lambda: results.append(handle.get_result(PATIENT)))
wait.start()
while pool not in _waiting._watches or _waiting._watches[pool]._listener is None:
    wait.join(0.01)
# As if another thread began to wait just now.
lock, is_held, has_forked = _waiting._lock, threading.Event(), threading.Event()

def hold():
    with lock:
        is_held.set()
        has_forked.wait(50)

threading.Thread(target=hold).start()
is_held.wait(50)
child = os.fork()
has_forked.set()
if child == 0:
    try:
        handle.get_result(PATIENT)
    except ValidationError as refused:
        if refused.code != "db.forked":
            os._exit(2)
    else:
        os._exit(3)
    own = connect_pool(sys.argv[1])
    handle = enqueue_workflow_run_handle(own, REQUEST)
    end(own)
    os._exit(0 if handle.get_result(PATIENT).result == os.getpid() else 4)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
wait.join(50)
sys.exit(code or (0 if [found.result for found in results] == [child] else 5))
"""

EXIT = f"""{COMMON}
pool = connect_pool(sys.argv[1])
unended = enqueue_workflow_run_handle(pool, REQUEST)
end(pool)
assert unended.get_result(PATIENT).result == os.getpid()
unended = enqueue_workflow_run_handle(pool, REQUEST)
threading.Thread(target=unended.get_result, args=[PATIENT], daemon=True).start()
while _waiting._watches[pool]._listener is None:
    threading.Event().wait(0.01)
"""

INTERRUPT = f"""{COMMON}
import signal

pool = connect_pool(sys.argv[1])
handle = enqueue_workflow_run_handle(pool, REQUEST)

def interrupt():
    while pool not in _waiting._watches or _waiting._watches[pool]._listener is None:
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    handle.get_result(WorkflowRunWaitOptions(timeout=None))
except KeyboardInterrupt:
    sys.exit(len(_waiting._watches[pool]._waits))
"""


def run(program: str, dsn: str, *options: str) -> tuple[int, str]:
    done = subprocess.run(  # our own interpreter and text
        [sys.executable, *options, "-c", program, dsn],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS / 2,
        check=False,
    )
    return done.returncode, done.stderr


def test_child_of_a_waiting_process_waits_on_a_pool_of_its_own(workflows: Workflows):
    # Later Pythons warn of a fork beside threads, which is what is tried here.
    assert run(FORK, workflows.database.direct_dsn, "-W", "ignore") == (0, "")


@pytest.mark.parametrize("options", [[], ["-X", "dev", "-W", "error"]])
def test_process_that_still_waits_ends_silently_and_soon(workflows: Workflows, options: list[str]):
    began_at = time.monotonic()

    assert run(EXIT, workflows.database.direct_dsn, *options) == (0, "")
    assert time.monotonic() - began_at < 20


def test_interruption_ends_a_wait_without_an_end(workflows: Workflows):
    assert run(INTERRUPT, workflows.database.direct_dsn) == (0, "")


@pytest.fixture
def pooler(runledger_server: DatabaseServer, runledger_pooler: Pooler | None) -> Iterator[Pooler]:
    """The pooler of the session, or one for this test."""
    if runledger_pooler is not None:
        yield runledger_pooler
        return
    with provide_pooler(runledger_server) as own:
        yield own


@pytest.fixture
def pooled(pooler: Pooler, workflows: Workflows) -> Iterator[ConnectionPool[Any]]:
    """A pool behind the pooler, which keeps no prepared statements."""
    dsn = pooler.dsn(workflows.database.direct_dsn)
    with connect_pool(dsn, prepare_threshold=None) as pool:
        yield pool


@pytest.mark.pgbouncer
@pytest.mark.skipif(find_pgbouncer() is None, reason="pgbouncer is not installed")
def test_wait_behind_a_pooler_polls_and_leaves_nothing_on_its_sessions(
    workflows: Workflows, pooled: ConnectionPool[Any]
):
    request = WorkflowDagBuilder("t", {}).job("a", JOB_TYPE, {}).result_step("a").build()
    handle = handles.workflow_run_handle(pooled, Scope.GLOBAL, workflows.enqueue(request))
    results: list[Any] = []
    options = WorkflowRunWaitOptions(timeout=WAIT_SECONDS, poll_interval=0.05)
    wait = threading.Thread(target=lambda: results.append(handle.get_result(options).result))
    wait.start()
    while (watch := _waiting._watches.get(pooled)) is None or not (
        watch._listener and watch._listener.ident
    ):
        wait.join(0.01)
    # It gives up: there is nobody to hear.
    watch._listener.join(WAIT_SECONDS / 3)

    assert not watch._listener.is_alive()
    assert workflows.value(MARKS) == 0
    workflows.succeed(workflows.claim()["a"], "done")
    wait.join(WAIT_SECONDS)
    assert results == ["done"]
