from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core import UnavailableError
from runledger_test_support.databases import TemporaryDatabase
from runledger_test_support.proxy import CutPoint, FaultProxy, ProxyMode

INSERT = "INSERT INTO facts VALUES (1)"


@pytest.fixture
def database(runledger_unmigrated_database: TemporaryDatabase) -> TemporaryDatabase:
    with psycopg.connect(runledger_unmigrated_database.dsn) as connection:
        connection.execute("CREATE TABLE facts (value int4)")
    return runledger_unmigrated_database


@pytest.fixture
def proxy(database: TemporaryDatabase) -> Iterator[FaultProxy]:
    with FaultProxy(database.dsn) as proxy:
        yield proxy


def count_facts(database: TemporaryDatabase) -> object:
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute("SELECT count(*) FROM facts").fetchone()
    return row[0] if row else None


def pipelined(connection: psycopg.Connection[tuple[object, ...]], *statements: str) -> None:
    with connection.pipeline():
        for statement in statements:
            connection.execute(statement.encode())


def test_everything_is_forwarded(database: TemporaryDatabase, proxy: FaultProxy) -> None:
    text = "x" * 3_000_000
    with psycopg.connect(proxy.dsn) as connection:
        connection.execute(INSERT)
        row = connection.execute("SELECT %s || 'y'", [text]).fetchone()

    assert row == (text + "y",)
    assert count_facts(database) == 1


def test_refused_connections_fail_and_existing_ones_go_on(proxy: FaultProxy) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.set_mode(ProxyMode.REFUSE)

        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(proxy.dsn)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_connections_work_again_after_refusal(proxy: FaultProxy) -> None:
    proxy.set_mode(ProxyMode.REFUSE)
    proxy.set_mode(ProxyMode.REFUSE)
    proxy.set_mode(ProxyMode.PASS)

    with psycopg.connect(proxy.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_reset_ends_new_and_existing_connections(proxy: FaultProxy) -> None:
    with psycopg.connect(proxy.dsn) as connection:
        proxy.set_mode(ProxyMode.RESET)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.dsn)


def test_reset_is_seen_as_a_reset(proxy: FaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        proxy.set_mode(ProxyMode.RESET)

        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_severed_connections_end_and_new_ones_work(proxy: FaultProxy) -> None:
    with psycopg.connect(proxy.dsn) as connection:
        proxy.sever()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with psycopg.connect(proxy.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_server_forgets_a_severed_session(database: TemporaryDatabase, proxy: FaultProxy) -> None:
    with closing(psycopg.connect(proxy.dsn)) as connection:
        connection.execute("LOCK TABLE facts")
        proxy.sever()

        with psycopg.connect(database.dsn) as other:
            other.execute("SET lock_timeout = '10s'")
            other.execute(INSERT)

    assert count_facts(database) == 1


def test_blackhole_holds_bytes_back_until_it_ends(proxy: FaultProxy) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.set_mode(ProxyMode.BLACKHOLE)
        answers: list[object] = []
        thread = threading.Thread(
            target=lambda: answers.append(connection.execute("SELECT 1").fetchone())
        )
        thread.start()
        thread.join(0.1)
        assert answers == []

        proxy.set_mode(ProxyMode.PASS)
        thread.join()

    assert answers == [(1,)]


def test_blackhole_accepts_connections_without_an_answer(proxy: FaultProxy) -> None:
    proxy.set_mode(ProxyMode.BLACKHOLE)

    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(proxy.dsn, connect_timeout=2)


def test_delay_slows_each_round_trip(proxy: FaultProxy) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.set_mode(ProxyMode.DELAY, delay_seconds=0.05)
        begun = time.monotonic()

        connection.execute("SELECT 1")

        assert time.monotonic() - begun >= 0.1


def test_half_closed_connection_still_reaches_the_server(
    database: TemporaryDatabase, proxy: FaultProxy
) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.half_close()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_catalog.pg_sleep(0)")


@pytest.mark.parametrize(
    ("point", "stored"), [(CutPoint.BEFORE_FORWARD, 0), (CutPoint.AFTER_FORWARD, 1)]
)
def test_commit_is_cut(
    database: TemporaryDatabase, proxy: FaultProxy, point: CutPoint, stored: int
) -> None:
    with psycopg.connect(proxy.dsn) as connection:
        trap = proxy.cut_at_commit(point)
        connection.execute(INSERT)

        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert trap.is_fired
    assert count_facts(database) == stored


@pytest.mark.parametrize(
    ("point", "stored"), [(CutPoint.BEFORE_FORWARD, 0), (CutPoint.AFTER_FORWARD, 1)]
)
def test_pipelined_commit_is_cut(
    database: TemporaryDatabase, proxy: FaultProxy, point: CutPoint, stored: int
) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True) as connection:
        proxy.cut_at_commit(point)

        with pytest.raises(psycopg.OperationalError):
            pipelined(connection, "BEGIN", INSERT, "COMMIT")

    assert count_facts(database) == stored


@pytest.mark.parametrize(
    ("point", "stored"), [(CutPoint.BEFORE_FORWARD, 3), (CutPoint.AFTER_FORWARD, 4)]
)
def test_commit_prepared_long_ago_is_cut(
    database: TemporaryDatabase, proxy: FaultProxy, point: CutPoint, stored: int
) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True, prepare_threshold=0) as connection:
        for _ in range(3):
            connection.execute("BEGIN")
            connection.execute(INSERT)
            connection.execute("COMMIT", prepare=True)
        proxy.cut_at_commit(point)
        connection.execute("BEGIN")
        connection.execute(INSERT)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("COMMIT", prepare=True)

    assert count_facts(database) == stored


