import os
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from runledger_core import JobDefinitionSpec, JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job, upsert_job_definition
from runledger_postgres.schedules import get_job_schedule_by_name

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_worker_example_runs_jobs_until_it_is_terminated(runledger_database, runledger_pool):
    # It writes its definitions itself; the job has to be there before.
    upsert_job_definition(runledger_pool, JobDefinitionSpec("example.confirm_order"))
    request = JobEnqueue("example.confirm_order", {"order_id": 17, "to": "ops@example.com"})
    job = enqueue_job(runledger_pool, request)
    process = subprocess.Popen(  # our own interpreter and file
        [sys.executable, "-W", "error", str(EXAMPLES / "worker.py")],
        env=os.environ | {"DATABASE_URL": runledger_database.dsn},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("confirmed order 17, attempt 1" in line for line in process.stderr)

        process.terminate()
        _, stderr = process.communicate(timeout=20)
    finally:
        with suppress(ProcessLookupError):
            process.kill()

    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    stored = get_job(runledger_pool, job.id, scope=Scope.ADMIN)
    assert stored is not None
    assert stored.status is JobStatus.SUCCEEDED
    assert stored.output == {"confirmed": 17}


def test_schedule_example_fires_again_and_again(runledger_database, runledger_pool):
    process = subprocess.Popen(  # our own interpreter and file
        [sys.executable, "-W", "error", str(EXAMPLES / "schedule_job.py")],
        env=os.environ | {"DATABASE_URL": runledger_database.dsn},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        heartbeats = (line for line in process.stderr if "heartbeat to ops@example.com" in line)
        # The first fire is at once, the second is named by the expression.
        fires = [next(heartbeats).split()[-1] for _ in range(2)]

        process.terminate()
        _, stderr = process.communicate(timeout=20)
    finally:
        with suppress(ProcessLookupError):
            process.kill()

    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert datetime.fromisoformat(fires[1]).second % 5 == 0
    schedule = get_job_schedule_by_name(runledger_pool, "example.heartbeat")
    assert schedule is not None
    assert schedule.is_active


def run_example(name: str, dsn: str) -> list[str]:
    done = subprocess.run(  # our own interpreter and file
        [sys.executable, "-X", "dev", "-W", "error", str(EXAMPLES / name)],
        env=os.environ | {"DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_workflow_example_fans_out_and_in(runledger_unmigrated_database):
    (line,) = run_example("workflow_dag.py", runledger_unmigrated_database.dsn)

    assert line.endswith(": {'score': 2, 'classify': 'person', 'profile_id': 'p_123'}")


def test_gate_example_goes_on_once_it_is_approved(runledger_unmigrated_database):
    waits, first, again, result = run_example("external_gate.py", runledger_unmigrated_database.dsn)

    assert waits.endswith("waits for its approval")
    assert first == again == "approval SUCCEEDED"
    assert result == "result: {'draft': 'all about gates', 'approval': {'by': 'ops'}}"


def test_append_example_runs_a_step_for_each_page(runledger_unmigrated_database):
    found, merged = run_example("append_workflow_steps.py", runledger_unmigrated_database.dsn)

    assert found.endswith(": 3 pages")
    assert merged == "merged: ['text of about', 'text of blog', 'text of home']"
