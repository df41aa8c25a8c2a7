import os
import subprocess
import sys
from pathlib import Path

from runledger_test_support import assert_enqueued

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_enqueue_example_makes_one_job_of_two_enqueues(
    runledger_unmigrated_database, runledger_server
):
    dsn = runledger_unmigrated_database.dsn

    first, second = run_example("enqueue_job.py", dsn)
    run_example("enqueue_job.py", dsn)

    assert first.endswith("INSERTED")
    assert second.endswith("EXISTING")
    assert first.split()[3] == second.split()[3]
    with runledger_unmigrated_database.connect() as connection:
        assert_enqueued(connection, "example.confirm_order", count=2)
