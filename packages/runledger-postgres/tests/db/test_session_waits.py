from __future__ import annotations

import signal
import threading
from contextlib import suppress
from dataclasses import dataclass

import psycopg_pool
import pytest

from runledger_core import ValidationError
from runledger_postgres._rows import Statement, column
from runledger_postgres._session import Bound, run, run_all, transaction
from runledger_postgres.errors import QueryError

INSERT_ORDER = "INSERT INTO public.orders VALUES (%s)"
SEE_ORDERS = "SELECT count(*) FROM public.orders"


@dataclass(frozen=True, slots=True)
class OrderRow:
    id: int


def refuse(value: object) -> object:
    raise ValueError


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    id: int = column(refuse)


LOCK_ORDER: Statement[OrderRow] = Statement(
    "SELECT id FROM public.orders WHERE id = 1 FOR UPDATE", OrderRow
)
ADD_ORDER: Statement[OrderRow] = Statement(
    "INSERT INTO public.orders VALUES (%(id)s::int4) RETURNING id", OrderRow
)
ADD_UNREADABLE: Statement[UnreadableRow] = Statement(
    "INSERT INTO public.orders VALUES (7) RETURNING id", UnreadableRow
)
FAIL: Statement[OrderRow] = Statement("SELECT 1 / 0 AS id", OrderRow)

thresholds = pytest.mark.parametrize("prepare_threshold", [0, None, 5])


