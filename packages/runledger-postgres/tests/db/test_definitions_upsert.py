from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from runledger_core import ErrorCategory, JobDefinitionSpec
from runledger_postgres import connect_pool
from runledger_postgres.definitions import (
    ActiveScheduleExistsError,
    get_job_definition,
    insert_job_definition_if_missing,
    upsert_job_definition,
)
from runledger_postgres.errors import QueryError
from runledger_test_support import Interleaving, Session, Step, StepContext, permute
from runledger_test_support import TemporaryDatabase as Database

CONNECTIONS = 16
MAIL = JobDefinitionSpec("mail")
MAIL_DISABLED = JobDefinitionSpec("mail", is_enabled=False)

# A tuple that nobody wrote or locked keeps all three.
TUPLE = "SELECT ctid, xmin::text, xmax::text FROM runledger.job_definitions ORDER BY job_type"


@pytest.fixture
def connection(runledger_database: Database) -> psycopg.Connection[Any]:
    return runledger_database.connect(autocommit=True)


def schedule(
    db: psycopg.Connection[Any], name: str, *, job_type: str = "mail", is_active: bool = True
) -> None:
    db.execute(
        "INSERT INTO runledger.job_schedules (name, job_type, cron_expr, next_fire_at, is_active)"
        " VALUES (%s, %s, '0 0 * * *', now(), %s)",
        [name, job_type, is_active],
    )


@pytest.mark.core
def test_new_definition_is_stored_as_given(connection: psycopg.Connection[Any]):
    stored = upsert_job_definition(
        connection,
        JobDefinitionSpec(
            "mail",
            version=2,
            max_attempts=5,
            default_timeout_seconds=60,
            default_priority=-7,
            is_enabled=False,
        ),
    )

    assert stored.job_type == "mail"
    assert stored.version == 2
    assert stored.max_attempts == 5
    assert stored.default_timeout_seconds == 60
    assert stored.default_priority == -7
    assert stored.is_enabled is False
    assert stored.created_at == stored.updated_at
    assert get_job_definition(connection, "mail") == stored


def test_changed_definition_is_overwritten(connection: psycopg.Connection[Any]):
    before = upsert_job_definition(connection, MAIL)

    after = upsert_job_definition(connection, JobDefinitionSpec("mail", max_attempts=9))

    assert after.max_attempts == 9
    assert after.created_at == before.created_at
    assert after.updated_at > before.updated_at


def test_equal_definition_is_neither_written_nor_locked(connection: psycopg.Connection[Any]):
    before = upsert_job_definition(connection, MAIL)
    row = connection.execute(TUPLE).fetchall()

    after = upsert_job_definition(connection, MAIL)

    assert after == before
    assert connection.execute(TUPLE).fetchall() == row


def test_pool_owns_the_transaction(runledger_database: Database):
    with connect_pool(runledger_database.dsn, max_size=1) as pool:
        upsert_job_definition(pool, MAIL)

    assert get_job_definition(runledger_database.connect(), "mail") is not None


def test_joined_write_is_the_callers_to_commit(runledger_database: Database):
    caller = runledger_database.connect()
    caller.execute("SET lock_timeout = '7s'")

    upsert_job_definition(caller, MAIL)

    assert caller.execute("SHOW lock_timeout").fetchone() == ("7s",)
    caller.rollback()
    assert get_job_definition(runledger_database.connect(), "mail") is None


def test_type_with_an_active_schedule_is_not_disabled(connection: psycopg.Connection[Any]):
    upsert_job_definition(connection, MAIL)
    schedule(connection, "nightly")

    with pytest.raises(ActiveScheduleExistsError) as caught:
        upsert_job_definition(connection, MAIL_DISABLED)

    assert caught.value.code == "job_definition.active_schedule_exists"
    assert caught.value.category is ErrorCategory.VALIDATION
    assert caught.value.job_types == ("mail",)
    assert "mail" in caught.value.client_message
    stored = get_job_definition(connection, "mail")
    assert stored is not None
    assert stored.is_enabled is True


def test_refusal_leaves_the_callers_transaction_usable(connection: psycopg.Connection[Any]):
    upsert_job_definition(connection, MAIL)
    schedule(connection, "nightly")

    with connection.transaction():
        connection.execute("CREATE TABLE public.of_the_host (id int)")
        with pytest.raises(ActiveScheduleExistsError):
            upsert_job_definition(connection, MAIL_DISABLED)

    assert connection.execute("SELECT count(*) FROM public.of_the_host").fetchone() == (0,)


def test_type_with_an_inactive_schedule_is_disabled(connection: psycopg.Connection[Any]):
    upsert_job_definition(connection, MAIL)
    schedule(connection, "nightly", is_active=False)

    assert upsert_job_definition(connection, MAIL_DISABLED).is_enabled is False


def test_schedule_of_another_type_does_not_matter(connection: psycopg.Connection[Any]):
    upsert_job_definition(connection, MAIL)
    schedule(connection, "nightly", job_type="mail.digest")

    assert upsert_job_definition(connection, MAIL_DISABLED).is_enabled is False


