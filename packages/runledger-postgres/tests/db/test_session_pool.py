from __future__ import annotations

import re
import select
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
import psycopg_pool
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Trace

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres._rows import Statement
from runledger_postgres._session import Bound, run, run_all, transaction
from runledger_postgres.errors import QueryError
from runledger_test_support import CutPoint, FaultProxy

REQUEST = JobEnqueue("test.job", {"n": 1})
KEYED_REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")
UNKNOWN_REQUEST = JobEnqueue("test.none", {})


@dataclass(frozen=True, slots=True)
class ValueRow:
    value: int | str


ADD: Statement[ValueRow] = Statement("SELECT 1 + %(value)s::int8 AS value", ValueRow)
DIVIDE: Statement[ValueRow] = Statement("SELECT 1 / %(value)s::int8 AS value", ValueRow)
ECHO: Statement[ValueRow] = Statement("SELECT %(value)s::text AS value", ValueRow)
LOCK_ORDER: Statement[ValueRow] = Statement(
    "SELECT id AS value FROM public.orders FOR UPDATE", ValueRow
)


@pytest.fixture
def database(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
        connection.execute("CREATE TABLE public.orders (id int4 PRIMARY KEY)")
        connection.execute("INSERT INTO public.orders VALUES (1)")
    return runledger_database


@pytest.fixture
def make_pool(database):
    pools = []

    def make(dsn=database.dsn, pool_class=psycopg_pool.ConnectionPool, **settings):
        settings = {"min_size": 1, "max_size": 1, "timeout": 30, **settings}
        pools.append(pool_class(dsn, open=True, **settings))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


class HeldEnd:
    """Hands on what the server says, but not that it hung up."""

    def __init__(self, dsn: str) -> None:
        server = conninfo_to_dict(dsn)
        self._address = (str(server["host"]), int(str(server["port"])))
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        port = self._sockets[0].getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_exception: object) -> None:
        for each in self._sockets:
            each.close()

    def _start(self, run, *arguments) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._sockets[0].accept()
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                self._start(self._hand_on, client, server)
                self._start(self._hand_on, server, client)

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)


def wait_readable(connection) -> None:
    readable, _, _ = select.select([connection.fileno()], [], [], 30)
    assert readable


def only_connection(pool) -> psycopg.Connection:
    connection = pool.getconn()
    pool.putconn(connection)
    return connection


def pids_of(pool, count: int) -> list[int]:
    connections = [pool.getconn() for _ in range(count)]
    pids = [connection.info.backend_pid for connection in connections]
    for connection in connections:
        pool.putconn(connection)
    return pids


def test_enqueue_is_one_trip_of_begin_statement_and_commit(make_pool, tmp_path):
    pool = make_pool()
    enqueue_job(pool, REQUEST)
    pgconn = only_connection(pool).pgconn
    trace = tmp_path / "trace"

    with trace.open("wb") as file:
        pgconn.trace(file.fileno())
        pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        enqueue_job(pool, REQUEST)
        pgconn.untrace()

    lines = trace.read_text(errors="replace").splitlines()
    directions = "".join(line[0] for line in lines if re.match(r"[FB]\t", line))
    assert re.fullmatch("F+B+", directions)
    completed = [line.split("\t")[-1] for line in lines if "CommandComplete" in line]
    assert completed == [' "BEGIN"', ' "SELECT 1"', ' "COMMIT"']