@pytest.fixture
def database(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute("CREATE TABLE public.orders (id int4 PRIMARY KEY)")
        connection.execute("INSERT INTO public.orders VALUES (1)")
    return runledger_database


@pytest.fixture
def holder(database):
    """A transaction that holds the row of order 1."""
    connection = database.connect()
    connection.execute("SELECT FROM public.orders WHERE id = 1 FOR UPDATE")
    return connection


def lock_timeout_of(connection) -> str:
    return connection.execute("SHOW lock_timeout").fetchone()[0]


@thresholds
def test_wait_of_a_joined_call_ends_and_leaves_the_transaction_usable(
    database, holder, observer, prepare_threshold
):
    connection = database.connect()
    connection.prepare_threshold = prepare_threshold
    connection.execute(INSERT_ORDER, [2])

    for _ in range(2):
        with pytest.raises(QueryError) as caught:
            run(connection, Bound(LOCK_ORDER), lock_timeout_ms=50)
        assert (caught.value.code, caught.value.sqlstate) == ("db.lock_timeout", "55P03")
        assert caught.value.is_transient
    connection.execute(INSERT_ORDER, [3])
    connection.commit()

    assert observer.value(SEE_ORDERS) == 3


@thresholds
def test_wait_in_a_pipeline_ends_and_leaves_the_transaction_usable(
    database, holder, observer, prepare_threshold
):
    connection = database.connect()
    connection.prepare_threshold = prepare_threshold

    with connection.pipeline():
        connection.execute(INSERT_ORDER, [2])
        with pytest.raises(QueryError) as caught:
            run(connection, Bound(LOCK_ORDER), lock_timeout_ms=50)
        connection.execute(INSERT_ORDER, [3])
        connection.commit()

    assert caught.value.code == "db.lock_timeout"
    assert observer.value(SEE_ORDERS) == 3


def test_call_waits_for_the_holder_and_goes_on(database, holder, observer):
    connection = database.connect()
    found = []
    waiting = threading.Thread(
        target=lambda: found.extend(run(connection, Bound(LOCK_ORDER), lock_timeout_ms=60_000))
    )

    waiting.start()
    observer.until_blocked(connection.info.backend_pid, by=holder.info.backend_pid)
    holder.rollback()
    waiting.join()

    assert found == [OrderRow(1)]


@pytest.mark.parametrize("setting", ["SET lock_timeout = '40ms'", "SET LOCAL lock_timeout = 40"])
def test_shorter_wait_of_the_caller_is_kept(database, holder, setting):
    connection = database.connect()
    connection.execute(setting)

    with pytest.raises(QueryError) as caught:
        run(connection, Bound(LOCK_ORDER), lock_timeout_ms=600_000)

    assert caught.value.code == "db.lock_timeout"
    assert lock_timeout_of(connection) == "40ms"


@pytest.mark.parametrize("setting", ["0", "1ms", "250ms", "7s", "3min", "2h", "1d", "2147483647ms"])
def test_wait_of_the_caller_is_put_back(database, setting):
    connection = database.connect()
    connection.execute(f"SET lock_timeout = '{setting}'")
    before = lock_timeout_of(connection)

    run(connection, Bound(LOCK_ORDER), lock_timeout_ms=5_000)
    after_success = lock_timeout_of(connection)
    with pytest.raises(QueryError):
        run(connection, Bound(FAIL), lock_timeout_ms=5_000)

    assert (after_success, lock_timeout_of(connection)) == (before, before)


def test_connection_of_the_caller_is_idle_after_our_own_transaction_failed(database, holder):
    connection = database.connect(autocommit=True)

    with pytest.raises(QueryError) as caught:
        run(connection, Bound(LOCK_ORDER), lock_timeout_ms=50)

    assert caught.value.code == "db.lock_timeout"
    assert connection.info.transaction_status.name == "IDLE"
    with pytest.raises(QueryError), transaction(connection) as work:
        work.fetch(Bound(FAIL))
    assert connection.info.transaction_status.name == "IDLE"
    assert connection.autocommit


def test_row_that_cannot_be_read_leaves_the_joined_write_and_the_transaction(database, observer):
    connection = database.connect()

    with pytest.raises(QueryError) as caught:
        run(connection, Bound(ADD_UNREADABLE), lock_timeout_ms=5_000)
    connection.execute(INSERT_ORDER, [8])
    connection.commit()

    assert caught.value.code == "job.undecodable_row"
    assert observer.value("SELECT array_agg(id ORDER BY id) FROM public.orders") == [1, 7, 8]


def test_wait_of_our_own_transaction_ends_and_sets_nothing_for_the_next(database, holder):
    with psycopg_pool.ConnectionPool(
        database.dsn, min_size=1, max_size=1, open=True, kwargs={"autocommit": True}
    ) as pool:
        with pytest.raises(QueryError) as caught:
            run(pool, Bound(LOCK_ORDER), lock_timeout_ms=50)
        holder.rollback()
        found = run(pool, Bound(LOCK_ORDER), lock_timeout_ms=50)

        assert caught.value.code == "db.lock_timeout"
        assert found == [OrderRow(1)]
        with pool.connection() as connection:
            assert lock_timeout_of(connection) == "0"


@pytest.mark.parametrize(
    ("lock_timeout_ms", "code"),
    [
        (0, "input.out_of_range"),
        (-1, "input.out_of_range"),
        (2**31, "input.out_of_range"),
        (True, "input.wrong_type"),
        (1.5, "input.wrong_type"),
    ],
)
def test_wait_that_postgresql_would_not_take_is_refused_before(database, lock_timeout_ms, code):
    connection = database.connect()

    with pytest.raises(ValidationError) as caught:
        run(connection, Bound(LOCK_ORDER), lock_timeout_ms=lock_timeout_ms)

    assert (caught.value.code, caught.value.field) == (code, "lock_timeout_ms")
    assert connection.info.transaction_status.name == "IDLE"


def test_interrupted_wait_leaves_the_callers_transaction_usable(database, holder, observer):
    connection = database.connect()
    connection.execute(INSERT_ORDER, [2])

    main_thread = threading.get_ident()

    def interrupt() -> None:
        observer.until_blocked(connection.info.backend_pid)
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(connection, Bound(LOCK_ORDER), lock_timeout_ms=60_000)
    thread.join()
    connection.commit()

    assert observer.value(SEE_ORDERS) == 2


@pytest.mark.parametrize("in_pipeline", [True, False])
def test_savepoint_undoes_our_part_alone(database, observer, in_pipeline):
    connection = database.connect()

    def add_and_fail() -> None:
        with transaction(connection, savepoint=True) as work:
            work.fetch(Bound(ADD_ORDER, {"id": 3}))
            raise ZeroDivisionError

    def use() -> None:
        connection.execute(INSERT_ORDER, [2])
        with suppress(ZeroDivisionError):
            add_and_fail()
        with transaction(connection, savepoint=True) as work:
            work.fetch(Bound(ADD_ORDER, {"id": 4}))
        connection.execute(INSERT_ORDER, [5])

    if in_pipeline:
        with connection.pipeline():
            use()
    else:
        use()
    connection.commit()

    assert observer.value("SELECT array_agg(id ORDER BY id) FROM public.orders") == [1, 2, 4, 5]


def test_joined_statements_share_one_pipeline(database, observer):
    connection = database.connect()

    rows = run_all(connection, [Bound(ADD_ORDER, {"id": 2}), Bound(ADD_ORDER, {"id": 3})])
    connection.commit()

    assert rows == [[OrderRow(2)], [OrderRow(3)]]
    assert observer.value(SEE_ORDERS) == 3


def test_connection_lost_while_a_savepoint_is_open_keeps_the_first_error(database, observer):
    connection = database.connect()
    pid = connection.info.backend_pid

    def lose() -> None:
        with transaction(connection, savepoint=True) as work:
            work.fetch(Bound(ADD_ORDER, {"id": 2}))
            observer.value("SELECT pg_terminate_backend(%(pid)s)", pid=pid)
            observer.until_gone(pid)
            work.fetch(Bound(ADD_ORDER, {"id": 3}))

    with pytest.raises(QueryError) as caught:
        lose()

    assert caught.value.code == "db.unavailable"
    assert connection.closed