def test_type_that_is_disabled_already_may_change_despite_a_schedule(
    connection: psycopg.Connection[Any],
):
    upsert_job_definition(connection, MAIL_DISABLED)
    schedule(connection, "nightly")

    stored = upsert_job_definition(
        connection, JobDefinitionSpec("mail", is_enabled=False, version=2)
    )

    assert (stored.version, stored.is_enabled) == (2, False)


def test_disabled_type_is_not_inserted_under_an_active_schedule(
    connection: psycopg.Connection[Any],
):
    schedule(connection, "nightly")

    with pytest.raises(ActiveScheduleExistsError):
        insert_job_definition_if_missing(connection, MAIL_DISABLED)

    assert get_job_definition(connection, "mail") is None


def test_disabling_needs_a_snapshot_that_is_newer_than_the_lock(runledger_database: Database):
    caller = runledger_database.connect()
    upsert_job_definition(caller, MAIL)
    caller.commit()
    caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    with pytest.raises(QueryError) as caught:
        upsert_job_definition(caller, MAIL_DISABLED)

    assert caught.value.code == "job_definition.disable_unsupported_isolation"
    assert upsert_job_definition(caller, JobDefinitionSpec("mail", version=2)).version == 2


def test_locked_definition_is_waited_for_no_longer_than_asked(runledger_database: Database):
    caller = runledger_database.connect()
    upsert_job_definition(caller, MAIL)
    caller.commit()
    other = runledger_database.connect()
    other.execute("SELECT FROM runledger.job_definitions FOR UPDATE")

    with pytest.raises(QueryError) as caught:
        upsert_job_definition(caller, JobDefinitionSpec("mail", version=2), lock_timeout_ms=20)

    assert caught.value.code == "db.lock_timeout"
    assert caller.execute("SELECT 1").fetchone() == (1,)


def test_lock_timeout_must_be_positive(connection: psycopg.Connection[Any]):
    with pytest.raises(Exception, match=r"input\.out_of_range: lock_timeout_ms"):
        upsert_job_definition(connection, MAIL, lock_timeout_ms=0)


def test_missing_definition_is_inserted_once(connection: psycopg.Connection[Any]):
    assert insert_job_definition_if_missing(connection, MAIL) is True
    assert insert_job_definition_if_missing(connection, MAIL) is False


def test_existing_definition_is_left_as_it_is(connection: psycopg.Connection[Any]):
    before = upsert_job_definition(connection, JobDefinitionSpec("mail", version=4))
    row = connection.execute(TUPLE).fetchall()

    assert insert_job_definition_if_missing(connection, MAIL) is False

    assert get_job_definition(connection, "mail") == before
    assert connection.execute(TUPLE).fetchall() == row


def test_of_many_inserts_at_the_same_time_one_inserts(runledger_database: Database):
    barrier = threading.Barrier(CONNECTIONS)

    def insert(number: int) -> bool:
        with runledger_database.connect(autocommit=True) as db:
            barrier.wait(30)
            spec = JobDefinitionSpec("mail", version=number + 1)
            return insert_job_definition_if_missing(db, spec)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        inserted = list(threads.map(insert, range(CONNECTIONS)))

    stored = get_job_definition(runledger_database.connect(), "mail")
    assert inserted.count(True) == 1
    assert stored is not None
    assert stored.version == inserted.index(True) + 1


def test_of_many_upserts_at_the_same_time_each_is_whole(runledger_database: Database):
    barrier = threading.Barrier(CONNECTIONS)

    def upsert(number: int) -> tuple[int, int]:
        with runledger_database.connect(autocommit=True) as db:
            barrier.wait(30)
            spec = JobDefinitionSpec("mail", version=number, max_attempts=number)
            stored = upsert_job_definition(db, spec)
            return stored.version, stored.max_attempts

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        stored = list(threads.map(upsert, range(1, CONNECTIONS + 1)))

    assert stored == [(number, number) for number in range(1, CONNECTIONS + 1)]


def test_disabling_and_activating_exclude_each_other_in_every_order(runledger_database: Database):
    """As schedule activation does it: lock the definition, then look, then write."""
    control = runledger_database.connect(autocommit=True)

    def lock(context: StepContext) -> object:
        return context.connection.execute(
            "SELECT d.is_enabled FROM runledger.job_definitions AS d FOR NO KEY UPDATE"
        ).fetchone()

    def activate(context: StepContext) -> None:
        if context.results["lock"] == (True,):
            schedule(context.connection, "nightly")

    def disable(context: StepContext) -> None:
        upsert_job_definition(context.connection, MAIL_DISABLED)

    def commit(context: StepContext) -> None:
        context.connection.commit()

    def sessions() -> list[Session]:
        control.execute("DELETE FROM runledger.job_schedules")
        upsert_job_definition(control, MAIL)
        return [
            Session(
                "activate",
                runledger_database.connect_directly,
                steps=[Step("lock", lock), Step("activate", activate), Step("commit", commit)],
            ),
            Session(
                "disable",
                runledger_database.connect_directly,
                steps=[Step("disable", disable), Step("commit", commit)],
            ),
        ]

    def check(_run: Interleaving) -> None:
        row = control.execute(
            "SELECT d.is_enabled, EXISTS (SELECT FROM runledger.job_schedules)"
            " FROM runledger.job_definitions AS d"
        ).fetchone()
        assert row in {(True, True), (False, False)}

    assert len(permute(sessions, check)) == 10