@pytest.mark.parametrize("autocommit", [True, False])
def test_connection_comes_back_idle_with_its_autocommit(make_pool, autocommit):
    pool = make_pool(kwargs={"autocommit": autocommit})

    enqueue_job(pool, REQUEST)

    connection = only_connection(pool)
    assert connection.autocommit is autocommit
    assert connection.info.transaction_status.name == "IDLE"


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize(
    ("bound", "code"),
    [
        (Bound(DIVIDE, {"value": 0}), "db.query_failed"),
        (Bound(ADD, {"value": object()}), "db.query_failed"),
    ],
    ids=["server", "dump"],
)
def test_connection_survives_an_error(make_pool, caplog, autocommit, bound, code):
    pool = make_pool(kwargs={"autocommit": autocommit})
    before = only_connection(pool)

    with pytest.raises(QueryError) as caught:
        run(pool, bound)

    assert caught.value.code == code
    connection = only_connection(pool)
    assert connection is before
    assert (connection.closed, connection.autocommit) == (False, autocommit)
    assert connection.info.transaction_status.name == "IDLE"
    assert caplog.records == []
    assert run(pool, Bound(ADD, {"value": 1})) == [ValueRow(2)]


def test_error_is_that_of_the_statement_and_not_of_what_was_skipped_behind_it(make_pool):
    pool = make_pool()
    add, fail = Bound(ADD, {"value": 1}), Bound(DIVIDE, {"value": 0})

    for _ in range(50):
        with pytest.raises(QueryError) as caught:
            run_all(pool, [add, fail, add, add, add])

        assert caught.value.sqlstate == "22012"


def test_error_behind_a_value_that_cannot_be_sent_is_not_logged_as_ignored(make_pool, caplog):
    pool = make_pool()

    with pytest.raises(QueryError) as caught:
        run_all(pool, [Bound(DIVIDE, {"value": 0}), Bound(ADD, {"value": object()})])

    assert caught.value.code == "db.query_failed"
    assert caplog.records == []


def test_text_that_cannot_be_sent_leaves_the_connection_usable(make_pool):
    pool = make_pool()

    with pytest.raises(UnicodeEncodeError):
        run(pool, Bound(ECHO, {"value": "\ud800"}))

    assert only_connection(pool).info.transaction_status.name == "IDLE"
    assert run(pool, Bound(ECHO, {"value": "é"})) == [ValueRow("é")]


def test_interruption_leaves_a_usable_connection_and_nothing_stored(make_pool, database, observer):
    pool = make_pool()
    pid = only_connection(pool).info.backend_pid
    holder = database.connect()
    holder.execute("LOCK TABLE runledger.job_queue IN EXCLUSIVE MODE")

    main_thread = threading.get_ident()

    def interrupt() -> None:
        observer.until_blocked(pid)
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        enqueue_job(pool, REQUEST)
    thread.join()
    holder.rollback()

    connection = only_connection(pool)
    assert connection.autocommit is False
    assert connection.info.transaction_status.name == "IDLE"
    assert observer.jobs() == 0
    enqueue_job(pool, REQUEST)
    assert observer.jobs() == 1


def test_connections_that_the_server_ended_while_idle_are_replaced_before_sending(
    make_pool, observer
):
    pool = make_pool(min_size=4, max_size=4)
    pool.wait()
    pids = pids_of(pool, 4)
    for pid in pids:
        observer.value("SELECT pg_terminate_backend(%(pid)s)", pid=pid)
    observer.until_gone(*pids)

    for count in range(1, 6):
        enqueue_job(pool, REQUEST)
        assert observer.jobs() == count


def test_last_word_of_the_server_is_noticed_before_the_end_of_the_stream(
    database, make_pool, observer
):
    with HeldEnd(database.dsn) as held, make_pool(held.dsn) as pool:
        connection = only_connection(pool)
        pid = connection.info.backend_pid
        observer.value("SELECT pg_terminate_backend(%(pid)s)", pid=pid)
        wait_readable(connection)

        enqueue_job(pool, REQUEST)

        assert observer.jobs() == 1
        assert connection.closed


def test_notification_or_notice_in_the_buffer_is_no_end(make_pool, database):
    pool = make_pool(kwargs={"autocommit": True})
    connection = only_connection(pool)
    connection.execute("LISTEN something")
    database.connect(autocommit=True).execute("NOTIFY something")
    wait_readable(connection)

    enqueue_job(pool, REQUEST)

    assert only_connection(pool) is connection
    assert [notify.channel for notify in connection.notifies(timeout=0)] == ["something"]


