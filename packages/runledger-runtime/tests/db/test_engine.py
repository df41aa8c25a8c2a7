from __future__ import annotations

import threading

import psycopg
from psycopg_pool import ConnectionPool

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
                with connections.deadline(connection, 0.1):
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
