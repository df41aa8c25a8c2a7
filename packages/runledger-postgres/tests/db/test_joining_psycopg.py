from __future__ import annotations

from contextlib import nullcontext, suppress
from datetime import UTC
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.adapt import PyFormat
from psycopg.pq import Format
from psycopg.rows import args_row, dict_row, kwargs_row, namedtuple_row, scalar_row, tuple_row

from runledger_core import (
    ConflictError,
    JobEnqueue,
    JobScheduleUpsert,
    Scope,
    ValidationError,
)
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.errors import QueryError
from runledger_postgres.jobs import JobRecord
from runledger_postgres.schedules import (
    delete_job_schedule,
    set_job_schedule_active,
    upsert_job_schedule,
)

BYTES_OID = 17
BYTES_LOADER: Any = psycopg.adapters.get_loader(BYTES_OID, Format.TEXT)
BYTES_DUMPER = psycopg.adapters.get_dumper(bytes, PyFormat.BINARY)
INSERT_ORDER = "INSERT INTO public.orders VALUES (%s)"
SEE_ORDERS = "SELECT count(*) FROM public.orders"


@pytest.fixture
def database(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
        connection.execute("CREATE TABLE public.orders (id int4 PRIMARY KEY)")
    return runledger_database


def enqueue_one(db):
    return enqueue_job(db, JobEnqueue("test.job", {"n": 1}))


def enqueue_keyed(db):
    return enqueue_job(db, JobEnqueue("test.job", {"n": 1}, idempotency_key="key"))


def enqueue_keyed_batch(db):
    request = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")
    # The second is the first's job: each way makes one.
    return enqueue_jobs(db, [request, request])[0]


def read(db, job_id: UUID) -> JobRecord:
    job = get_job(db, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job


ways = pytest.mark.parametrize("enqueue", [enqueue_one, enqueue_keyed, enqueue_keyed_batch])
places = pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])


def order_then(connection, *, is_first: bool) -> None:
    if not is_first:
        connection.execute(INSERT_ORDER, [1])


@ways
def test_idle_autocommit_connection_gets_a_transaction_of_our_own(database, observer, enqueue):
    connection = database.connect(autocommit=True)

    enqueue(connection)

    assert observer.jobs() == 1
    assert connection.info.transaction_status.name == "IDLE"


@pytest.mark.core
@ways
@places
def test_transaction_block_of_an_autocommit_connection_is_joined(
    database, observer, enqueue, is_first
):
    connection = database.connect(autocommit=True)

    with connection.transaction():
        order_then(connection, is_first=is_first)
        enqueue(connection)
        assert observer.jobs() == 0

    assert observer.jobs() == 1


@ways
@places
def test_transaction_block_that_raises_takes_the_job_with_it(database, observer, enqueue, is_first):
    connection = database.connect(autocommit=True)

    with suppress(ZeroDivisionError), connection.transaction():
        order_then(connection, is_first=is_first)
        enqueue(connection)
        raise ZeroDivisionError

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)


@ways
@places
def test_connection_without_autocommit_is_never_committed_by_us(
    database, observer, enqueue, is_first
):
    connection = database.connect()

    order_then(connection, is_first=is_first)
    enqueue(connection)

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)
    assert connection.info.transaction_status.name == "INTRANS"


@pytest.mark.core
@ways
@places
def test_commit_of_the_caller_commits_both(database, observer, enqueue, is_first):
    connection = database.connect()

    order_then(connection, is_first=is_first)
    enqueue(connection)
    connection.execute(INSERT_ORDER, [2])
    connection.commit()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1 if is_first else 2)


@pytest.mark.core
@ways
@places
@pytest.mark.parametrize("end", [psycopg.Connection.rollback, psycopg.Connection.close])
def test_rollback_or_close_of_the_caller_undoes_both(database, observer, enqueue, is_first, end):
    connection = database.connect()

    order_then(connection, is_first=is_first)
    enqueue(connection)
    end(connection)

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 0)


@pytest.mark.core
@ways
def test_nested_block_that_is_rolled_back_takes_only_the_job(database, observer, enqueue):
    connection = database.connect()
    connection.execute(INSERT_ORDER, [1])

    with connection.transaction(force_rollback=True):
        enqueue(connection)
    connection.commit()

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 1)


@ways
def test_nested_block_that_ends_well_keeps_the_job(database, observer, enqueue):
    connection = database.connect(autocommit=True)

    with connection.transaction():
        with connection.transaction():
            enqueue(connection)
        connection.execute(INSERT_ORDER, [1])

    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1)


@pytest.mark.core
@ways
@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("prepare_threshold", [0, None, 5])
def test_every_prepare_threshold_works(database, observer, enqueue, autocommit, prepare_threshold):
    connection = database.connect(autocommit=autocommit)
    connection.prepare_threshold = prepare_threshold

    ids = {enqueue(connection).id for _ in range(12)}
    connection.commit()

    assert observer.jobs() == len(ids)


