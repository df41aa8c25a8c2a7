from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing

import psycopg
import psycopg_pool
import pytest
import sqlalchemy

from runledger_core import JobEnqueue, ValidationError
from runledger_postgres import enqueue_job

REQUEST = JobEnqueue("test.job", {})


class ForeignConnection:
    """Looks like the connections of other drivers."""

    closed = False
    autocommit = True

    def cursor(self):
        pytest.fail("a foreign connection was used")


def refused_code(db) -> str:
    with pytest.raises(ValidationError) as caught:
        enqueue_job(db, REQUEST)
    assert caught.value.field == "db"
    return caught.value.code


@pytest.mark.parametrize(
    "db",
    [None, "postgresql://localhost/db", 5, object(), {}, psycopg, psycopg.Connection],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_connection_is_refused(db):
    assert refused_code(db) == "db.unsupported_connection"


def test_connection_of_another_driver_is_refused():
    assert refused_code(ForeignConnection()) == "db.unsupported_connection"
    with closing(sqlite3.connect(":memory:")) as connection:
        assert refused_code(connection) == "db.unsupported_connection"


def test_cursor_is_refused(runledger_database):
    connection = runledger_database.connect()

    assert refused_code(connection.cursor()) == "db.unsupported_connection"
    assert connection.info.transaction_status.name == "IDLE"


def test_asynchronous_connection_and_pool_are_refused(runledger_database):
    async def refused_codes() -> list[str]:
        pool = psycopg_pool.AsyncConnectionPool(runledger_database.dsn, open=False)
        async with await psycopg.AsyncConnection.connect(runledger_database.dsn) as connection:
            return [refused_code(connection), refused_code(pool)]

    assert asyncio.run(refused_codes()) == ["db.unsupported_connection"] * 2


def test_asynchronous_sqlalchemy_is_refused(runledger_database):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: PLC0415  # needs it

    url = sqlalchemy.make_url(runledger_database.dsn).set(drivername="postgresql+psycopg")

    async def refused_codes() -> list[str]:
        engine = create_async_engine(url)
        async with engine.connect() as connection, AsyncSession(engine) as session:
            codes = [
                refused_code(connection),
                refused_code(session),
                await connection.run_sync(refused_code),
            ]
        await engine.dispose()
        return codes

    assert asyncio.run(refused_codes()) == ["db.unsupported_connection"] * 3


def test_sqlalchemy_on_another_driver_is_refused():
    engine = sqlalchemy.create_engine("sqlite://")

    with engine.connect() as connection:
        assert refused_code(connection) == "db.unsupported_connection"
        assert not connection.in_transaction()
    assert refused_code(engine) == "db.unsupported_connection"
    engine.dispose()


def test_sqlalchemy_is_not_imported_for_a_pool(runledger_database):
    program = """
import sys
from runledger_core import JobEnqueue, ValidationError
from runledger_postgres import connect_pool, enqueue_job
with connect_pool(sys.argv[1]) as pool:
    for db in (pool, None):
        try:
            enqueue_job(db, JobEnqueue("test.job", {}))
        except ValidationError as error:
            print(error.code)
assert "sqlalchemy" not in sys.modules
"""

    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", program, runledger_database.dsn],
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stdout.split() == [
        "job.definition_not_found_or_disabled",
        "db.unsupported_connection",
    ]