def test_closed_connection_in_the_pool_is_replaced(make_pool, observer):
    pool = make_pool()
    only_connection(pool).close()

    enqueue_job(pool, REQUEST)

    assert observer.jobs() == 1


@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT 1 / 0", "SELECT pg_sleep(0)"])
def test_pool_user_who_left_a_transaction_open_poisons_nobody(make_pool, observer, statement):
    pool = make_pool()
    connection = pool.getconn()
    if "sleep" in statement:
        # Left in mid-command.
        connection.pgconn.send_query(statement.encode())
    else:
        with suppress(psycopg.Error):
            connection.execute(statement)
    pool.putconn(connection)

    enqueue_job(pool, REQUEST)

    assert observer.jobs() == 1


def test_check_of_the_pool_that_leaves_a_transaction_open_is_no_harm(make_pool, observer):
    pool = make_pool(check=lambda connection: connection.execute("SELECT 1"))

    enqueue_job(pool, REQUEST)

    assert observer.jobs() == 1
    assert only_connection(pool).autocommit is False


def test_pool_of_one_serves_every_operation(make_pool, observer):
    pool = make_pool(timeout=2)

    enqueue_job(pool, REQUEST)
    enqueue_job(pool, KEYED_REQUEST)
    enqueue_jobs(pool, [KEYED_REQUEST, REQUEST, KEYED_REQUEST])

    assert observer.jobs() == 3


def test_pool_whose_close_returns_connections_loses_none(make_pool, observer):
    pool = make_pool(close_returns=True)
    pid = only_connection(pool).info.backend_pid
    observer.value("SELECT pg_terminate_backend(%(pid)s)", pid=pid)
    observer.until_gone(pid)

    enqueue_job(pool, REQUEST)
    enqueue_job(pool, REQUEST)

    assert observer.jobs() == 2


def test_pool_without_connections_of_its_own_works(make_pool, observer):
    pool = make_pool(pool_class=psycopg_pool.NullConnectionPool, min_size=0)

    enqueue_job(pool, REQUEST)
    with pytest.raises(QueryError):
        enqueue_job(pool, UNKNOWN_REQUEST)
    enqueue_jobs(pool, [KEYED_REQUEST, REQUEST])

    assert observer.jobs() == 3


def test_null_pool_that_cannot_connect_is_unavailable(make_pool, database):
    dsn = make_conninfo(database.dsn, dbname="none")
    pool = make_pool(dsn, pool_class=psycopg_pool.NullConnectionPool, min_size=0)

    with pytest.raises(QueryError) as caught:
        enqueue_job(pool, REQUEST)

    assert caught.value.code == "db.unavailable"


def test_exhausted_pool_is_unavailable(make_pool):
    pool = make_pool(timeout=0.01)

    with pool.connection(timeout=30), pytest.raises(QueryError) as caught:
        enqueue_job(pool, REQUEST)

    assert caught.value.code == "db.unavailable"
    assert isinstance(caught.value.__cause__, psycopg_pool.PoolTimeout)


def test_pool_with_too_many_waiting_is_unavailable(make_pool):
    pool = make_pool(max_waiting=1)

    with pool.connection():
        waiting = threading.Thread(target=enqueue_job, args=(pool, REQUEST))
        waiting.start()
        while not pool.get_stats()["requests_waiting"]:
            pass
        with pytest.raises(QueryError) as caught:
            enqueue_job(pool, REQUEST)
    waiting.join()

    assert caught.value.code == "db.unavailable"


@pytest.mark.parametrize("open_first", [True, False])
def test_pool_that_is_not_open_is_unavailable(database, open_first):
    pool = psycopg_pool.ConnectionPool(database.dsn, open=False, min_size=1)
    if open_first:
        pool.open()
        pool.close()

    with pytest.raises(QueryError) as caught:
        enqueue_job(pool, REQUEST)

    assert caught.value.code == "db.unavailable"


