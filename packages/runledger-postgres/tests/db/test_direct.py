"""Connections outside of a pool, and breaking one from another thread."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import psycopg
import pytest

from runledger_postgres.direct import shut_down

SLEEPING = """
SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = %(pid)s::int4 AND wait_event = 'PgSleep'
"""


@pytest.fixture
def waiting(runledger_database, observer):
    """A connection whose thread waits for an answer, the thread, and its error."""
    connection = runledger_database.connect_directly(autocommit=True)
    errors = []

    def wait() -> None:
        try:
            connection.execute("SELECT pg_sleep(600)")
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    observer.until(SLEEPING, pid=connection.info.backend_pid)
    return connection, thread, errors


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def answers(connection) -> bool:
    try:
        return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_thread_that_waits_on_a_connection_is_woken(waiting):
    connection, thread, errors = waiting
    before = open_descriptors()

    shut_down(connection)

    thread.join(10)
    assert [type(error) for error in errors] == [psycopg.OperationalError]
    assert connection.closed
    # libpq's own, closed by libpq.
    assert open_descriptors() == before - 1


def test_thread_is_woken_by_a_process_without_a_descriptor_to_spare(waiting):
    connection, thread, errors = waiting
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        shut_down(connection)
        thread.join(10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert [type(error) for error in errors] == [psycopg.OperationalError]


def test_connection_whose_descriptor_went_to_somebody_else_is_left_alone(
    runledger_database, monkeypatch
):
    connection = runledger_database.connect_directly(autocommit=True)
    other = runledger_database.connect_directly(autocommit=True)
    numbers = [other.fileno(), connection.fileno()]
    # As if libpq had closed its socket, and another had got the number, between the two looks.
    monkeypatch.setattr(type(connection), "fileno", lambda _self: numbers.pop(0))

    shut_down(connection)

    monkeypatch.undo()
    assert (answers(other), answers(connection)) == (True, True)