@pytest.mark.parametrize("in_pipeline", [False, True])
@pytest.mark.parametrize("prepare_threshold", [0, 1, None, 5])
def test_refusal_forgets_no_statement_that_is_prepared_after_it(
    database, in_pipeline, prepare_threshold
):
    connection = database.connect()
    connection.prepare_threshold = prepare_threshold

    with connection.pipeline() if in_pipeline else nullcontext():
        for _ in range(3):
            for _ in range(3):
                assert not set_job_schedule_active(connection, "nobody", is_active=True)
            with pytest.raises(QueryError):
                upsert_job_schedule(
                    connection, JobScheduleUpsert("nightly", "nobody", cron_expr="@daily")
                )
            for _ in range(2):
                assert connection.execute("SELECT 1", prepare=True).fetchone() == (1,)


@pytest.mark.core
@pytest.mark.parametrize("calls", range(8))
def test_statement_that_a_refusal_kept_from_the_server_is_prepared_again(database, calls):
    connection, holder = database.connect(), database.connect()
    upsert_job_schedule(holder, JobScheduleUpsert("nightly", "test.job", cron_expr="@daily"))
    holder.commit()
    holder.execute("SELECT FROM runledger.job_schedules FOR UPDATE")

    for number in (1, calls):
        for _ in range(number):
            assert not delete_job_schedule(connection, "nobody")
        with pytest.raises(QueryError) as refused:
            delete_job_schedule(connection, "nightly", lock_timeout_ms=1)
        assert refused.value.code == "db.lock_timeout"

    assert not delete_job_schedule(connection, "nobody")


@ways
@pytest.mark.parametrize(
    "row_factory",
    [
        tuple_row,
        dict_row,
        namedtuple_row,
        scalar_row,
        args_row(lambda *values: values),
        kwargs_row(lambda **values: values),
        lambda cursor: pytest.fail("the caller's row factory was asked"),
    ],
)
@pytest.mark.parametrize("autocommit", [True, False])
def test_rows_are_ours_whatever_the_callers_row_factory(database, enqueue, autocommit, row_factory):
    connection = database.connect(autocommit=autocommit)
    connection.row_factory = row_factory

    job = enqueue(connection)

    assert read(connection, job.id).payload == {"n": 1}
    assert connection.row_factory is row_factory


@ways
@pytest.mark.parametrize(
    "cursor_factory", [psycopg.ClientCursor, psycopg.RawCursor, psycopg.Cursor]
)
@pytest.mark.parametrize("autocommit", [True, False])
def test_cursors_are_ours_whatever_the_callers_cursor_factory(
    database, enqueue, autocommit, cursor_factory
):
    connection = database.connect(autocommit=autocommit)
    connection.cursor_factory = cursor_factory
    connection.server_cursor_factory = psycopg.RawServerCursor

    job = enqueue(connection)

    assert read(connection, job.id).payload == {"n": 1}
    assert connection.cursor_factory is cursor_factory


@pytest.mark.core
def test_open_server_cursor_of_the_caller_goes_on_afterwards(database):
    connection = database.connect()
    with connection.cursor(name="his") as cursor:
        cursor.execute("SELECT generate_series(1, 3)")
        assert cursor.fetchone() == (1,)

        enqueue_one(connection)

        assert cursor.fetchall() == [(2,), (3,)]


@pytest.mark.core
def test_loaders_and_dumpers_of_the_callers_connection_do_not_reach_ours(database):
    connection = database.connect()
    for name in ("uuid", "jsonb", "timestamptz", "int8", "text"):
        connection.adapters.register_loader(name, BYTES_LOADER)
    for kind in (str, int, list):
        connection.adapters.register_dumper(kind, BYTES_DUMPER)
    his = connection.adapters

    job = enqueue_keyed(connection)

    assert read(connection, job.id).payload == {"n": 1}
    assert connection.adapters is his
    assert connection.execute("SELECT 'a'::text").fetchone() == (b"a",)


@ways
@pytest.mark.parametrize("autocommit", [True, False])
def test_transactions_are_begun_once(database, enqueue, autocommit):
    connection = database.connect(autocommit=autocommit)
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))

    enqueue(connection)
    enqueue(connection)

    assert notices == []


@ways
def test_settings_of_the_caller_are_unchanged(database, enqueue):
    connection = database.connect(lock_timeout=None)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    connection.deferrable = True
    connection.execute("SET lock_timeout = '1234ms'")
    connection.execute("SET LOCAL statement_timeout = '54321ms'")

    enqueue(connection)

    assert connection.execute(
        "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
    ).fetchone() == ("1234ms", "54321ms")
    connection.commit()
    assert connection.autocommit is False
    assert connection.isolation_level is psycopg.IsolationLevel.READ_COMMITTED
    assert connection.read_only is False
    assert connection.deferrable is True
    assert connection.prepare_threshold == database.prepare_threshold


