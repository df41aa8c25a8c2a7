from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runledger_core import UnavailableError
from runledger_test_support import server
from runledger_test_support.environ import ScopedEnv
from runledger_test_support.server import DatabaseServer, ServerOrigin, provide_server

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def own_server() -> Iterator[None]:
    with ScopedEnv({"RUNLEDGER_TEST_ADMIN_DATABASE_URL": None, "RUNLEDGER_TEST_PG_BIN": None}):
        yield


def setting(server: DatabaseServer, name: str) -> object:
    with psycopg.connect(server.dsn("postgres")) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    return row[0] if row else None


def test_started_server_is_tuned_for_tests(own_server: None) -> None:
    with provide_server() as server:
        assert server.origin is ServerOrigin.BINARIES
        assert server.version_number >= 150_000
        assert setting(server, "fsync") == "off"
        assert setting(server, "full_page_writes") == "off"
        assert setting(server, "max_connections") == "200"
        assert setting(server, "synchronous_commit") == "on"


def test_settings_can_be_chosen(own_server: None) -> None:
    with provide_server({"fsync": "off", "synchronous_commit": "off"}) as server:
        assert setting(server, "synchronous_commit") == "off"


@pytest.mark.skipif(not DEBIAN_15.is_dir(), reason="no PostgreSQL 15")
def test_named_binaries_are_used(own_server: None) -> None:
    with ScopedEnv({"RUNLEDGER_TEST_PG_BIN": str(DEBIAN_15)}), provide_server() as server:
        assert server.version_number // 10_000 == 15


def test_running_server_is_used_before_binaries(runledger_server: DatabaseServer) -> None:
    variables = {
        "RUNLEDGER_TEST_ADMIN_DATABASE_URL": runledger_server.admin_dsn,
        "RUNLEDGER_TEST_PG_BIN": "/nowhere",
    }
    with ScopedEnv(variables), provide_server() as server:
        assert server.origin is ServerOrigin.ADMIN_URL
        assert setting(server, "port") == setting(runledger_server, "port")


def test_role_that_may_not_create_databases_is_refused(runledger_server: DatabaseServer) -> None:
    role = sql.Identifier("reader_of_test_server")
    with psycopg.connect(runledger_server.admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
        try:
            url = make_conninfo(
                runledger_server.admin_dsn, user="reader_of_test_server", password="x"
            )
            with (
                ScopedEnv({"RUNLEDGER_TEST_ADMIN_DATABASE_URL": url}),
                pytest.raises(UnavailableError) as refused,
                provide_server(),
            ):
                pass
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(role))

    assert refused.value.code == "test_support.role_not_allowed"


def test_server_below_the_oldest_version_is_refused(
    runledger_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No server is old enough, so the bound is moved.
    monkeypatch.setattr(server, "OLDEST_VERSION", 1_000_000)

    with (
        ScopedEnv({"RUNLEDGER_TEST_ADMIN_DATABASE_URL": runledger_server.admin_dsn}),
        pytest.raises(UnavailableError) as refused,
        provide_server(),
    ):
        pass

    assert refused.value.code == "test_support.server_too_old"
