from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from runledger_core import ConflictError, JobEnqueue, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.errors import QueryError

INSERT_ORDER = "INSERT INTO public.orders VALUES (%s)"
SEE_ORDERS = "SELECT count(*) FROM public.orders"
REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")
OTHER_REQUEST = JobEnqueue("test.job", {"n": 2}, idempotency_key="key")


@pytest.fixture
def database(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
        connection.execute("CREATE TABLE public.orders (id int4 PRIMARY KEY)")
    return runledger_database


def enqueue_one(db):
    return [enqueue_job(db, JobEnqueue("test.job", {"n": 1}))]


def enqueue_keyed(db):
    return [enqueue_job(db, REQUEST)]


def enqueue_keyed_batch(db):
    return enqueue_jobs(db, [REQUEST, REQUEST])


ways = pytest.mark.parametrize("enqueue", [enqueue_one, enqueue_keyed, enqueue_keyed_batch])
thresholds = pytest.mark.parametrize("prepare_threshold", [0, None, 5])


@ways
@thresholds
def test_job_is_committed_inside_an_autocommit_pipeline(
    database, observer, enqueue, prepare_threshold
):
    connection = database.connect(autocommit=True)
    connection.prepare_threshold = prepare_threshold

    with connection.pipeline():
        connection.execute(INSERT_ORDER, [1])
        enqueued = enqueue(connection)
        assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1)
        cursor = connection.execute("SELECT id FROM runledger.job_queue")

        assert cursor.fetchone() == (enqueued[0].id,)


@ways
@thresholds
def test_transaction_in_a_pipeline_is_joined(database, observer, enqueue, prepare_threshold):
    connection = database.connect()
    connection.prepare_threshold = prepare_threshold

    with connection.pipeline():
        for number in range(7):
            connection.execute(INSERT_ORDER, [number])
            assert enqueue(connection)[0].id
        assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)
        connection.commit()

    assert observer.jobs() == (7 if enqueue is enqueue_one else 1)


@ways
def test_pipeline_that_is_rolled_back_takes_the_job_with_it(database, observer, enqueue):
    connection = database.connect()

    with connection.pipeline():
        connection.execute(INSERT_ORDER, [1])
        enqueue(connection)
        connection.rollback()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)


@ways
@pytest.mark.parametrize("autocommit", [True, False])
def test_transaction_block_in_a_pipeline_is_joined(database, observer, enqueue, autocommit):
    connection = database.connect(autocommit=autocommit)

    with connection.pipeline(), connection.transaction():
        enqueue(connection)
        connection.execute(INSERT_ORDER, [1])
        assert observer.jobs() == 0
    connection.commit()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1)


@pytest.mark.parametrize("requests", [[OTHER_REQUEST], [OTHER_REQUEST, REQUEST]])
@pytest.mark.parametrize("autocommit", [True, False])
@thresholds
def test_refusal_leaves_the_pipeline_usable(
    database, observer, autocommit, requests, prepare_threshold
):
    enqueue_keyed(database.connect(autocommit=True))
    connection = database.connect(autocommit=autocommit)
    connection.prepare_threshold = prepare_threshold

    with connection.pipeline(), connection.transaction():
        connection.execute(INSERT_ORDER, [1])
        with pytest.raises(ConflictError):
            enqueue_jobs(connection, requests)
        connection.execute(INSERT_ORDER, [2])
    connection.commit()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 2)


@pytest.mark.parametrize("autocommit", [True, False])
def test_error_of_a_queued_command_is_told_apart_from_ours(database, observer, autocommit):
    connection = database.connect(autocommit=autocommit)

    with connection.pipeline():
        connection.execute("SELECT 1 / 0")
        with pytest.raises(ValidationError) as caught:
            enqueue_one(connection)

    assert caught.value.code == "db.transaction_aborted"
    assert isinstance(caught.value.__cause__, psycopg.errors.DivisionByZero)
    connection.rollback()
    enqueue_one(connection)
    connection.commit()
    assert observer.jobs() == 1


def test_failed_transaction_in_a_pipeline_is_refused(database):
    connection = database.connect()

    with connection.pipeline():
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0").fetchone()
        with pytest.raises(QueryError) as caught:
            enqueue_one(connection)
        connection.rollback()
        enqueue_one(connection)

    assert caught.value.code == "db.transaction_aborted"


def test_error_that_psycopg_ignores_in_the_callers_pipeline_is_still_logged(database, caplog):
    connection = database.connect()

    with suppress(ZeroDivisionError), connection.pipeline():
        enqueue_one(connection)
        connection.execute("SELECT 1 / 0")
        raise ZeroDivisionError

    assert [record.message[:32] for record in caplog.records] == [
        "error ignored terminating <psyco"
    ]