@pytest.mark.core
def test_read_only_transaction_is_refused_by_the_server_and_coded(database, observer):
    connection = database.connect()
    connection.read_only = True

    with pytest.raises(QueryError) as caught:
        enqueue_one(connection)

    assert (caught.value.code, caught.value.sqlstate) == ("db.read_only", "25006")
    connection.rollback()
    assert connection.read_only is True
    assert observer.jobs() == 0


@pytest.mark.core
@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize(
    ("requests", "code"),
    [
        ([JobEnqueue("test.none", {})], "job.definition_not_found_or_disabled"),
        (
            [JobEnqueue("test.none", {}, idempotency_key="new")],
            "job.definition_not_found_or_disabled",
        ),
        ([JobEnqueue("test.job", {"n": 2}, idempotency_key="key")], "job.idempotency_conflict"),
        (
            [
                JobEnqueue("test.job", {}, idempotency_key="new"),
                JobEnqueue("test.job", {"n": 2}, idempotency_key="key"),
            ],
            "job.idempotency_conflict",
        ),
    ],
    ids=["type", "keyed-type", "conflict", "conflict-in-batch"],
)
def test_refusal_leaves_the_callers_transaction_usable(
    database, observer, autocommit, requests, code
):
    enqueue_keyed(database.connect(autocommit=True))
    connection = database.connect(autocommit=autocommit)

    with connection.transaction():
        with pytest.raises((ValidationError, ConflictError)) as caught:
            enqueue_jobs(connection, requests)
        connection.execute(INSERT_ORDER, [1])
    connection.commit()

    assert caught.value.code == code
    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (1, 1)


@pytest.mark.core
def test_failed_transaction_is_refused_until_it_is_rolled_back(database, observer):
    connection = database.connect()
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")

    with pytest.raises(ValidationError) as caught:
        enqueue_one(connection)

    assert caught.value.code == "db.transaction_aborted"
    connection.rollback()
    enqueue_one(connection)
    connection.commit()
    assert observer.jobs() == 1


@pytest.mark.core
def test_connection_in_mid_copy_is_refused_and_the_copy_goes_on(database, observer):
    connection = database.connect()
    with connection.cursor().copy("COPY public.orders FROM STDIN") as copy:
        copy.write_row([1])

        with pytest.raises(ValidationError) as caught:
            enqueue_one(connection)

        copy.write_row([2])
    connection.commit()

    assert caught.value.code == "db.connection_busy"
    assert (observer.jobs(), observer.value(SEE_ORDERS)) == (0, 2)


@pytest.mark.core
def test_connection_in_mid_stream_is_refused_and_the_stream_goes_on(database):
    connection = database.connect(autocommit=True)
    stream = connection.cursor().stream("SELECT generate_series(1, 3)")
    assert next(stream) == (1,)

    with pytest.raises(ValidationError) as caught:
        enqueue_one(connection)

    assert caught.value.code == "db.connection_busy"
    assert list(stream) == [(2,), (3,)]


@pytest.mark.core
@pytest.mark.parametrize("autocommit", [True, False])
def test_closed_connection_is_unavailable(database, autocommit):
    connection = database.connect(autocommit=autocommit)
    connection.close()

    with pytest.raises(QueryError) as caught:
        enqueue_one(connection)

    assert caught.value.code == "db.unavailable"


@pytest.mark.core
@pytest.mark.parametrize("autocommit", [True, False])
def test_connection_that_the_server_ended_is_unavailable(database, observer, autocommit):
    connection = database.connect_directly(autocommit=autocommit)
    pid = connection.info.backend_pid
    observer.value("SELECT pg_terminate_backend(%(pid)s)", pid=pid)
    observer.until_gone(pid)

    with pytest.raises(QueryError) as caught:
        enqueue_one(connection)

    assert caught.value.code == "db.unavailable"
    assert observer.jobs() == 0


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_client_encoding_that_cannot_hold_every_text_is_refused(
    database, observer, autocommit, encoding
):
    connection = database.connect(autocommit=autocommit, client_encoding=encoding)

    with pytest.raises(ValidationError) as caught:
        enqueue_one(connection)

    assert caught.value.code == "db.unsupported_encoding"
    connection.execute(INSERT_ORDER, [1])
    connection.commit()
    assert observer.value(SEE_ORDERS) == 1


@pytest.mark.parametrize(
    "options",
    [
        "-c datestyle=German -c timezone=Asia/Tokyo",
        "-c datestyle=SQL,DMY -c intervalstyle=sql_standard",
        "-c bytea_output=escape -c extra_float_digits=-15",
    ],
)
def test_formats_of_the_session_change_nothing(database, observer, options):
    connection = database.connect_directly(options=options)
    enqueued = enqueue_one(connection)
    connection.commit()

    job = read(connection, enqueued.id)

    assert job.created_at == observer.value("SELECT created_at FROM runledger.job_queue")
    assert job.created_at.tzinfo is UTC
