from __future__ import annotations

from contextlib import suppress

import pytest
import sqlalchemy
from sqlalchemy import exc, text
from sqlalchemy.orm import Session, declarative_base, scoped_session, sessionmaker
from sqlalchemy.pool import QueuePool

from runledger_core import ConflictError, JobEnqueue, Scope, UnavailableError, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.errors import QueryError

SEE_ORDERS = "SELECT count(*) FROM public.orders"
REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")


class AppSession(Session):
    """As applications have it."""


@pytest.fixture
def engine(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
        connection.execute("CREATE TABLE public.orders (id int4 PRIMARY KEY)")
    url = sqlalchemy.make_url(runledger_database.dsn).set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(url, poolclass=QueuePool, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


def open_connection(engine):
    return engine.connect()


def open_session(engine):
    return Session(engine)


def open_app_session(engine):
    return sessionmaker(engine, class_=AppSession)()


def open_scoped_session(engine):
    return scoped_session(sessionmaker(engine))


def enqueue_one(db):
    return enqueue_job(db, JobEnqueue("test.job", {"n": 1}))


def enqueue_keyed_batch(db):
    return enqueue_jobs(db, [REQUEST, REQUEST])[0]


opened = pytest.mark.parametrize(
    "open_db", [open_connection, open_session, open_app_session, open_scoped_session]
)
ways = pytest.mark.parametrize("enqueue", [enqueue_one, enqueue_keyed_batch])
places = pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])


def order(db, number: int) -> None:
    db.execute(text("INSERT INTO public.orders VALUES (:id)"), {"id": number})


@opened
@ways
@places
def test_job_is_committed_with_the_callers_transaction(
    engine, observer, open_db, enqueue, is_first
):
    db = open_db(engine)

    if not is_first:
        order(db, 1)
    enqueue(db)
    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)
    order(db, 2)
    db.commit()
    db.close()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1 if is_first else 2)


@opened
@ways
@pytest.mark.parametrize("end", ["rollback", "close"])
def test_job_goes_with_a_rollback_or_close(engine, observer, open_db, enqueue, end):
    db = open_db(engine)

    enqueue(db)
    order(db, 1)
    getattr(db, end)()
    db.close()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)


@opened
@ways
def test_block_that_was_begun_is_joined(engine, observer, open_db, enqueue):
    db = open_db(engine)

    with db.begin():
        enqueue(db)
        order(db, 1)
        assert observer.jobs() == 0
    db.close()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1)


@opened
@ways
def test_block_that_raises_takes_the_job_with_it(engine, observer, open_db, enqueue):
    db = open_db(engine)

    with suppress(ZeroDivisionError), db.begin():
        order(db, 1)
        enqueue(db)
        raise ZeroDivisionError
    db.close()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)


@opened
@ways
def test_nested_block_that_is_rolled_back_takes_only_the_job(engine, observer, open_db, enqueue):
    db = open_db(engine)

    with db.begin():
        order(db, 1)
        nested = db.begin_nested()
        enqueue(db)
        nested.rollback()
        order(db, 2)
    db.close()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 2)


@ways
def test_autocommit_isolation_gets_a_transaction_of_our_own(engine, observer, enqueue):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        enqueue(connection)

        assert observer.jobs() == 1


def test_pending_objects_of_the_session_and_the_job_share_a_transaction(engine, observer):
    base = declarative_base()

    class Order(base):
        __tablename__ = "orders"
        id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)

    with Session(engine) as session:
        session.add(Order(id=1))
        enqueue_one(session)
        session.commit()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1)


@opened
def test_refusal_leaves_the_transaction_usable(engine, observer, open_db):
    db = open_db(engine)
    order(db, 1)

    with pytest.raises(ValidationError):
        enqueue_job(db, JobEnqueue("test.none", {}))
    enqueue_job(db, REQUEST)
    with pytest.raises(ConflictError):
        enqueue_job(db, JobEnqueue("test.job", {"n": 2}, idempotency_key="key"))
    order(db, 2)
    db.commit()
    db.close()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 2)


@opened
def test_reads_join_too(engine, open_db):
    db = open_db(engine)

    enqueued = enqueue_one(db)

    assert get_job(db, enqueued.id, scope=Scope.ADMIN) is not None
    db.rollback()
    assert get_job(db, enqueued.id, scope=Scope.ADMIN) is None
    db.close()


def test_closed_connection_is_unavailable(engine):
    connection = engine.connect()
    connection.close()

    with pytest.raises(UnavailableError) as caught:
        enqueue_one(connection)

    assert caught.value.code == "db.unavailable"


def test_invalidated_connection_waits_for_its_rollback(engine, observer):
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        connection.invalidate()

        with pytest.raises(ValidationError) as caught:
            enqueue_one(connection)
        connection.rollback()
        enqueue_one(connection)
        connection.commit()

    assert caught.value.code == "db.transaction_aborted"
    assert observer.jobs() == 1


def test_session_whose_flush_failed_waits_for_its_rollback(engine, observer):
    base = declarative_base()

    class Order(base):
        __tablename__ = "orders"
        id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)

    session = Session(engine)
    order(session, 1)
    session.add(Order(id=1))
    with pytest.raises(exc.IntegrityError):
        session.flush()

    with pytest.raises(ValidationError) as caught:
        enqueue_one(session)
    session.rollback()
    enqueue_one(session)
    session.commit()
    session.close()

    assert caught.value.code == "db.transaction_aborted"
    assert observer.jobs() == 1


def test_failed_statement_of_a_connection_waits_for_its_rollback(engine, observer):
    with engine.connect() as connection:
        with pytest.raises(exc.DataError):
            connection.execute(text("SELECT 1 / 0"))

        with pytest.raises(ValidationError) as caught:
            enqueue_one(connection)
        connection.rollback()

    assert caught.value.code == "db.transaction_aborted"


def test_session_without_a_bind_is_refused():
    with Session() as session, pytest.raises(ValidationError) as caught:
        enqueue_one(session)

    assert caught.value.code == "db.unsupported_connection"


def test_session_that_must_be_begun_is_refused_before(engine, observer):
    with Session(engine, autobegin=False) as session:
        with pytest.raises(ValidationError) as caught:
            enqueue_one(session)
        with session.begin():
            enqueue_one(session)

    assert caught.value.code == "db.unsupported_connection"
    assert observer.jobs() == 1


def test_block_that_was_ended_inside_is_refused(engine, observer):
    with engine.connect() as connection, connection.begin() as block:
        block.rollback()
        with pytest.raises(ValidationError) as caught:
            enqueue_one(connection)

    assert caught.value.code == "db.unsupported_connection"
    assert observer.jobs() == 0


def test_exhausted_pool_of_the_engine_is_unavailable(engine, runledger_database):
    small = sqlalchemy.create_engine(
        engine.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0
    )

    with small.connect(), Session(small) as session, pytest.raises(UnavailableError) as caught:
        enqueue_one(session)
    small.dispose()

    assert caught.value.code == "db.unavailable"


def test_server_that_is_not_there_is_unavailable():
    engine = sqlalchemy.create_engine("postgresql+psycopg://127.0.0.1:1/none")

    with Session(engine) as session, pytest.raises(QueryError) as caught:
        enqueue_one(session)
    engine.dispose()

    assert caught.value.code == "db.unavailable"
    assert "127.0.0.1" not in str(caught.value)
