"""Switching a schedule on and off, moving its next fire, deleting it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import RunledgerError, ValidationError
from runledger_postgres import (
    delete_job_schedule,
    get_job_schedule_by_name,
    set_job_schedule_active,
    set_job_schedule_next_fire_at,
    update_job_definition,
)

if TYPE_CHECKING:
    from conftest import Schedules

LATER = datetime(2040, 1, 1, 12, tzinfo=UTC)
FAIL = """
    UPDATE runledger.job_schedules
    SET retry_at = now() + interval '1 hour', failure_count = 3, last_error_code = 'a.code',
        last_error_message = 'message'
"""

Change = Callable[[Any], bool]
CHANGES: dict[str, Change] = {
    "switch off": lambda db: set_job_schedule_active(db, "nightly", False, lock_timeout_ms=20),
    "move": lambda db: set_job_schedule_next_fire_at(db, "nightly", LATER, lock_timeout_ms=20),
    "delete": lambda db: delete_job_schedule(db, "nightly", lock_timeout_ms=20),
}


def test_schedule_is_switched_off_and_on(schedules: Schedules):
    before = schedules.store(next_fire_at=LATER)

    assert set_job_schedule_active(schedules.connection, "nightly", False) is True
    assert schedules.row()["is_active"] is False
    assert set_job_schedule_active(schedules.connection, "nightly", True) is True

    after = schedules.row()
    assert (after["is_active"], after["next_fire_at"]) == (True, LATER)
    assert after["updated_at"] > before.updated_at


@pytest.mark.parametrize("is_active", [True, False])
def test_schedule_that_is_so_already_is_not_touched(schedules: Schedules, is_active: bool):
    schedules.store(is_active=is_active)
    tuples = schedules.tuples()

    with schedules.held():
        changed = set_job_schedule_active(
            schedules.connection, "nightly", is_active, lock_timeout_ms=1
        )

    assert changed is False
    assert schedules.tuples()[0]["ctid"] == tuples[0]["ctid"]


def test_switching_on_forgets_earlier_failures(schedules: Schedules):
    schedules.store(is_active=False)
    schedules.execute(FAIL)

    set_job_schedule_active(schedules.connection, "nightly", True)

    row = schedules.row()
    assert (row["retry_at"], row["failure_count"], row["last_error_code"]) == (None, 0, None)
    assert row["last_error_message"] is None


def test_switching_off_keeps_what_it_failed_of(schedules: Schedules):
    schedules.store()
    schedules.execute(FAIL)

    set_job_schedule_active(schedules.connection, "nightly", False)

    assert schedules.row()["last_error_code"] == "a.code"


@pytest.mark.parametrize("is_defined", [True, False], ids=["disabled", "missing"])
def test_schedule_whose_type_cannot_be_enqueued_is_not_switched_on(
    schedules: Schedules, is_defined: bool
):
    schedules.store(is_active=False)
    if is_defined:
        update_job_definition(schedules.connection, "test.job", is_enabled=False)
    else:
        schedules.execute("DELETE FROM runledger.job_definitions")
    caller = schedules.database.connect()

    with pytest.raises(ValidationError) as caught:
        set_job_schedule_active(caller, "nightly", True)

    assert caught.value.code == "job_schedule.definition_not_found_or_disabled"
    assert set_job_schedule_active(caller, "nightly", False) is False
    caller.commit()
    assert schedules.row()["is_active"] is False


def test_next_fire_is_moved_either_way(schedules: Schedules):
    schedules.store(next_fire_at=LATER)

    for at in (LATER + timedelta(days=1), LATER - timedelta(days=9_000)):
        assert set_job_schedule_next_fire_at(schedules.connection, "nightly", at) is True
        assert schedules.row()["next_fire_at"] == at
        assert set_job_schedule_next_fire_at(schedules.connection, "nightly", at) is False


def test_moving_the_next_fire_forgets_failures_even_if_it_stays(schedules: Schedules):
    schedules.store(next_fire_at=LATER)
    schedules.execute(FAIL)

    assert set_job_schedule_next_fire_at(schedules.connection, "nightly", LATER) is True

    row = schedules.row()
    assert (row["retry_at"], row["failure_count"], row["last_error_code"]) == (None, 0, None)


def test_deleted_schedule_leaves_its_jobs(schedules: Schedules):
    schedules.store()
    schedules.fire()

    assert delete_job_schedule(schedules.connection, "nightly") is True
    assert delete_job_schedule(schedules.connection, "nightly") is False

    assert get_job_schedule_by_name(schedules.connection, "nightly") is None
    assert [job["status"] for job in schedules.jobs()] == ["PENDING"]


def test_schedule_stored_again_under_its_name_begins_anew(schedules: Schedules):
    first = schedules.store(next_fire_at=LATER)
    delete_job_schedule(schedules.connection, "nightly")

    second = schedules.store()

    assert second.id != first.id
    assert second.next_fire_at < LATER


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_held_schedule_is_waited_for_no_longer_than_asked(schedules: Schedules, change: Change):
    schedules.store()
    before = schedules.row()
    caller = schedules.database.connect()

    with schedules.held(), pytest.raises(RunledgerError) as caught:
        change(caller)

    assert caught.value.code == "db.lock_timeout"
    assert caller.execute("SELECT 1").fetchone() == (1,)
    assert schedules.row() == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_unknown_name_changes_nothing(schedules: Schedules, change: Change):
    schedules.store("other")

    assert change(schedules.connection) is False


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (lambda: set_job_schedule_active(object(), " ", True), ("input.blank", "schedule_name")),  # pyright: ignore[reportArgumentType]  # not touched
        (lambda: set_job_schedule_active(object(), "n", 1), ("input.wrong_type", "is_active")),  # pyright: ignore[reportArgumentType]  # as above
        (
            lambda: set_job_schedule_next_fire_at(object(), "n", LATER.replace(tzinfo=None)),  # pyright: ignore[reportArgumentType]  # as above
            ("input.naive_timestamp", "next_fire_at"),
        ),
        (
            lambda: delete_job_schedule(object(), "n", lock_timeout_ms=0),  # pyright: ignore[reportArgumentType]  # as above
            ("input.out_of_range", "lock_timeout_ms"),
        ),
    ],
)
def test_arguments_are_checked_before_sql(call: Callable[[], object], refusal: tuple[str, str]):
    with pytest.raises(ValidationError) as caught:
        call()

    assert (caught.value.code, caught.value.field) == refusal
