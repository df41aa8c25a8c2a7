"""Workers whose clocks are wrong or jump: leases and due times follow the database's alone."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from _faults import SUCCEEDED, Outside, define, eventually
from psycopg import sql

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_jobs
from runledger_test_support import TemporaryDatabase

PROGRAM = Path(__file__).with_name("_clock_worker.py")
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
CLOCKS: dict[str, dict[str, Any]] = {
    "hour-ahead": {"offset": 3600},
    "hour-behind": {"offset": -3600},
    "back-90s": {"offset": 0, "step": -90},
    "day-forward": {"offset": 0, "step": 86_400},
    "santiago": {"offset": 0, "tz": "America/Santiago"},
}
LATER_SECONDS = 4
ATTEMPTS = """
SELECT q.job_type FROM runledger.job_attempts a JOIN runledger.job_queue q ON q.id = a.job_id
WHERE a.leased_at < %s OR a.leased_at < q.created_at OR a.finished_at > clock_timestamp()
    OR (q.payload ? 'later' AND a.leased_at < q.created_at + make_interval(secs => %s))
"""


def test_leases_and_due_times_follow_the_clock_of_the_database(
    runledger_pool: Any, runledger_database: TemporaryDatabase
) -> None:
    connection = runledger_database.connect_directly(autocommit=True)
    outside = Outside(connection)
    name = sql.Identifier(runledger_database.name)
    connection.execute(sql.SQL("ALTER DATABASE {} SET timezone = 'America/Santiago'").format(name))
    define(runledger_pool, *(f"{kind}.{clock}" for kind in ("long", "short") for clock in CLOCKS))
    now = outside.value("SELECT clock_timestamp()")
    soon, far = now + timedelta(seconds=LATER_SECONDS), now + timedelta(minutes=30)
    for clock in CLOCKS:
        enqueue_jobs(
            runledger_pool,
            [
                # Runs over two leases, and over the step.
                JobEnqueue(f"long.{clock}", {"seconds": 5}),
                JobEnqueue(f"short.{clock}", {"later": True}, next_run_at=soon),
                JobEnqueue(f"short.{clock}", {}, next_run_at=far),
                *[JobEnqueue(f"short.{clock}", {})] * 10,
            ],
        )
    with ExitStack() as stack:
        workers = [stack.enter_context(start(runledger_database, clock)) for clock in CLOCKS]

        eventually(lambda: outside.value(SUCCEEDED) == 12 * len(CLOCKS))
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
        assert [worker.wait(60) for worker in workers] == [0] * len(CLOCKS)

    assert outside.column(ATTEMPTS, now, LATER_SECONDS - 1) == []
    again = "SELECT job_type FROM runledger.job_queue WHERE claim_number > 1 OR attempt > 1"
    assert outside.column(again) == []
    due = "SELECT count(*) FROM runledger.job_queue WHERE status = 'PENDING' AND next_run_at = %s"
    assert outside.value(due, far) == len(CLOCKS)


def start(database: TemporaryDatabase, clock: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), database.dsn, json.dumps(CLOCKS[clock]), clock],
        stdin=subprocess.PIPE,
        env=ENVIRONMENT | {"TZ": CLOCKS[clock].get("tz", "UTC")},
        text=True,
    )
