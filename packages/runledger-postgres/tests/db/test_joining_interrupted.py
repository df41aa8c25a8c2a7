from __future__ import annotations

import signal

import psycopg
import pytest

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job
from runledger_postgres.errors import QueryError
from runledger_postgres.schedules import delete_job_schedule

REQUEST = JobEnqueue("test.job", {"n": 1})
KEYED_REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")
MANY = 1_000


class StruckConnection(psycopg.Connection):
    """A connection that Ctrl-C strikes in a chosen one of its waits, in psycopg's own code."""

    waits_until_struck: int | None = None

    def wait(self, gen, *arguments, **options):
        if self.waits_until_struck is not None:
            self.waits_until_struck -= 1
            if self.waits_until_struck == 0:
                self.waits_until_struck = None
                gen = struck(gen)
        return super().wait(gen, *arguments, **options)


def struck(gen):
    try:
        yield next(gen)
    except StopIteration:
        raise KeyboardInterrupt from None
    while True:
        # Again, where the first one is still being dealt with.
        gen.throw(KeyboardInterrupt)


@pytest.fixture
def connect(database):
    connections = []

    def connect(**settings):
        connections.append(StruckConnection.connect(database.dsn, **settings))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


def enqueue_plain(db):
    enqueue_job(db, REQUEST)


def enqueue_keyed(db):
    enqueue_job(db, KEYED_REQUEST)


def delete_schedule(db):
    # Inside a savepoint.
    delete_job_schedule(db, "nobody")


ways = pytest.mark.parametrize("call", [enqueue_plain, enqueue_keyed, delete_schedule])


def waits_of(connection, call) -> int:
    connection.waits_until_struck = MANY
    call(connection)
    return MANY - connection.waits_until_struck


@pytest.mark.core
@ways
@pytest.mark.parametrize("autocommit", [True, False])
def test_interruption_is_told_as_such_wherever_it_strikes(connect, observer, autocommit, call):
    measured = connect(autocommit=autocommit)
    waits = waits_of(measured, call)
    measured.rollback()
    assert waits > 2

    for wait in range(1, waits + 1):
        connection = connect(autocommit=autocommit)
        connection.waits_until_struck = wait

        with pytest.raises(KeyboardInterrupt):
            call(connection)

        # Usable, or closed where psycopg cannot get it out of its pipeline.
        if not connection.closed:
            connection.rollback()
            call(connection)
            connection.rollback()


def call_in_pipeline(connection, call, wait: int) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.waits_until_struck = wait
        call(connection)


@ways
def test_interruption_in_a_pipeline_of_the_caller_is_told_as_such(connect, call):
    with connect() as connection, connection.pipeline():
        waits = waits_of(connection, call)
    for wait in range(1, waits + 1):
        connection = connect()

        with pytest.raises(KeyboardInterrupt):
            call_in_pipeline(connection, call, wait)


def enqueue_after_an_interruption(db) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        enqueue_plain(db)


def test_interruption_of_before_is_not_taken_for_one_of_the_call(connect):
    connection = connect()
    connection.read_only = True

    with pytest.raises(QueryError) as caught:
        enqueue_after_an_interruption(connection)

    assert caught.value.code == "db.read_only"


def test_connection_that_an_interruption_left_in_pipeline_mode_is_closed(connect, observer):
    connection = connect()
    # The last wait is the pipeline's end.
    connection.waits_until_struck = waits_of(connect(), enqueue_plain)

    with pytest.raises(KeyboardInterrupt):
        enqueue_plain(connection)

    assert connection.closed
    assert observer.jobs() == 0
