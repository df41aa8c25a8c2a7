from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from runledger_core import JobEnqueue, Scope
from runledger_postgres import connect_pool, enqueue_job, get_job, migrate
from runledger_postgres.embedded import EmbeddedServer
from runledger_postgres.errors import QueryError, classify_query_error

REQUEST = JobEnqueue("test.job", {"n": 1})


@pytest.fixture(scope="module")
def standby(tmp_path_factory):
    """A server in recovery that holds one job; yields its DSN and the job's id."""
    folder = tmp_path_factory.mktemp("standby")
    bin_dir = os.environ.get("RUNLEDGER_TEST_PG_BIN") or None
    with (
        EmbeddedServer(folder, bin_dir=bin_dir) as server,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        migrate(connection)
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
        job_id = enqueue_job(connection, REQUEST).id
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    (Path(data) / "standby.signal").touch()
    with EmbeddedServer(folder, bin_dir=bin_dir) as server:
        yield server.dsn(), job_id


def test_pool_on_a_standby_serves_reads_and_refuses_writes_as_transient(standby):
    dsn, job_id = standby

    with connect_pool(dsn) as pool:
        job = get_job(pool, job_id, scope=Scope.ADMIN)
        with pytest.raises(QueryError) as caught:
            enqueue_job(pool, REQUEST)

    assert job is not None
    assert (caught.value.code, caught.value.is_transient) == ("db.read_only", True)


@pytest.mark.parametrize("autocommit", [True, False])
def test_connection_to_a_standby_refuses_writes_as_transient(standby, autocommit):
    dsn, _ = standby

    with psycopg.connect(dsn, autocommit=autocommit) as connection:
        with pytest.raises(QueryError) as caught:
            enqueue_job(connection, REQUEST)
        connection.rollback()

    assert (caught.value.code, caught.value.is_transient) == ("db.read_only", True)


def test_begin_that_a_standby_refuses_is_read_only(standby):
    dsn, _ = standby

    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        pytest.raises(psycopg.errors.FeatureNotSupported) as caught,
    ):
        connection.execute("BEGIN READ WRITE")

    error = classify_query_error(caught.value)
    assert (error.code, error.sqlstate, error.is_transient) == ("db.read_only", "0A000", True)
