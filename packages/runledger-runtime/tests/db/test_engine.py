from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_runtime import engine
from runledger_runtime.engine import EngineConnections
from runledger_test_support import FaultProxy, ProxyMode


def test_overdue_answer_breaks_the_connection(runledger_database):
    errors: list[psycopg.Error] = []

    with FaultProxy(runledger_database.dsn) as proxy:
        connections = EngineConnections(ConnectionPool(proxy.dsn, open=False))
        connection = connections.connect("test")
        proxy.set_mode(ProxyMode.BLACKHOLE)

        def ask() -> None:
            try:
                with connections.use(connection, 0.1):
                    connection.execute("SELECT 1")
            except psycopg.Error as error:
                errors.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(10)
        was_answered_in_time = not asking.is_alive()
    connections.close()

    assert was_answered_in_time
    assert [type(error) for error in errors] == [psycopg.OperationalError]
    assert connection.closed


def test_use_that_waits_for_a_lock_is_canceled_at_the_server(runledger_database, eventually):
    connections = EngineConnections(ConnectionPool(runledger_database.direct_dsn, open=False))
    connection = connections.connect("test")
    host = runledger_database.connect_directly()
    host.execute("LOCK TABLE runledger.job_workers")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"

    with pytest.raises(psycopg.errors.QueryCanceled), connections.use(connection, 1.0):
        connection.execute("SELECT FROM runledger.job_workers")
    connections.close()

    eventually(lambda: host.execute(waiting).fetchone() == (0,))
    # The request may come late, and meet what is sent next.
    assert connection.closed


def test_link_that_froze_while_it_was_configured_is_given_up(runledger_database, monkeypatch):
    monkeypatch.setattr(engine, "_CONFIGURE_SECONDS", 0.5)
    errors: list[psycopg.Error] = []
    with FaultProxy(runledger_database.dsn) as proxy:

        def configure(connection: psycopg.Connection) -> None:
            proxy.set_mode(ProxyMode.BLACKHOLE)
            connection.execute("SELECT 1")

        connections = EngineConnections(ConnectionPool(proxy.dsn, configure=configure, open=False))

        def connect() -> None:
            try:
                connections.connect("test")
            except psycopg.Error as error:
                errors.append(error)

        connecting = threading.Thread(target=connect, daemon=True)
        connecting.start()
        connecting.join(10)
        was_given_up = not connecting.is_alive()
    connections.close()

    assert was_given_up
    assert [type(error) for error in errors] == [psycopg.OperationalError]
