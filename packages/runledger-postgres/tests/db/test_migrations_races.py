from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from runledger_core import UnavailableError
from runledger_postgres import connect_pool
from runledger_postgres.errors import QueryError
from runledger_postgres.migrations import ensure_schema_compatible, migrate
from runledger_postgres.migrations._apply import apply_pending
from runledger_postgres.migrations._files import bundled_migrations
from runledger_postgres.migrations._turn import MIGRATION_LOCK_KEY
from runledger_test_support import TemporaryDatabase

NAMES = [migration.name for migration in bundled_migrations()]
OLD_WORKERS = 4

# Says that it is ready, waits for a line, migrates, and prints what it applied.
MIGRATING_PROGRAM = """
import json, sys
from runledger_postgres import connect_pool
from runledger_postgres.migrations import ensure_schema_compatible, migrate
with connect_pool(sys.argv[1], max_size=1) as pool:
    pool.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    applied = migrate(pool)
    ensure_schema_compatible(pool)
print(json.dumps(applied))
"""

# For each number of answers from the server, in steps, a child migrates and dies when it has them.
DYING_PROGRAM = """
import itertools, json, os, sys
import psycopg
from runledger_postgres.migrations import migrate

class DyingConnection(psycopg.Connection):
    answers_left = None
    def wait(self, *args, **kwargs):
        result = super().wait(*args, **kwargs)
        if self.answers_left is not None:
            self.answers_left -= 1
            if self.answers_left == 0:
                os._exit(9)
        return result

for answers in itertools.count(1, int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        with DyingConnection.connect(sys.argv[1], autocommit=True) as connection:
            connection.answers_left = answers
            migrate(connection)
            connection.answers_left = None
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if sys.stdin.readline() != "again\\n":
        break
"""

