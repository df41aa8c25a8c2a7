from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from runledger_core import JobDefinitionSpec, ValidationError
from runledger_postgres.definitions import (
    ActiveScheduleExistsError,
    get_job_definition,
    update_job_definition,
    upsert_job_definition,
)
from runledger_test_support import TemporaryDatabase


@pytest.fixture
def connection(runledger_database: TemporaryDatabase) -> psycopg.Connection[Any]:
    connection = runledger_database.connect(autocommit=True)
    upsert_job_definition(connection, JobDefinitionSpec("mail", version=3, max_attempts=5))
    return connection


def test_only_the_given_fields_change(connection: psycopg.Connection[Any]):
    before = get_job_definition(connection, "mail")
    assert before is not None

    after = update_job_definition(connection, "mail", default_timeout_seconds=7)

    assert after is not None
    assert (after.version, after.max_attempts, after.default_timeout_seconds) == (3, 5, 7)
    assert (after.default_priority, after.is_enabled) == (0, True)
    assert after.created_at == before.created_at
    assert after.updated_at > before.updated_at
    assert get_job_definition(connection, "mail") == after


def test_every_field_can_change_at_once(connection: psycopg.Connection[Any]):
    after = update_job_definition(
        connection,
        "mail",
        version=4,
        max_attempts=6,
        default_timeout_seconds=8,
        default_priority=-1,
        is_enabled=False,
    )

    assert after is not None
    assert (after.version, after.max_attempts, after.default_timeout_seconds) == (4, 6, 8)
    assert (after.default_priority, after.is_enabled) == (-1, False)


def test_values_that_are_stored_already_write_nothing(connection: psycopg.Connection[Any]):
    before = get_job_definition(connection, "mail")

    assert update_job_definition(connection, "mail", version=3, is_enabled=True) == before
    assert update_job_definition(connection, "mail") == before


def test_unknown_type_gives_none(connection: psycopg.Connection[Any]):
    assert update_job_definition(connection, "sms", version=2) is None
    assert get_job_definition(connection, "sms") is None


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"version": 0}, "input.out_of_range", "version"),
        ({"max_attempts": 2**31}, "input.out_of_range", "max_attempts"),
        ({"default_timeout_seconds": True}, "input.wrong_type", "default_timeout_seconds"),
        ({"default_priority": -(2**31) - 1}, "input.out_of_range", "default_priority"),
        ({"is_enabled": 1}, "input.wrong_type", "is_enabled"),
    ],
)
def test_invalid_value_is_refused_with_its_field(
    connection: psycopg.Connection[Any], change: dict[str, Any], code: str, field: str
):
    with pytest.raises(ValidationError) as caught:
        update_job_definition(connection, "mail", **change)

    assert (caught.value.code, caught.value.field) == (code, field)


def test_type_with_an_active_schedule_is_not_disabled(connection: psycopg.Connection[Any]):
    connection.execute(
        "INSERT INTO runledger.job_schedules (name, job_type, cron_expr, next_fire_at)"
        " VALUES ('nightly', 'mail', '0 0 * * *', now())"
    )
    before = get_job_definition(connection, "mail")

    with pytest.raises(ActiveScheduleExistsError) as caught:
        update_job_definition(connection, "mail", version=9, is_enabled=False)

    assert caught.value.code == "job_definition.active_schedule_exists"
    assert get_job_definition(connection, "mail") == before


def test_change_by_another_transaction_is_not_lost(
    runledger_database: TemporaryDatabase, connection: psycopg.Connection[Any]
):
    first = runledger_database.connect()
    update_job_definition(first, "mail", max_attempts=8)
    second = runledger_database.connect(autocommit=True)
    thread = threading.Thread(
        target=update_job_definition, args=(second, "mail"), kwargs={"default_priority": 4}
    )
    thread.start()
    waiting = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    while connection.execute(waiting, [second.info.backend_pid]).fetchone() != (True,):
        assert thread.is_alive()

    first.commit()
    thread.join(30)

    stored = get_job_definition(connection, "mail")
    assert stored is not None
    assert (stored.max_attempts, stored.default_priority) == (8, 4)
