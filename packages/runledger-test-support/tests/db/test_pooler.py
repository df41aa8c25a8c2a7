"""Fixtures behind PgBouncer: a session of their own, and the pooler by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runledger_core import UnavailableError, ValidationError
from runledger_postgres import connect_pool
from runledger_test_support import DatabaseServer, ScopedEnv, TemporaryDatabase, pooler
from runledger_test_support.databases import temporary_database
from runledger_test_support.pooler import find_pgbouncer, provide_pooler

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.pgbouncer
installed = pytest.mark.skipif(find_pgbouncer() is None, reason="pgbouncer is not installed")

KILLED = """
import os, sys
from runledger_test_support.pooler import provide_pooler
from runledger_test_support.server import provide_server
with provide_server() as server, provide_pooler(server) as pooler:
    print(pooler.port, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), 9)
"""


@installed
def test_fixtures_go_through_the_pooler_without_prepared_statements(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    runledger_server: DatabaseServer,
) -> None:
    monkeypatch.setenv("RUNLEDGER_TEST_ADMIN_DATABASE_URL", runledger_server.admin_dsn)
    monkeypatch.setenv("RUNLEDGER_TEST_POOLER", "pgbouncer")
    pytester.makepyfile(
        """
        def port(connection):
            return connection.info.port

        def test_pooled(runledger_database, runledger_pool, runledger_pooler):
            direct = runledger_database.connect_directly()
            assert runledger_pooler.port != port(direct)
            assert direct.prepare_threshold == 5
            assert port(runledger_database.connect()) == runledger_pooler.port
            with runledger_pool.connection() as one, runledger_pool.connection() as two:
                assert port(one) == runledger_pooler.port
                for _ in range(10):
                    one.execute("SELECT 1"), one.rollback()
                    two.execute("SELECT 1"), two.rollback()
                assert one.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)

        def test_unmigrated(runledger_unmigrated_database, runledger_pooler):
            assert port(runledger_unmigrated_database.connect()) == runledger_pooler.port
        """
    )

    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2)


@installed
def test_databases_can_be_dropped_while_the_pooler_holds_connections(
    runledger_server: DatabaseServer,
) -> None:
    with provide_pooler(runledger_server) as own:
        for _ in range(3):
            with temporary_database(runledger_server, pooler=own) as database:
                with (
                    connect_pool(database.dsn, prepare_threshold=None) as pool,
                    pool.connection() as connection,
                ):
                    connection.execute("SELECT 1")
                name = database.name

            with psycopg.connect(runledger_server.admin_dsn) as admin:
                row = admin.execute(
                    "SELECT 1 FROM pg_database WHERE datname = %s", [name]
                ).fetchone()
            assert row is None


@installed
def test_roles_of_a_test_log_in_by_their_passwords(
    runledger_server: DatabaseServer, runledger_unmigrated_database: TemporaryDatabase
) -> None:
    direct = runledger_unmigrated_database.direct_dsn
    with (
        provide_pooler(runledger_server) as own,
        psycopg.connect(direct, autocommit=True) as admin,
    ):
        admin.execute("CREATE ROLE pooled_role LOGIN PASSWORD 'x'")
        try:
            pooled = own.dsn(make_conninfo(direct, user="pooled_role", password="x"))
            with psycopg.connect(pooled) as connection:
                row = connection.execute("SELECT current_user").fetchone()
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(make_conninfo(pooled, password="y"))
        finally:
            admin.execute("DROP ROLE pooled_role")

    assert row == ("pooled_role",)


@installed
def test_pooler_ends_with_a_process_that_is_killed() -> None:
    # Not below tmp_path: as root another account runs the pooler, and cannot enter there.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        kill_and_wait_for_the_pooler(folder)


def kill_and_wait_for_the_pooler(folder: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env=os.environ | {"TMPDIR": folder},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        dsn = f"host=127.0.0.1 port={port} dbname=pgbouncer user=nobody"
        process.communicate("")

    assert process.returncode == -9
    deadline = time.monotonic() + 30
    while "Connection refused" not in str(failure_of(dsn)):
        assert time.monotonic() < deadline


def failure_of(dsn: str) -> psycopg.OperationalError:
    with pytest.raises(psycopg.OperationalError) as failed:
        psycopg.connect(dsn, connect_timeout=2)
    return failed.value


def test_missing_program_is_named(
    runledger_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooler, "find_pgbouncer", lambda: None)

    with pytest.raises(UnavailableError) as missing, provide_pooler(runledger_server):
        pass

    assert missing.value.code == "test_support.pooler_unavailable"


@installed
def test_pooler_that_does_not_start_says_why(
    runledger_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooler, "_CONFIG", pooler._CONFIG.replace("transaction", "no_such_mode"))

    with pytest.raises(UnavailableError) as failed, provide_pooler(runledger_server):
        pass

    assert failed.value.code == "test_support.pooler_unavailable"


@pytest.mark.parametrize(("text", "is_wanted"), [("", False), ("none", False), ("PgBouncer", True)])
def test_variable_chooses(text: str, is_wanted: bool) -> None:
    with ScopedEnv({"RUNLEDGER_TEST_POOLER": text}):
        assert pooler.is_pooler_wanted() is is_wanted


def test_another_pooler_is_refused() -> None:
    with ScopedEnv({"RUNLEDGER_TEST_POOLER": "odyssey"}), pytest.raises(ValidationError) as refused:
        pooler.is_pooler_wanted()

    assert refused.value.code == "test_support.environment_invalid"