TABLES_AND_HISTORY = """
SELECT
    (
        SELECT count(*) FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = to_regnamespace('runledger') AND c.relkind = 'r'
    ),
    to_regclass('runledger.runledger_migration_history') IS NOT NULL
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def listen(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_whole_or_absent(connection: psycopg.Connection[Any]) -> bool:
    tables, has_history = connection.execute(TABLES_AND_HISTORY).fetchone() or (None, None)
    if tables == 0:
        return True
    if not has_history:
        return False
    rows = connection.execute(
        "SELECT name FROM runledger.runledger_migration_history ORDER BY version"
    ).fetchall()
    return [name for (name,) in rows] == NAMES


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_processes_that_start_together_on_an_empty_database_all_succeed(
    runledger_unmigrated_database: TemporaryDatabase, scaled: Callable[..., int]
):
    count = scaled(ci=6, full=16)
    processes = [start(MIGRATING_PROGRAM, runledger_unmigrated_database.dsn) for _ in range(count)]
    assert [listen(process) for process in processes] == ["ready"] * count

    for process in processes:
        tell(process, "go")
    outputs = [process.communicate(timeout=120)[0] for process in processes]

    assert [process.returncode for process in processes] == [0] * count
    applied = sorted((json.loads(output) for output in outputs), key=len)
    assert applied == [[]] * (count - 1) + [NAMES]


def test_runner_killed_after_any_answer_leaves_all_or_nothing(
    runledger_unmigrated_database: TemporaryDatabase, scaled: Callable[..., int]
):
    stride = scaled(ci=4, full=1)
    connection = runledger_unmigrated_database.connect(autocommit=True)
    process = start(DYING_PROGRAM, runledger_unmigrated_database.dsn, str(stride))
    deaths = 0

    while (status := listen(process)) == "9":
        deaths += 1
        assert is_whole_or_absent(connection)
        migrate(connection)
        ensure_schema_compatible(connection)
        connection.execute("DROP SCHEMA runledger CASCADE")
        tell(process, "again")

    tell(process, "enough")
    process.communicate(timeout=30)
    assert status == "0"
    assert deaths >= 20 // stride
    ensure_schema_compatible(connection)


def test_session_killed_at_any_statement_of_a_file_leaves_all_or_nothing(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    if connection.info.parameter_status("is_superuser") != "on":
        pytest.skip("event triggers need a superuser")
    connection.execute("CREATE SCHEMA chaos")
    connection.execute("CREATE SEQUENCE chaos.commands")
    connection.execute("CREATE TABLE chaos.plan (kill_at int8)")
    connection.execute("INSERT INTO chaos.plan VALUES (0)")
    connection.execute(
        """
        CREATE FUNCTION chaos.kill() RETURNS event_trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('chaos.commands') = (SELECT kill_at FROM chaos.plan) THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
        END
        $$
        """
    )
    connection.execute(
        "CREATE EVENT TRIGGER chaos ON ddl_command_end EXECUTE FUNCTION chaos.kill()"
    )
    deaths = 0

    def died() -> bool:
        connection.execute("UPDATE chaos.plan SET kill_at = %s", [deaths + 1])
        connection.execute("SELECT setval('chaos.commands', 1, false)")
        with psycopg.connect(runledger_unmigrated_database.dsn, autocommit=True) as runner:
            try:
                migrate(runner)
            except UnavailableError:
                return True
        return False

    while died():
        deaths += 1
        assert is_whole_or_absent(connection)
        connection.execute("DROP SCHEMA IF EXISTS runledger CASCADE")

    assert deaths > 50
    connection.execute("DROP EVENT TRIGGER chaos")
    ensure_schema_compatible(connection)


def test_waiting_runner_finds_the_work_done(runledger_unmigrated_database: TemporaryDatabase):
    first = runledger_unmigrated_database.connect()
    first.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK_KEY])
    second = runledger_unmigrated_database.connect(autocommit=True)
    seen: list[str] = []
    results: list[list[str]] = []
    thread = threading.Thread(
        target=lambda: results.append(migrate(second, on_progress=seen.append))
    )
    thread.start()
    observer = runledger_unmigrated_database.connect(autocommit=True)
    wait_until(lambda: _is_waiting(observer, second))

    migrate(first)
    first.commit()
    thread.join(30)

    assert results == [[]]
    assert seen == []


def _is_waiting(observer: psycopg.Connection[Any], waiter: psycopg.Connection[Any]) -> bool:
    row = observer.execute(
        "SELECT cardinality(pg_blocking_pids(%s)) > 0", [waiter.info.backend_pid]
    ).fetchone()
    return row == (True,)


def test_busy_table_ends_the_run_after_the_given_time(
    runledger_unmigrated_database: TemporaryDatabase,
):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(connection, bundled_migrations()[:2])
    reader = runledger_unmigrated_database.connect()
    reader.execute("SELECT count(*) FROM runledger.job_queue")

    with pytest.raises(QueryError) as caught:
        migrate(connection, lock_wait_seconds=0.05)

    assert caught.value.code == "db.lock_timeout"
    assert caught.value.is_transient
    reader.rollback()
    assert migrate(connection) == NAMES[2:]


def test_worker_that_waits_for_the_migration_is_let_go(
    runledger_unmigrated_database: TemporaryDatabase,
):
    runner = runledger_unmigrated_database.connect(autocommit=True)
    apply_pending(runner, bundled_migrations()[:2])
    worker = runledger_unmigrated_database.connect()
    worker.execute("INSERT INTO runledger.job_queue (job_type, max_attempts) VALUES ('mail', 1)")
    observer = runledger_unmigrated_database.connect(autocommit=True)
    results: list[list[str]] = []
    thread = threading.Thread(target=lambda: results.append(migrate(runner)))
    thread.start()
    # It has workflow_runs and waits for job_queue; the worker goes the other way round.
    wait_until(lambda: _is_waiting(observer, runner))

    worker.execute("INSERT INTO runledger.workflow_runs (workflow_type) VALUES ('order')")
    worker.commit()
    thread.join(30)

    assert results == [NAMES[2:]]
    assert observer.execute("SELECT count(*) FROM runledger.workflow_runs").fetchone() == (1,)


def test_workers_of_the_old_version_go_on_while_it_migrates(
    runledger_unmigrated_database: TemporaryDatabase,
):
    with connect_pool(runledger_unmigrated_database.dsn, max_size=1) as pool:
        with pool.connection() as connection:
            connection.autocommit = True
            apply_pending(connection, bundled_migrations()[:2])
            connection.autocommit = False
        workers = [_OldWorker(runledger_unmigrated_database.dsn) for _ in range(OLD_WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            assert worker.is_busy.wait(30)

        applied = migrate(pool)

        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.join(30)

    assert applied == NAMES[2:]
    assert [worker.errors for worker in workers] == [[]] * OLD_WORKERS


class _OldWorker(threading.Thread):
    """Writes a run and a job in each transaction, without a pause."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn = dsn
        self.stop = threading.Event()
        self.is_busy = threading.Event()
        self.errors: list[psycopg.Error] = []

    def run(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            while not self.stop.is_set():
                try:
                    connection.execute(
                        "INSERT INTO runledger.workflow_runs (workflow_type) VALUES ('order')"
                    )
                    connection.execute(
                        "INSERT INTO runledger.job_queue (job_type, max_attempts)"
                        " VALUES ('mail', 1)"
                    )
                    connection.commit()
                except psycopg.Error as error:
                    self.errors.append(error)
                    connection.rollback()
                self.is_busy.set()
