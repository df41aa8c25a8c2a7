from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from runledger_core import JobScheduleUpsert, RunledgerError, ValidationError
from runledger_postgres import (
    connect_pool,
    get_job_schedule_by_name,
    set_job_schedule_active,
    upsert_job_schedule,
)

if TYPE_CHECKING:
    from conftest import Schedules

OWNER, OTHER = UUID(int=1), UUID(int=2)
LATER = datetime(2040, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

FAIL = """
    UPDATE runledger.job_schedules
    SET retry_at = now() + interval '1 hour', failure_count = 3, last_error_code = 'a.code',
        last_error_message = 'message'
"""


def failure(schedules: Schedules) -> tuple[Any, ...]:
    row = schedules.row()
    names = ("retry_at", "failure_count", "last_error_code", "last_error_message")
    return tuple(row[name] for name in names)


@pytest.mark.core
def test_new_schedule_is_stored_as_given(schedules: Schedules):
    stored = schedules.store(
        cron_expr="0 3 * * *",
        payload_template={"kind": "full"},
        is_active=False,
        organization_id=OWNER,
        max_jitter_seconds=30,
        next_fire_at=LATER,
    )

    assert (stored.name, stored.job_type, stored.cron_expr) == ("nightly", "test.job", "0 3 * * *")
    assert stored.payload_template == {"kind": "full"}
    assert stored.is_active is False
    assert stored.organization_id == OWNER
    assert stored.max_jitter_seconds == 30
    assert stored.next_fire_at == LATER
    assert stored.last_fired_at is None
    assert (stored.retry_at, stored.failure_count, stored.last_error_code) == (None, 0, None)
    assert stored.created_at == stored.updated_at
    assert get_job_schedule_by_name(schedules.connection, "nightly") == stored


def test_first_fire_that_is_not_given_is_now_by_the_databases_clock(schedules: Schedules):
    before = schedules.now()

    stored = schedules.store()

    assert before <= stored.next_fire_at <= schedules.now()


def test_changed_schedule_is_overwritten(schedules: Schedules):
    schedules.define("test.other")
    before = schedules.store(next_fire_at=LATER)

    after = schedules.store(
        job_type="test.other", payload_template=[1], max_jitter_seconds=5, next_fire_at=LATER
    )

    assert (after.job_type, after.payload_template) == ("test.other", [1])
    assert after.max_jitter_seconds == 5
    assert after.id == before.id
    assert after.created_at == before.created_at
    assert after.updated_at > before.updated_at


def test_equal_schedule_is_neither_written_nor_locked(schedules: Schedules):
    fields: dict[str, Any] = {"payload_template": {"a": 1, "b": [2]}, "max_jitter_seconds": 3}
    before = schedules.store(**fields)
    tuples = schedules.tuples()

    # The order of keys is no difference to jsonb.
    fields["payload_template"] = {"b": [2], "a": 1}
    after = schedules.store(**fields)

    assert after == before
    assert schedules.tuples() == tuples


def test_equal_schedule_does_not_wait_for_who_holds_it(schedules: Schedules):
    before = schedules.store()
    request = JobScheduleUpsert("nightly", "test.job", cron_expr="* * * * *")

    with schedules.held():
        assert upsert_job_schedule(schedules.connection, request, lock_timeout_ms=1) == before


def test_owner_of_the_first_insert_stays(schedules: Schedules):
    schedules.store(organization_id=OWNER)

    after = schedules.store(organization_id=OTHER, max_jitter_seconds=1)

    assert after.organization_id == OWNER


@pytest.mark.parametrize("is_active", [True, False])
def test_stored_schedule_stays_as_active_as_it_is(schedules: Schedules, is_active: bool):
    schedules.store(is_active=is_active)

    after = schedules.store(is_active=not is_active, max_jitter_seconds=1)

    assert (after.is_active, after.max_jitter_seconds) == (is_active, 1)


def test_next_fire_stays_while_the_expression_does(schedules: Schedules):
    before = schedules.store(next_fire_at=LATER)

    after = schedules.store(next_fire_at=LATER + SECOND, payload_template={"new": True})

    assert after.next_fire_at == before.next_fire_at


def test_changed_expression_begins_at_the_given_fire(schedules: Schedules):
    schedules.store(next_fire_at=LATER)

    after = schedules.store(cron_expr="@hourly", next_fire_at=LATER + SECOND)

    assert (after.cron_expr, after.next_fire_at) == ("@hourly", LATER + SECOND)


def test_changed_expression_without_a_given_fire_begins_now(schedules: Schedules):
    schedules.store(next_fire_at=LATER)
    before = schedules.now()

    after = schedules.store(cron_expr="@hourly")

    assert before <= after.next_fire_at <= schedules.now()


@pytest.mark.parametrize(
    "change",
    [{"cron_expr": "@hourly"}, {"payload_template": {"a": 1}}, {"max_jitter_seconds": 9}],
    ids=lambda change: next(iter(change)),
)
def test_change_forgets_earlier_failures(schedules: Schedules, change: dict[str, Any]):
    schedules.store()
    schedules.execute(FAIL)

    schedules.store(**change)

    assert failure(schedules) == (None, 0, None, None)


def test_equal_schedule_keeps_its_failures(schedules: Schedules):
    schedules.store()
    schedules.execute(FAIL)

    schedules.store()

    assert failure(schedules)[1:] == (3, "a.code", "message")


ENABLED, DISABLED, MISSING = "enabled", "disabled", "missing"
REFUSED = "job_schedule.definition_not_found_or_disabled"


@pytest.mark.parametrize(
    ("is_active", "definition", "code"),
    [
        (True, ENABLED, None),
        (True, DISABLED, REFUSED),
        (True, MISSING, REFUSED),
        (False, ENABLED, None),
        (False, DISABLED, None),
        (False, MISSING, "job.definition_not_found"),
    ],
)
@pytest.mark.parametrize("is_stored", [False, True], ids=["new", "stored"])
def test_active_schedule_needs_an_enabled_definition_and_an_inactive_one_any(
    schedules: Schedules, is_active: bool, definition: str, code: str | None, is_stored: bool
):
    if definition != MISSING:
        schedules.define("test.target", is_enabled=definition == ENABLED)
    if is_stored:
        schedules.store(is_active=is_active)
    before = schedules.fetch("SELECT * FROM runledger.job_schedules")

    # For a stored one the given flag does not count.
    given = not is_active if is_stored else is_active
    fields: dict[str, Any] = {"job_type": "test.target", "is_active": given}

    if code is None:
        stored = schedules.store(**fields)
        assert (stored.job_type, stored.is_active) == ("test.target", is_active)
        return
    with pytest.raises(ValidationError) as caught:
        schedules.store(**fields)
    error = caught.value
    assert (error.code, error.field, error.entry_index) == (code, "job_type", None)
    assert "nightly" in error.client_message
    assert schedules.fetch("SELECT * FROM runledger.job_schedules") == before


def test_schedule_made_active_around_the_api_is_refused_even_if_nothing_differs(
    schedules: Schedules,
):
    schedules.store(is_active=False)
    schedules.define(is_enabled=False)
    schedules.execute("UPDATE runledger.job_schedules SET is_active = true")

    with pytest.raises(ValidationError) as caught:
        schedules.store()

    assert caught.value.code == REFUSED


def test_pool_owns_the_transaction(schedules: Schedules):
    request = JobScheduleUpsert("nightly", "test.job", cron_expr="@daily")

    with connect_pool(schedules.database.dsn, max_size=1) as pool:
        upsert_job_schedule(pool, request)

    assert schedules.row()["cron_expr"] == "@daily"


def test_joined_write_is_the_callers_to_commit(schedules: Schedules):
    caller = schedules.database.connect()
    caller.execute("SET lock_timeout = '7s'")

    upsert_job_schedule(caller, JobScheduleUpsert("nightly", "test.job", cron_expr="@daily"))

    assert caller.execute("SHOW lock_timeout").fetchone() == ("7s",)
    caller.rollback()
    assert get_job_schedule_by_name(schedules.connection, "nightly") is None


def test_refusal_leaves_the_callers_transaction_usable(schedules: Schedules):
    request = JobScheduleUpsert("nightly", "test.missing", cron_expr="@daily")

    with schedules.connection.transaction():
        schedules.execute("CREATE TABLE public.of_the_host (id int)")
        with pytest.raises(ValidationError):
            upsert_job_schedule(schedules.connection, request)

    assert schedules.value("SELECT count(*) FROM public.of_the_host") == 0


def test_held_schedule_is_waited_for_no_longer_than_asked(schedules: Schedules):
    schedules.store()
    request = JobScheduleUpsert("nightly", "test.job", cron_expr="@daily")

    with schedules.held(), pytest.raises(RunledgerError) as caught:
        upsert_job_schedule(schedules.connection, request, lock_timeout_ms=20)

    assert caught.value.code == "db.lock_timeout"
    assert schedules.row()["cron_expr"] == "* * * * *"


def test_held_definition_is_waited_for_no_longer_than_asked(schedules: Schedules):
    schedules.store(is_active=False)
    with schedules.database.connect() as other:
        other.execute("SELECT FROM runledger.job_definitions FOR UPDATE")

        with pytest.raises(RunledgerError) as caught:
            set_job_schedule_active(schedules.connection, "nightly", True, lock_timeout_ms=20)

    assert caught.value.code == "db.lock_timeout"
    assert schedules.row()["is_active"] is False


def test_something_else_than_a_request_is_refused_before_sql():
    with pytest.raises(ValidationError) as caught:
        upsert_job_schedule(object(), "nightly")  # pyright: ignore[reportArgumentType]  # as callers without a type checker

    assert (caught.value.code, caught.value.field) == ("input.wrong_type", "schedule")
