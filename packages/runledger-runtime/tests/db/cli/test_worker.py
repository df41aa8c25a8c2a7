import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from runledger_core import JobEnqueue, JobStatus, Scope
from runledger_postgres.definitions import get_job_definition, update_job_definition
from runledger_postgres.jobs import enqueue_job, get_job
from runledger_postgres.schedules import list_job_schedules, set_job_schedule_active
from runledger_postgres.workers import list_workers

APP = """
import time
from runledger_runtime.catalog import CatalogJobScheduleSpec, JobCatalog

catalog = JobCatalog()
empty = JobCatalog()
scheduled = JobCatalog()

@catalog.job("quick", max_attempts=4)
def quick(context, payload):
    print("quick ran", flush=True)

@catalog.job("slow")
def slow(context, payload):
    print("slow began", flush=True)
    time.sleep(payload["seconds"])

scheduled.job("quick", quick)
scheduled.schedule(CatalogJobScheduleSpec("nightly", "quick", cron_expr="@yearly"))
"""
COMMAND = "from runledger_runtime.cli import main; main()"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_worker(runledger_database, tmp_path) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(APP)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", COMMAND, "worker", "--app", "shop:catalog", *arguments]
        process = subprocess.Popen(  # our own interpreter and text
            command,
            cwd=tmp_path,
            env=os.environ | {"DATABASE_URL": runledger_database.dsn} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def wait_until_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    assert any("end it with Ctrl-C or SIGTERM" in line for line in process.stderr)


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{text}\n"


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, stderr = process.communicate(timeout=20)
    return process.returncode, stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_an_idle_worker_with_success(start_worker, runledger_pool, number):
    process = start_worker()
    wait_until_ready(process)
    job = enqueue_job(runledger_pool, JobEnqueue("quick", {}))
    wait_for_line(process, "quick ran")

    process.send_signal(number)
    code, stderr = end(process)

    assert code == 0
    assert stderr.endswith("worker stopped\n")
    assert "Traceback" not in stderr
    stored = get_job(runledger_pool, job.id, scope=Scope.ADMIN)
    assert stored is not None
    assert stored.status is JobStatus.SUCCEEDED


def test_worker_of_an_empty_catalog_is_told_to_register_handlers(start_worker):
    process = start_worker("--app", "shop:empty")
    assert process.stderr is not None
    first = process.stderr.readline()
    wait_until_ready(process)

    process.terminate()

    assert end(process)[0] == 0
    assert first.startswith(
        "warning: the catalog shop:empty is empty, so no job will run; register"
    )


@pytest.mark.parametrize("attempt", range(3))
def test_signal_that_comes_while_the_loops_start_is_not_lost(start_worker, attempt):
    process = start_worker()
    wait_until_ready(process)

    process.terminate()

    assert end(process)[0] == 0


def test_running_handler_may_end_after_the_signal(start_worker, runledger_pool):
    process = start_worker()
    wait_until_ready(process)
    job = enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 0.5}))
    wait_for_line(process, "slow began")

    process.terminate()
    code, _ = end(process)

    assert code == 0
    stored = get_job(runledger_pool, job.id, scope=Scope.ADMIN)
    assert stored is not None
    assert stored.status is JobStatus.SUCCEEDED


def test_handler_that_outlasts_the_timeout_does_not_hold_the_process(start_worker, runledger_pool):
    process = start_worker("--shutdown-timeout", "0.5")
    wait_until_ready(process)
    enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 600}))
    wait_for_line(process, "slow began")

    began_at = time.monotonic()
    process.terminate()
    code, stderr = end(process)

    assert code == 70
    assert time.monotonic() - began_at < 2.5
    assert "error: supervisor.shutdown_timeout: " in stderr
    assert "Traceback" not in stderr


def test_second_signal_ends_the_process_at_once(start_worker, runledger_pool):
    process = start_worker("--shutdown-timeout", "600", JOBS_LEASE_TTL_SECONDS="10")
    wait_until_ready(process)
    enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 600}))
    wait_for_line(process, "slow began")
    process.terminate()
    # The first one has been taken when the next beat, each third of the lease, says so.
    wait_until_draining(runledger_pool)

    process.send_signal(signal.SIGINT)
    code, stderr = end(process)

    assert code == 70
    assert "error: supervisor.shutdown_aborted: " in stderr


def wait_until_draining(pool) -> None:
    deadline = time.monotonic() + 15
    with pool.connection() as connection:
        connection.autocommit = True
        while [worker.state for worker in list_workers(connection)] != ["DRAINING"]:
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.02)")


def test_worker_writes_definitions_and_takes_its_concurrency(
    start_worker, runledger_pool, eventually
):
    process = start_worker("--concurrency", "3")
    wait_until_ready(process)
    enqueue_job(runledger_pool, JobEnqueue("quick", {}))
    wait_for_line(process, "quick ran")

    definition = get_job_definition(runledger_pool, "quick")

    assert definition is not None
    assert definition.max_attempts == 4
    # Written by the first beat, which the first job may overtake.
    eventually(lambda: [worker.concurrency for worker in list_workers(runledger_pool)] == [3])


def test_worker_writes_schedules(start_worker, runledger_pool):
    process = start_worker("--app", "shop:scheduled")
    wait_until_ready(process)

    process.terminate()

    assert end(process)[0] == 0
    (schedule,) = list_job_schedules(runledger_pool)
    assert (schedule.name, schedule.is_active) == ("nightly", True)


def test_worker_starts_though_an_operator_disabled_a_scheduled_type(start_worker, runledger_pool):
    first = start_worker("--app", "shop:scheduled")
    wait_until_ready(first)
    first.terminate()
    assert end(first)[0] == 0
    assert set_job_schedule_active(runledger_pool, "nightly", is_active=False)
    update_job_definition(runledger_pool, "quick", is_enabled=False)

    process = start_worker("--app", "shop:scheduled")
    assert process.stderr is not None
    warning = process.stderr.readline()
    wait_until_ready(process)
    process.terminate()

    assert end(process)[0] == 0
    assert warning.startswith("warning: the schedule nightly is paused, since its job type quick")
    (schedule,) = list_job_schedules(runledger_pool)
    assert not schedule.is_active


def test_worker_without_sync_leaves_definitions_alone(start_worker, runledger_pool):
    wait_until_ready(start_worker("--no-sync"))

    assert get_job_definition(runledger_pool, "quick") is None


@pytest.mark.parametrize(
    ("arguments", "variables", "code"),
    [
        (["--app", "nothing_here:catalog"], {}, "cli.app_not_found"),
        ([], {"JOBS_POLL_INTERVAL_MS": "often"}, "config.unparsable_variable"),
        (["--database-url", "host=127.0.0.1 port=1"], {}, "db.unavailable"),
    ],
)
def test_worker_that_cannot_start_fails_by_code(start_worker, arguments, variables, code):
    exit_code, stderr = end(start_worker(*arguments, **variables))

    assert exit_code == 1
    assert f"error: {code}: " in stderr
    assert "Traceback" not in stderr


def test_worker_refuses_a_database_without_the_schema(start_worker, runledger_unmigrated_database):
    exit_code, stderr = end(start_worker("--database-url", runledger_unmigrated_database.dsn))

    assert exit_code == 1
    assert "error: schema.missing_migration_history: " in stderr
    assert "runledger migrate" in stderr