@pytest.mark.parametrize(
    ("point", "stored"), [(CutPoint.BEFORE_FORWARD, 0), (CutPoint.AFTER_FORWARD, 1)]
)
def test_connection_lost_at_commit_is_an_unknown_outcome(
    database, make_pool, observer, point, stored
):
    with FaultProxy(database.dsn) as proxy, make_pool(proxy.dsn) as pool:
        proxy.cut_at_commit(point)

        with pytest.raises(QueryError) as caught:
            enqueue_job(pool, REQUEST)

        assert caught.value.code == "db.outcome_unknown"
        assert observer.jobs() == stored
        enqueue_job(pool, REQUEST)
        assert observer.jobs() == stored + 1


class StumblingConnection(psycopg.Connection):
    """Fails as psycopg does when the server's last word comes between the commit and its end."""

    @contextmanager
    def pipeline(self):
        with super().pipeline() as pipeline:
            yield pipeline
        raise psycopg.OperationalError("cannot exit pipeline mode while busy")


def test_driver_that_stumbles_over_the_servers_last_word_leaves_the_outcome_unknown(
    database, make_pool, observer
):
    with make_pool(database.dsn, connection_class=StumblingConnection) as pool:
        with pytest.raises(QueryError) as caught:
            enqueue_job(pool, REQUEST)

        assert caught.value.code == "db.outcome_unknown"
    assert observer.jobs() == 1


@pytest.mark.parametrize("point", list(CutPoint))
@pytest.mark.parametrize("count", [1, 2])
def test_keyed_enqueue_may_be_repeated_after_an_unknown_outcome(
    database, make_pool, observer, point, count
):
    requests = [KEYED_REQUEST, REQUEST][:count]
    with FaultProxy(database.dsn) as proxy, make_pool(proxy.dsn) as pool:
        proxy.cut_at_commit(point)
        with pytest.raises(QueryError) as caught:
            enqueue_jobs(pool, requests)

        enqueued = enqueue_job(pool, KEYED_REQUEST)

    assert caught.value.code == "db.outcome_unknown"
    was_stored = point is CutPoint.AFTER_FORWARD
    assert enqueued.disposition == ("EXISTING" if was_stored else "INSERTED")
    assert observer.value("SELECT count(idempotency_key) FROM runledger.job_queue") == 1


def test_connection_lost_in_the_first_trip_of_two_is_no_unknown_outcome(
    database, make_pool, observer
):
    with FaultProxy(database.dsn) as proxy, make_pool(proxy.dsn) as pool:
        proxy.cut_at_commit(CutPoint.AFTER_FORWARD, statement=re.compile("WITH requested"))

        with pytest.raises(QueryError) as caught:
            enqueue_jobs(pool, [KEYED_REQUEST, REQUEST])

    assert caught.value.code == "db.unavailable"
    assert observer.jobs() == 0


def test_transaction_of_a_pool_is_rolled_back_when_its_block_raises(make_pool):
    pool = make_pool()

    with suppress(ZeroDivisionError), transaction(pool) as work:
        work.fetch(Bound(LOCK_ORDER))
        raise ZeroDivisionError

    assert only_connection(pool).info.transaction_status.name == "IDLE"


def test_transaction_whose_failure_was_swallowed_does_not_pass_for_committed(make_pool):
    pool = make_pool()

    def swallow() -> None:
        with transaction(pool) as work, suppress(QueryError):
            work.fetch(Bound(DIVIDE, {"value": 0}))

    with pytest.raises(QueryError) as caught:
        swallow()

    assert caught.value.code == "db.transaction_aborted"
    assert only_connection(pool).info.transaction_status.name == "IDLE"


def test_transaction_without_statements_sends_nothing(make_pool, tmp_path):
    pool = make_pool()
    pgconn = only_connection(pool).pgconn
    trace = tmp_path / "trace"

    with trace.open("wb") as file:
        pgconn.trace(file.fileno())
        with transaction(pool):
            pass
        pgconn.untrace()

    assert trace.read_text() == ""
