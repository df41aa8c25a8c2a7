from __future__ import annotations

import secrets
import threading

import psycopg
import psycopg_pool
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runledger_core import JobEnqueue, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs, migrate
from runledger_postgres.errors import QueryError, classify_query_error

REQUEST = JobEnqueue("test.job", {"n": 1})
KEYED_REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")
KEYED_BATCH = [REQUEST, KEYED_REQUEST, KEYED_REQUEST]


@pytest.fixture(params=["database", "role"])
def hostile_dsn(request, database, observer):
    """Makes a connection string whose sessions start with settings of that level."""
    name = f"hostile_{secrets.token_hex(6)}"
    administrator = database.connect(autocommit=True)
    role = sql.Identifier(name)

    def make(**settings: str) -> str:
        target = sql.SQL("DATABASE {}").format(sql.Identifier(database.name))
        dsn = database.dsn
        if request.param == "role":
            administrator.execute(
                sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(role, name)
            )
            target = sql.SQL("ROLE {}").format(role)
            dsn = make_conninfo(dsn, user=name, password=name)
        for setting, value in settings.items():
            administrator.execute(
                sql.SQL("ALTER {} SET {} = {}").format(target, sql.Identifier(setting), value)
            )
        return dsn

    yield make
    administrator.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(role))


def pool_of_one(dsn: str) -> psycopg_pool.ConnectionPool:
    return psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=1, open=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"default_transaction_isolation": "serializable"},
        {"default_transaction_isolation": "repeatable read"},
        {"default_transaction_isolation": "read uncommitted"},
        {"default_transaction_read_only": "on"},
        {"default_transaction_deferrable": "on"},
        {"search_path": ""},
        {"search_path": "pg_catalog"},
        {"datestyle": "German", "intervalstyle": "sql_standard", "timezone": "Asia/Tokyo"},
        {"plan_cache_mode": "force_generic_plan"},
        {"standard_conforming_strings": "off"},
        {"row_security": "off", "xmloption": "document"},
        {"array_nulls": "off"},
    ],
    ids=str,
)
def test_pool_is_not_touched_by_defaults_of_role_or_database(hostile_dsn, observer, settings):
    with pool_of_one(hostile_dsn(**settings)) as pool:
        with pool.connection() as connection:
            for name, value in settings.items():
                shown = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
                assert value.lower() in str(shown).lower()

        enqueue_job(pool, REQUEST)
        enqueue_job(pool, KEYED_REQUEST)
        again = enqueue_jobs(pool, KEYED_BATCH)

    assert [job.disposition for job in again] == ["INSERTED", "EXISTING", "EXISTING"]
    assert observer.jobs() == 3


def test_schema_of_the_host_with_our_names_is_not_touched(hostile_dsn, database, observer):
    with database.connect() as connection:
        connection.execute("CREATE SCHEMA host")
        connection.execute("CREATE TABLE host.job_queue (LIKE runledger.job_queue)")
        connection.execute("CREATE TABLE host.job_definitions (LIKE runledger.job_definitions)")
        connection.execute("CREATE FUNCTION host.uuidv7() RETURNS int4 LANGUAGE sql AS 'SELECT 1'")

    with pool_of_one(hostile_dsn(search_path="host")) as pool:
        enqueue_job(pool, REQUEST)
        enqueue_job(pool, KEYED_REQUEST)

    assert observer.jobs() == 2
    assert observer.value("SELECT count(*) FROM host.job_queue") == 0


def test_short_statement_timeout_ends_a_wait_and_leaves_an_idle_connection(
    hostile_dsn, database, observer
):
    holder = database.connect()
    holder.execute("LOCK TABLE runledger.job_queue IN EXCLUSIVE MODE")

    with pool_of_one(hostile_dsn(statement_timeout="50ms")) as pool:
        with pytest.raises(QueryError) as caught:
            enqueue_job(pool, REQUEST)
        holder.rollback()

        with pool.connection() as connection:
            assert connection.info.transaction_status.name == "IDLE"

    assert (caught.value.code, caught.value.sqlstate) == ("db.statement_timeout", "57014")
    assert caught.value.is_transient
    assert observer.jobs() == 0


