import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from runledger_core import JobDefinitionSpec, JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job, upsert_job_definition

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_worker_example_runs_jobs_until_it_is_terminated(runledger_database, runledger_pool):
    # It writes its definitions itself; the job has to be there before.
    upsert_job_definition(runledger_pool, JobDefinitionSpec("example.confirm_order"))
    request = JobEnqueue("example.confirm_order", {"order_id": 17, "to": "ana@example.com"})
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
