from __future__ import annotations

from uuid import UUID

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from runledger_core import JobEnqueue, Scope, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.migrations import migrate

REQUEST = JobEnqueue("test.job", {"n": 1})
KEYED_REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")


def enqueue_one(db):
    return enqueue_job(db, REQUEST)


def enqueue_keyed_batch(db):
    return enqueue_jobs(db, [KEYED_REQUEST])


def read_job(db):
    return get_job(db, UUID(int=0), scope=Scope.ADMIN)


def bring_up_to_date(db):
    return migrate(db)


calls = pytest.mark.parametrize(
    "call", [enqueue_one, enqueue_keyed_batch, read_job, bring_up_to_date]
)


def assert_refused(db, call=enqueue_one) -> None:
    with pytest.raises(ValidationError) as caught:
        call(db)
    assert (caught.value.code, caught.value.field) == ("db.two_phase_unsupported", "db")


def last_statement(observer, connection) -> str:
    return observer.value(
        "SELECT query FROM pg_stat_activity WHERE pid = %(pid)s", pid=connection.info.backend_pid
    )


@pytest.fixture
def engine(database):
    url = sqlalchemy.make_url(database.dsn).set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(url)
    yield engine
    engine.dispose()


@pytest.mark.core
@calls
def test_two_phase_transaction_is_refused_before_anything_is_sent(database, observer, call):
    connection = database.connect_directly()
    connection.tpc_begin("orders")
    connection.execute("SELECT 'his own'")

    assert_refused(connection, call)

    assert last_statement(observer, connection) == "SELECT 'his own'"
    assert connection.info.transaction_status.name == "INTRANS"
    connection.tpc_rollback()
    enqueue_one(connection)
    connection.commit()
    assert observer.jobs() == 1


def test_connection_whose_transaction_was_to_be_prepared_is_refused_until_its_end(
    database, observer
):
    connection = database.connect()
    connection.tpc_begin("orders")
    connection.execute("CREATE TEMPORARY TABLE parcels ()")
    # Of a server that prepares nothing, and of one that does: not what is temporary.
    with pytest.raises(psycopg.NotSupportedError):
        connection.tpc_prepare()
    assert connection.info.transaction_status.name == "IDLE"

    assert_refused(connection)

    assert connection.info.transaction_status.name == "IDLE"
    assert observer.jobs() == 0


@pytest.mark.parametrize("is_nested", [False, True])
def test_two_phase_transaction_of_a_sqlalchemy_connection_is_refused(engine, observer, is_nested):
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        if is_nested:
            connection.begin_nested()

        assert_refused(connection)

        transaction.rollback()
        enqueue_one(connection)
        connection.commit()
    assert observer.jobs() == 1


@pytest.mark.parametrize("in_registry", [False, True])
def test_two_phase_session_is_refused_before_it_takes_a_connection(engine, in_registry):
    make = sessionmaker(engine, twophase=True)
    session = scoped_session(make) if in_registry else make()

    assert_refused(session)

    assert engine.pool.checkedout() == 0
    session.close()


def test_session_on_a_connection_in_a_two_phase_transaction_is_refused(engine):
    with (
        engine.connect() as connection,
        connection.begin_twophase(),
        Session(connection) as session,
    ):
        assert_refused(session)


def test_two_phase_transaction_of_sqlalchemy_is_known_without_the_drivers_help(engine, monkeypatch):
    with engine.connect() as connection:
        block = connection.begin_twophase()
        # As with a psycopg that keeps it elsewhere.
        monkeypatch.setattr(connection.connection.driver_connection, "_tpc", None)

        assert_refused(connection)

        monkeypatch.undo()
        block.rollback()