def test_transaction_timeout_of_the_server_is_named():
    # Over a connection the end of the stream may overtake the server's last words.
    caught = classify_query_error(psycopg.errors.TransactionTimeout("terminating connection"))

    assert (caught.code, caught.sqlstate) == ("db.transaction_timeout", "25P04")
    assert "transaction_timeout" in str(caught)
    assert caught.is_transient


def test_wait_that_transaction_timeout_ends_leaves_nothing_behind(hostile_dsn, database, observer):
    holder = database.connect()
    if holder.info.server_version < 170_000:
        pytest.skip("PostgreSQL knows transaction_timeout since 17")
    holder.execute("LOCK TABLE runledger.job_queue IN EXCLUSIVE MODE")

    with psycopg.connect(hostile_dsn(transaction_timeout="100ms")) as connection:
        with pytest.raises(QueryError) as caught:
            enqueue_job(connection, REQUEST)

        assert connection.closed
    assert caught.value.code in {"db.transaction_timeout", "db.unavailable"}
    assert caught.value.is_transient
    holder.rollback()
    assert observer.jobs() == 0


def test_migrations_have_the_time_that_they_take(runledger_unmigrated_database):
    connection = runledger_unmigrated_database.connect(autocommit=True)
    if connection.info.server_version < 170_000:
        pytest.skip("PostgreSQL knows transaction_timeout since 17")
    # Much more than a trip, much less than all migrations.
    connection.execute("SET transaction_timeout = '100ms'")

    assert migrate(connection)
    assert migrate(connection) == []
    assert connection.execute("SHOW transaction_timeout").fetchone() == ("100ms",)


def test_lock_timeout_of_the_database_ends_the_wait_of_an_enqueue(hostile_dsn, database, observer):
    holder = database.connect()
    enqueue_job(holder, KEYED_REQUEST)

    with pool_of_one(hostile_dsn(lock_timeout="50ms")) as pool:
        with pytest.raises(QueryError) as caught:
            enqueue_job(pool, KEYED_REQUEST)
        holder.commit()
        enqueued = enqueue_job(pool, KEYED_REQUEST)

    assert caught.value.code == "db.lock_timeout"
    assert enqueued.disposition == "EXISTING"


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
@pytest.mark.parametrize(
    ("requests", "entry_index"), [([KEYED_REQUEST], 0), (KEYED_BATCH, 1)], ids=["one", "batch"]
)
def test_key_is_refused_outside_read_committed(database, observer, level, requests, entry_index):
    enqueue_job(database.connect(autocommit=True), KEYED_REQUEST)
    connection = database.connect()
    connection.isolation_level = level

    with pytest.raises(ValidationError) as caught:
        enqueue_jobs(connection, requests)
    enqueue_job(connection, REQUEST)
    connection.commit()

    assert caught.value.code == "job.enqueue_idempotency_unsupported_isolation"
    assert caught.value.entry_index == entry_index
    assert observer.jobs() == 2


def test_key_is_refused_where_the_default_level_is_stronger(hostile_dsn, observer):
    dsn = hostile_dsn(default_transaction_isolation="serializable")

    with psycopg.connect(dsn) as connection:
        with pytest.raises(ValidationError) as caught:
            enqueue_job(connection, KEYED_REQUEST)
        enqueue_job(connection, REQUEST)

    assert caught.value.code == "job.enqueue_idempotency_unsupported_isolation"
    assert observer.jobs() == 1


def test_key_is_taken_in_read_uncommitted_which_is_the_same(database, observer):
    connection = database.connect()
    connection.isolation_level = psycopg.IsolationLevel.READ_UNCOMMITTED

    enqueue_job(connection, KEYED_REQUEST)
    enqueue_jobs(connection, KEYED_BATCH)
    connection.commit()

    assert observer.jobs() == 2


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_enqueue_without_a_key_never_fails_on_isolation(database, observer, level):
    connection = database.connect()
    connection.isolation_level = level
    connection.execute("SELECT 1")
    other = threading.Thread(target=enqueue_job, args=(database.connect(autocommit=True), REQUEST))
    other.start()
    other.join()

    enqueue_job(connection, REQUEST)
    enqueue_jobs(connection, [REQUEST, REQUEST])
    connection.commit()

    assert observer.jobs() == 4
