from __future__ import annotations

import time

import psycopg
import pytest

from runledger_test_support.databases import TemporaryDatabase, temporary_database
from runledger_test_support.server import DatabaseServer


def exists(server: DatabaseServer, name: str) -> bool:
    with psycopg.connect(server.admin_dsn) as connection:
        row = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
    return row is not None


def test_database_has_the_schema(runledger_database: TemporaryDatabase) -> None:
    row = (
        runledger_database.connect().execute("SELECT count(*) FROM runledger.job_queue").fetchone()
    )

    assert row == (0,)


def test_unmigrated_database_is_empty(runledger_unmigrated_database: TemporaryDatabase) -> None:
    row = (
        runledger_unmigrated_database.connect()
        .execute("SELECT to_regnamespace('runledger')")
        .fetchone()
    )

    assert row == (None,)


def test_template_is_named_after_the_migrations(
    runledger_server: DatabaseServer, runledger_template: str
) -> None:
    assert runledger_template.startswith("template_")
    assert exists(runledger_server, runledger_template)


def test_clones_do_not_see_each_other(
    runledger_server: DatabaseServer, runledger_template: str
) -> None:
    with (
        temporary_database(runledger_server, template=runledger_template) as one,
        temporary_database(runledger_server, template=runledger_template) as two,
    ):
        one.connect(autocommit=True).execute("CREATE TABLE mine ()")

        row = two.connect().execute("SELECT to_regclass('mine')").fetchone()

    assert row == (None,)


def test_database_is_dropped_with_everybody_in_it(runledger_server: DatabaseServer) -> None:
    with temporary_database(runledger_server) as database:
        ours = database.connect()
        stranger = psycopg.connect(database.dsn)
        stranger.execute("CREATE TABLE locked ()")

    assert ours.closed
    assert not exists(runledger_server, database.name)
    with pytest.raises(psycopg.OperationalError):
        stranger.execute("SELECT 1")
    stranger.close()


def test_database_is_dropped_after_an_exception(runledger_server: DatabaseServer) -> None:
    with pytest.raises(RuntimeError), temporary_database(runledger_server) as database:
        raise RuntimeError

    assert not exists(runledger_server, database.name)


def test_dropping_does_not_wait_for_leaving_sessions(runledger_server: DatabaseServer) -> None:
    durations: list[float] = []
    for _ in range(5):
        with temporary_database(runledger_server) as database:
            for _ in range(5):
                database.connect()
            begun = time.monotonic()
        durations.append(time.monotonic() - begun)

    # DROP DATABASE by itself looks again only after 100 ms.
    assert min(durations) < 0.1


def test_database_gone_already_is_no_error(runledger_server: DatabaseServer) -> None:
    with (
        temporary_database(runledger_server) as database,
        psycopg.connect(runledger_server.admin_dsn, autocommit=True) as connection,
    ):
        connection.execute(f'DROP DATABASE "{database.name}"'.encode())


def test_connections_take_parameters(runledger_database: TemporaryDatabase) -> None:
    connection = runledger_database.connect(autocommit=True, application_name="here")

    assert connection.execute("SHOW application_name").fetchone() == ("here",)
    assert connection.autocommit


def test_pool_works_on_the_database_of_the_test(
    runledger_pool, runledger_database: TemporaryDatabase
) -> None:
    with runledger_pool.connection() as connection:
        row = connection.execute("SELECT current_database()").fetchone()

    assert row == (runledger_database.name,)


def test_name_tells_the_test(runledger_database: TemporaryDatabase) -> None:
    assert runledger_database.name.startswith("name_tells_the_test_")
