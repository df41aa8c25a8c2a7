from __future__ import annotations

import time

from psycopg.conninfo import make_conninfo

from runledger_core import JobEnqueue
from runledger_postgres import connect_pool, enqueue_job
from runledger_postgres.errors import QueryError
from runledger_test_support import FaultProxy, ProxyMode, ScopedEnv

REQUEST = JobEnqueue("test.job", {})


def test_pool_takes_its_connection_string_from_the_environment(database, observer):
    with ScopedEnv({"DATABASE_URL": database.dsn}), connect_pool() as pool:
        enqueue_job(pool, REQUEST)

    assert observer.jobs() == 1


def test_connections_have_the_defaults_that_their_string_does_not_name(database):
    dsn = make_conninfo(database.dsn, connect_timeout=3, application_name="app")

    with connect_pool(dsn, prepare_threshold=None) as pool, pool.connection() as connection:
        parameters = connection.info.get_parameters()
        assert parameters["connect_timeout"] == "3"
        assert parameters["tcp_user_timeout"] == "30000"
        assert parameters["application_name"] == "app"
        assert connection.prepare_threshold is None
        assert connection.info.encoding == "utf-8"


def test_encoding_of_the_database_or_string_gives_way_to_utf8(database, observer):
    dsn = make_conninfo(database.dsn, client_encoding="LATIN1")
    request = JobEnqueue("test.job", {"price": "5 €"}, idempotency_key="é€")

    with connect_pool(dsn) as pool:
        enqueue_job(pool, request)

    assert observer.value("SELECT payload ->> 'price' FROM runledger.job_queue") == "5 €"


def is_served(pool) -> bool:
    try:
        enqueue_job(pool, REQUEST)
    except QueryError as error:
        if error.code != "db.unavailable":
            raise
        return False
    return True


def test_pool_recovers_soon_after_an_outage(database, observer, scaled):
    with FaultProxy(database.dsn) as proxy, connect_pool(proxy.dsn, timeout_seconds=1) as pool:
        assert is_served(pool)
        proxy.set_mode(ProxyMode.REFUSE)
        proxy.sever()
        outage_ends = time.monotonic() + scaled(ci=3, full=35)
        while time.monotonic() < outage_ends:
            assert not is_served(pool)
        proxy.set_mode(ProxyMode.PASS)
        returned_at = time.monotonic()
        while not is_served(pool):
            assert time.monotonic() < returned_at + 10

    assert observer.jobs() == 2
