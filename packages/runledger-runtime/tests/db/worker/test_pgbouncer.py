"""Behind a pooler in transaction mode everything works; a direct address brings wake-ups back."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runledger_core import JobContext, JobEnqueue, JobFailure, JobStatus, Scope
from runledger_postgres import connect_pool, count_jobs_by_status, enqueue_job, enqueue_jobs
from runledger_postgres.wakeup import SLEEP_MARK_CLASS

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIG = """\
[databases]
{dbname} = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 8
"""

pytestmark = [
    pytest.mark.pgbouncer,
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed"),
]
Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture
def pooled_dsn(runledger_database: Any) -> Iterator[str]:
    """The database of the test, behind a pooler that keeps no prepared statements."""
    parts = conninfo_to_dict(runledger_database.dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="runledger-pgbouncer-") as folder:
        # It refuses to run as root.
        Path(folder).chmod(0o755)
        account = ["-u", "nobody"] if os.geteuid() == 0 else []
        config = Path(folder) / "pgbouncer.ini"
        config.write_text(CONFIG.format(**parts, listen_port=port))
        command = [str(PROGRAM), *account, str(config)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as pooler:
            try:
                dsn = make_conninfo("", host="127.0.0.1", port=port, dbname=str(parts["dbname"]))
                wait_for(dsn)
                yield dsn
            finally:
                pooler.terminate()


def wait_for(dsn: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            psycopg.connect(dsn, user="any").close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
        else:
            return


def sleep_marks(database: Any) -> int:
    """Return how many job types idle workers have marked; only a proven listener does."""
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute(
            """
            SELECT count(*) FROM pg_locks
            WHERE locktype = 'advisory' AND classid = %s AND database = (
                SELECT oid FROM pg_database WHERE datname = current_database()
            )
            """,
            [SLEEP_MARK_CLASS],
        ).fetchone()
    return row[0] if row else 0


def test_worker_behind_a_pooler_runs_jobs_and_listens_at_the_direct_address(
    pooled_dsn: str, runledger_database: Any, start_worker: Any, eventually: Eventually
) -> None:
    ran: list[Any] = []

    def handler(context: JobContext, payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SELECT 1")
        context.progress(1, 2)
        context.log("INFO", "ran")
        ran.append(payload)
        if payload == 0 and context.attempt == 1:
            raise JobFailure.retryable("test.again", "busy")

    dsn = make_conninfo(pooled_dsn, user="any")
    with connect_pool(dsn, prepare_threshold=None) as pool:
        start_worker(
            {"jobs.one": handler},
            pool=pool,
            poll_interval_ms=60_000,
            direct_database_url=runledger_database.dsn,
        )
        enqueue_jobs(pool, [JobEnqueue("jobs.one", number) for number in range(50)])
        eventually(lambda: len(ran) == 51)
        eventually(lambda: count_jobs_by_status(pool, scope=Scope.ADMIN)[JobStatus.SUCCEEDED] == 50)

        eventually(lambda: sleep_marks(runledger_database) == 1)
        enqueue_job(pool, JobEnqueue("jobs.one", "woken"))
        eventually(lambda: "woken" in ran)


def test_worker_that_hears_nothing_polls(
    pooled_dsn: str, runledger_database: Any, start_worker: Any, eventually: Eventually
) -> None:
    ran: list[Any] = []

    with connect_pool(make_conninfo(pooled_dsn, user="any"), prepare_threshold=None) as pool:
        start_worker(
            {"jobs.one": lambda _context, payload: ran.append(payload)},
            pool=pool,
            poll_interval_ms=100,
        )
        enqueue_job(pool, JobEnqueue("jobs.one", "first"))
        eventually(lambda: ran == ["first"])
        enqueue_job(pool, JobEnqueue("jobs.one", "second"))

        eventually(lambda: ran == ["first", "second"])
        assert sleep_marks(runledger_database) == 0
