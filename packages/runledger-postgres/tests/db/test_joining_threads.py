from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest
import sqlalchemy

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job
from runledger_postgres._database import _TURNS, open_connection
from runledger_postgres._rows import Statement
from runledger_postgres._session import Bound, transaction

THREADS = 4
CALLS = 40
LONG_ENOUGH = 30


@dataclass(frozen=True, slots=True)
class OneRow:
    one: int


SEE_ONE: Statement[OneRow] = Statement("SELECT 1 AS one", OneRow)


class WatchedTurn:
    """Tells when somebody has to wait for his turn."""

    def __init__(self, events) -> None:
        self._events = events
        self._lock = threading.RLock()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self._events.put("waits")
            self._lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()


def enqueue_one(db, number):
    return enqueue_job(db, JobEnqueue("test.job", {"n": number}))


def enqueue_keyed(db, number):
    key = f"{threading.get_ident()}:{number}"
    return enqueue_job(db, JobEnqueue("test.job", {"n": number}, idempotency_key=key))


def results_of_threads(call) -> list[object]:
    """Call in several threads at once; a thread that hangs is left behind."""
    results = SimpleQueue()
    start = threading.Barrier(THREADS)

    def run() -> None:
        start.wait()
        for number in range(CALLS):
            try:
                results.put(call(number).id)
            except Exception as error:  # noqa: BLE001  # shown by the test
                results.put(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_ENOUGH)
        assert not thread.is_alive()
    return [results.get() for _ in range(THREADS * CALLS)]


@pytest.mark.parametrize("enqueue", [enqueue_one, enqueue_keyed])
@pytest.mark.parametrize("autocommit", [True, False])
def test_calls_of_threads_that_share_a_connection_take_turns(
    database, observer, enqueue, autocommit
):
    connection = database.connect(autocommit=autocommit)

    ids = results_of_threads(lambda number: enqueue(connection, number))
    connection.commit()

    assert observer.jobs() == THREADS * CALLS
    assert observer.value(
        "SELECT count(*) FROM runledger.job_queue WHERE id = ANY (%(ids)s)", ids=ids
    ) == len(ids)


def test_job_of_one_thread_is_not_undone_by_the_call_of_another(database, observer, background):
    connection = database.connect()
    events: SimpleQueue[str] = SimpleQueue()
    turn: Any = WatchedTurn(events)
    _TURNS[connection] = turn

    def enqueue_meanwhile() -> None:
        enqueue_one(connection, 1)
        events.put("ended")

    with suppress(ZeroDivisionError), transaction(connection, savepoint=True) as work:
        work.fetch(Bound(SEE_ONE))
        background.submit(enqueue_meanwhile)
        assert events.get(timeout=LONG_ENOUGH) == "waits"
        raise ZeroDivisionError
    assert events.get(timeout=LONG_ENOUGH) == "ended"
    connection.commit()

    assert observer.jobs() == 1


def test_sqlalchemy_connection_takes_turns_with_the_driver_connection_inside_it(database, observer):
    url = sqlalchemy.make_url(database.dsn).set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        enqueue_one(connection, 0)
        both = [connection, connection.connection.driver_connection]

        results_of_threads(lambda number: enqueue_one(both[number % 2], number))
        connection.commit()
    engine.dispose()

    assert observer.jobs() == 1 + THREADS * CALLS


def test_call_inside_a_call_does_not_wait_for_itself(database, observer):
    connection = database.connect()

    with open_connection(connection) as opened:
        enqueue_one(opened.connection, 1)
    connection.commit()

    assert observer.jobs() == 1


def test_nothing_is_kept_of_a_connection_that_is_gone(database):
    with psycopg.connect(database.dsn) as connection:
        enqueue_one(connection, 1)
    known = weakref.ref(connection)
    assert known in _TURNS.keyrefs()

    del connection
    gc.collect()

    assert known() is None
    assert known not in _TURNS.keyrefs()
