from __future__ import annotations

import threading

import psycopg
import pytest

from runledger_core import ErrorCategory, JobEnqueue, RunledgerError
from runledger_postgres import connect_pool, enqueue_job, enqueue_jobs, errors
from runledger_postgres.errors import (
    ConstraintSpec,
    QueryError,
    classify_query_error,
)
from runledger_test_support import FaultProxy

SECRET = "s3cr3t-of-the-caller"  # noqa: S105  # stands for any value
SCHEMA = """
CREATE TABLE public.parents (id int4 PRIMARY KEY);
CREATE TABLE public.children (
    id int4 NOT NULL,
    parent_id int4 CONSTRAINT fk_parent REFERENCES public.parents,
    size int4 CONSTRAINT chk_size CHECK (size > 0),
    name text CONSTRAINT uq_name UNIQUE,
    CONSTRAINT no_overlap EXCLUDE USING btree (size WITH =)
);
INSERT INTO public.parents VALUES (1);
INSERT INTO public.children VALUES (1, 1, 1, 's3cr3t-of-the-caller');
"""


@pytest.fixture
def database(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
        connection.execute(SCHEMA)
    return runledger_database


def provoke(connection, statement: str) -> psycopg.Error:
    *before, last = statement.split(";;")
    for part in before:
        connection.execute(part)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(last)
    return caught.value


def raising(sqlstate: str) -> str:
    return f"DO $$ BEGIN RAISE 'text' USING ERRCODE = '{sqlstate}'; END $$"


@pytest.mark.parametrize(
    ("statement", "sqlstate", "code", "category"),
    [
        (
            f"INSERT INTO public.children VALUES (2, 1, 2, '{SECRET}')",
            "23505",
            "db.unique_violation",
            ErrorCategory.CONFLICT,
        ),
        (
            "INSERT INTO public.children VALUES (2, 9, 2, '')",
            "23503",
            "db.related_resource_missing",
            ErrorCategory.VALIDATION,
        ),
        (
            raising("23001"),
            "23001",
            "db.related_resource_still_referenced",
            ErrorCategory.VALIDATION,
        ),
        (
            "UPDATE public.children SET size = 0",
            "23514",
            "db.business_rule_violation",
            ErrorCategory.VALIDATION,
        ),
        (
            "UPDATE public.children SET id = NULL",
            "23502",
            "db.required_field_missing",
            ErrorCategory.VALIDATION,
        ),
        (
            "SET ROLE pg_monitor;;SELECT FROM public.children",
            "42501",
            "db.permission_denied",
            ErrorCategory.FORBIDDEN,
        ),
        (
            "SET statement_timeout = 1;;SELECT pg_sleep(60)",
            "57014",
            "db.statement_timeout",
            ErrorCategory.UNAVAILABLE,
        ),
        (
            "SET TRANSACTION READ ONLY;;DELETE FROM public.children",
            "25006",
            "db.read_only",
            ErrorCategory.UNAVAILABLE,
        ),
        (
            "SELECT pg_terminate_backend(pg_backend_pid())",
            "57P01",
            "db.unavailable",
            ErrorCategory.UNAVAILABLE,
        ),
        (
            "CREATE SEQUENCE public.s;;SELECT currval('public.s')",
            "55000",
            "db.object_not_ready",
            ErrorCategory.UNAVAILABLE,
        ),
        (raising("08006"), "08006", "db.unavailable", ErrorCategory.UNAVAILABLE),
        (raising("53100"), "53100", "db.out_of_resources", ErrorCategory.UNAVAILABLE),
        (raising("53300"), "53300", "db.out_of_resources", ErrorCategory.UNAVAILABLE),
        (raising("57P03"), "57P03", "db.unavailable", ErrorCategory.UNAVAILABLE),
        (raising("40003"), "40003", "db.serialization_failure", ErrorCategory.UNAVAILABLE),
        ("SELECT 1 / 0", "22012", "db.query_failed", ErrorCategory.INTERNAL),
        *(
            (sql, sqlstate, "schema.missing_migration_history", ErrorCategory.CONFLICT)
            for sql, sqlstate in (
                ("SELECT FROM runledger.none", "42P01"),
                ("SELECT FROM nowhere.none", "42P01"),
                ("CREATE TABLE nowhere.none ()", "3F000"),
                ("SELECT q.none FROM runledger.job_queue AS q", "42703"),
                ("SELECT runledger.none()", "42883"),
            )
        ),
        (
            "INSERT INTO public.children VALUES (2, 1, 1, '')",
            "23P01",
            "db.query_failed",
            ErrorCategory.INTERNAL,
        ),
        ("PREPARE TRANSACTION 'x'", "55000", "db.object_not_ready", ErrorCategory.UNAVAILABLE),
        ("VACUUM", "25001", "db.query_failed", ErrorCategory.INTERNAL),
        (raising("0A000"), "0A000", "db.query_failed", ErrorCategory.INTERNAL),
    ],
)
def test_sqlstate_has_a_code(database, statement, sqlstate, code, category):
    driver_error = provoke(database.connect(), statement)

    error = classify_query_error(driver_error)

    assert (error.sqlstate, error.code, error.category) == (sqlstate, code, category)
    assert error.is_transient is (category is ErrorCategory.UNAVAILABLE)
    assert error.__cause__ is driver_error
    assert error.internal_message == str(driver_error)
    shown = f"{error} {error!r}"
    assert str(driver_error) not in shown
    assert SECRET not in shown


def test_row_locked_by_another_is_a_lock_timeout(database):
    holder = database.connect()
    holder.execute("SELECT FROM public.parents FOR UPDATE")

    error = classify_query_error(
        provoke(database.connect(), "SELECT FROM public.parents FOR UPDATE NOWAIT")
    )

    assert (error.sqlstate, error.code, error.is_transient) == ("55P03", "db.lock_timeout", True)


def test_serialization_failure_is_transient(database):
    connection = database.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT FROM public.parents")
    database.connect(autocommit=True).execute("UPDATE public.parents SET id = id")

    error = classify_query_error(provoke(connection, "UPDATE public.parents SET id = id"))

    assert (error.sqlstate, error.code) == ("40001", "db.serialization_failure")
    assert error.is_transient


def test_deadlock_is_transient(database, observer):
    first, second = database.connect(), database.connect()
    first.execute("SELECT pg_advisory_xact_lock(1)")
    second.execute("SELECT pg_advisory_xact_lock(2)")
    victims = []

    def wait_for_second() -> None:
        try:
            first.execute("SELECT pg_advisory_xact_lock(2)")
        except psycopg.Error as error:
            victims.append(error)
        first.rollback()

    thread = threading.Thread(target=wait_for_second)
    thread.start()
    observer.until_blocked(first.info.backend_pid)
    try:
        second.execute("SELECT pg_advisory_xact_lock(1)")
    except psycopg.Error as error:
        victims.append(error)
    second.rollback()
    thread.join()

    (error,) = map(classify_query_error, victims)
    assert (error.sqlstate, error.code) == ("40P01", "db.serialization_failure")
    assert error.is_transient


def test_session_that_the_server_ended_for_idling_is_unavailable(database, observer):
    connection = database.connect()
    connection.execute("SET idle_in_transaction_session_timeout = 1")
    observer.until_gone(connection.info.backend_pid)

    error = classify_query_error(provoke(connection, "SELECT 1"))

    # 25P03, unless the reset that answers our statement overtakes the server's last words.
    assert error.sqlstate in {"25P03", None}
    assert (error.code, error.is_transient) == ("db.unavailable", True)


def test_link_that_is_cut_has_no_sqlstate_and_is_unavailable(database):
    with FaultProxy(database.dsn) as proxy, psycopg.connect(proxy.dsn) as connection:
        connection.execute("SELECT 1")
        proxy.sever()

        with pytest.raises(QueryError) as caught:
            enqueue_job(connection, JobEnqueue("test.job", {}))

    assert (caught.value.code, caught.value.sqlstate) == ("db.unavailable", None)
    assert caught.value.is_transient


def test_server_that_is_not_there_is_unavailable():
    with pytest.raises(psycopg.Error) as caught:
        psycopg.connect("host=127.0.0.1 port=1 password=hidden")

    error = classify_query_error(caught.value)
    assert (error.code, error.is_transient) == ("db.unavailable", True)
    assert "127.0.0.1" not in f"{error} {error!r}"


@pytest.mark.parametrize("organization", ["NULL", "gen_random_uuid()"])
def test_key_that_is_taken_behind_our_back_is_already_enqueued(database, organization):
    connection = database.connect()

    error = classify_query_error(
        provoke(
            connection,
            f"""
            INSERT INTO runledger.job_queue
                (job_type, organization_id, max_attempts, idempotency_key, enqueue_request)
            SELECT 'test.job', organization_id, 1, '{SECRET}', '{{}}'
            FROM (SELECT {organization}::uuid AS organization_id) AS o, generate_series(1, 2)
            """,
        )
    )

    assert (error.code, error.category) == ("job.already_enqueued", ErrorCategory.CONFLICT)
    assert SECRET in error.internal_message
    assert SECRET not in f"{error} {error!r}"


def test_config_of_an_unknown_type_has_the_codes_of_its_constraint(database):
    error = classify_query_error(
        provoke(
            database.connect(),
            "INSERT INTO runledger.job_runtime_configs VALUES ('test.none', 1, '{}')",
        )
    )

    assert error.code == "job.definition_not_found"
    assert error.constraint == "fk_job_runtime_configs_job_type"


def test_constraints_with_codes_exist_in_the_schema(database, observer):
    names = observer.value(
        """
        SELECT array_agg(name) FROM (
            SELECT conname FROM pg_constraint UNION SELECT relname FROM pg_class WHERE relkind = 'i'
        ) AS names(name)
        """
    )
    assert set(errors._CONSTRAINTS) <= set(names)


def test_classifier_of_the_application_goes_before_ours_and_before_the_sqlstate(database):
    statement = "INSERT INTO runledger.job_runtime_configs VALUES ('test.none', 1, '{}')"
    driver_error = provoke(database.connect(), statement)
    spec = ConstraintSpec("app.code", ErrorCategory.NOT_FOUND, "the application's text")

    error = classify_query_error(
        driver_error, classifier={"fk_job_runtime_configs_job_type": spec}.get
    )
    unknown = classify_query_error(driver_error, classifier=lambda name: None)

    assert (error.code, error.category) == ("app.code", ErrorCategory.NOT_FOUND)
    assert unknown.code == "job.definition_not_found"


def test_no_refusal_of_an_enqueue_shows_payload_key_or_connection_string(database):
    request = JobEnqueue("test.job", {SECRET: SECRET}, idempotency_key=SECRET)
    requests = [
        JobEnqueue("test.none", {SECRET: SECRET}, idempotency_key=SECRET),
        JobEnqueue("test.job", {SECRET: 1}, idempotency_key=SECRET),
    ]
    refusals: list[RunledgerError] = []

    def collect(db, *refused: JobEnqueue) -> None:
        with pytest.raises(RunledgerError) as caught:
            enqueue_jobs(db, refused)
        refusals.append(caught.value)

    with connect_pool(database.dsn) as pool:
        enqueue_job(pool, request)
        for refused in requests:
            collect(pool, refused)
            collect(pool, refused, request)
        collect(None, request)
    collect(pool, request)
    with FaultProxy(database.dsn) as proxy, connect_pool(proxy.dsn, timeout_seconds=1) as pool:
        pool.wait()
        proxy.close()
        collect(pool, request)

    for error in refusals:
        shown = f"{error} {error!r}"
        assert SECRET not in shown
        assert "127.0.0.1" not in shown
        assert database.name not in shown