def test_cut_happens_once(database: TemporaryDatabase, proxy: FaultProxy) -> None:
    proxy.cut_at_commit(CutPoint.AFTER_FORWARD)
    with psycopg.connect(proxy.dsn) as connection:
        connection.execute(INSERT)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    with psycopg.connect(proxy.dsn) as connection:
        connection.execute(INSERT)

    assert count_facts(database) == 2


def test_later_occurrence_is_cut(database: TemporaryDatabase, proxy: FaultProxy) -> None:
    trap = proxy.cut_at_commit(CutPoint.BEFORE_FORWARD, occurrence=2)
    with psycopg.connect(proxy.dsn) as connection:
        connection.execute(INSERT)
        connection.commit()
        assert not trap.is_fired
        connection.execute(INSERT)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert count_facts(database) == 1


def test_other_statements_can_be_cut(database: TemporaryDatabase, proxy: FaultProxy) -> None:
    trap = proxy.cut_at_commit(CutPoint.AFTER_FORWARD, statement=re.compile("INSERT INTO facts"))
    with (
        psycopg.connect(proxy.dsn, autocommit=True) as connection,
        pytest.raises(psycopg.OperationalError),
    ):
        connection.execute("INSERT INTO facts VALUES (%s)", [7])

    assert trap.is_fired
    assert count_facts(database) == 1


def test_pool_recovers_from_a_cut(database: TemporaryDatabase, proxy: FaultProxy) -> None:
    with ConnectionPool(proxy.dsn, min_size=1, max_size=2, open=True) as pool:
        trap = proxy.cut_at_commit(CutPoint.BEFORE_FORWARD)
        with pytest.raises(psycopg.OperationalError), pool.connection() as connection:
            connection.execute(INSERT)
        trap.wait()
        with pool.connection() as connection:
            connection.execute(INSERT)

    assert count_facts(database) == 1


def test_end_of_the_server_session_reaches_the_client(
    database: TemporaryDatabase, proxy: FaultProxy
) -> None:
    with psycopg.connect(proxy.dsn, autocommit=True) as connection:
        with psycopg.connect(database.dsn, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])

        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_absent_server_is_a_reset() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with (
            FaultProxy(f"host=127.0.0.1 port={port} dbname=postgres user=x") as proxy,
            pytest.raises(psycopg.OperationalError),
        ):
            psycopg.connect(proxy.dsn)


def test_waiting_for_a_cut_that_never_comes_ends(proxy: FaultProxy) -> None:
    trap = proxy.cut_at_commit(CutPoint.BEFORE_FORWARD)

    with pytest.raises(UnavailableError) as refused:
        trap.wait(0.01)

    assert refused.value.code == "test_support.wait_timeout"


def test_closed_proxy_refuses_commands_and_leaves_no_thread(database: TemporaryDatabase) -> None:
    proxy = FaultProxy(database.dsn)
    with psycopg.connect(proxy.dsn) as connection:
        proxy.close()
        proxy.close()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")

    with pytest.raises(UnavailableError) as refused:
        proxy.set_mode(ProxyMode.PASS)
    assert refused.value.code == "test_support.proxy_closed"
    assert "runledger-fault-proxy" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("mode", list(ProxyMode))
def test_proxy_closes_in_every_mode(database: TemporaryDatabase, mode: ProxyMode) -> None:
    with FaultProxy(database.dsn) as proxy, psycopg.connect(proxy.dsn, autocommit=True):
        proxy.set_mode(mode, delay_seconds=30)
