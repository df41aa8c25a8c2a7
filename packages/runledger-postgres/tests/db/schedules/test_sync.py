from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from runledger_core import JobScheduleUpsert, RunledgerError, ValidationError
from runledger_postgres import (
    ExactScheduleSyncReport,
    ScheduleSyncReport,
    list_job_schedules,
    set_job_schedule_active,
    sync_job_schedules,
    sync_job_schedules_exact,
)

if TYPE_CHECKING:
    from conftest import Schedules

SYNCING = 8
LATER = datetime(2040, 1, 1, 12, tzinfo=UTC)


def given(name: str, **fields: Any) -> JobScheduleUpsert:
    job_type = fields.pop("job_type", "test.job")
    fields = {"cron_expr": "@daily", "next_fire_at": LATER} | fields
    return JobScheduleUpsert(name, job_type, **fields)


def stored(schedules: Schedules) -> dict[str, bool]:
    """The names, and whether each is active."""
    return {one.name: one.is_active for one in list_job_schedules(schedules.connection)}


Sync = Callable[[Any, list[JobScheduleUpsert]], Any]
SYNCS: dict[str, Sync] = {
    "additive": sync_job_schedules,
    "exact": lambda db, specs: sync_job_schedules_exact(
        db, specs, scope={spec.name for spec in specs}
    ),
}


@pytest.mark.core
@pytest.mark.parametrize("sync", SYNCS.values(), ids=SYNCS)
def test_sync_stores_what_is_given_in_the_order_of_the_call(schedules: Schedules, sync: Sync):
    schedules.store("other", is_active=False)

    report = sync(schedules.connection, [given("b"), given("c", is_active=False), given("a")])

    assert report.synced == ("b", "c", "a")
    assert stored(schedules) == {"a": True, "b": True, "c": False, "other": False}


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("sync", SYNCS.values(), ids=SYNCS)
def test_sync_overwrites_what_an_operator_switched(
    schedules: Schedules, sync: Sync, is_active: bool
):
    sync(schedules.connection, [given("a", is_active=is_active)])
    set_job_schedule_active(schedules.connection, "a", not is_active)

    sync(schedules.connection, [given("a", is_active=is_active)])

    assert stored(schedules) == {"a": is_active}


def test_sync_keeps_the_next_fire_of_an_equal_expression(schedules: Schedules):
    first = schedules.store("a", cron_expr="@daily")

    sync_job_schedules(schedules.connection, [given("a", is_active=False)])

    assert schedules.row("a")["next_fire_at"] == first.next_fire_at


@pytest.mark.parametrize("sync", SYNCS.values(), ids=SYNCS)
def test_equal_schedules_are_neither_written_nor_waited_for(schedules: Schedules, sync: Sync):
    specs = [given("a"), given("b", is_active=False)]
    sync(schedules.connection, specs)
    tuples = schedules.tuples()
    with schedules.database.connect() as other:
        other.execute("LOCK TABLE runledger.job_schedules IN SHARE ROW EXCLUSIVE MODE")

        report = sync(schedules.connection, specs)

    assert report.synced == ("a", "b")
    assert schedules.tuples() == tuples


@pytest.mark.parametrize("sync", SYNCS.values(), ids=SYNCS)
def test_one_refused_schedule_stores_none_and_is_named(schedules: Schedules, sync: Sync):
    schedules.define("test.off", is_enabled=False)

    with pytest.raises(ValidationError) as caught:
        sync(schedules.connection, [given("b"), given("a", job_type="test.off")])

    assert caught.value.code == "job_schedule.definition_not_found_or_disabled"
    assert (caught.value.entry_index, caught.value.field) == (1, "job_type")
    assert "schedule a " in caught.value.client_message
    assert stored(schedules) == {}


def test_sync_of_nothing_is_no_work():
    assert sync_job_schedules(object(), []) == ScheduleSyncReport()  # pyright: ignore[reportArgumentType]  # not touched


def test_exact_sync_switches_absent_schedules_in_scope_off(schedules: Schedules):
    for name in ("a", "c", "b", "outside"):
        schedules.store(name)
    schedules.store("off", is_active=False)
    before = schedules.row("off")

    report = sync_job_schedules_exact(
        schedules.connection, [given("a")], scope=["c", "never", "off", "b", "a"]
    )

    assert report == ExactScheduleSyncReport(("a",), ("b", "c"))
    assert stored(schedules) == {"a": True, "b": False, "c": False, "off": False, "outside": True}
    assert schedules.row("off") == before


def test_exact_sync_of_nothing_switches_the_whole_scope_off(schedules: Schedules):
    schedules.store("a")
    schedules.store("b")

    report = sync_job_schedules_exact(schedules.connection, [], scope=["b", "a"])

    assert report == ExactScheduleSyncReport((), ("a", "b"))
    assert stored(schedules) == {"a": False, "b": False}


def test_switching_off_needs_no_definition(schedules: Schedules):
    schedules.store("a")
    schedules.execute("DELETE FROM runledger.job_definitions")

    report = sync_job_schedules_exact(schedules.connection, [], scope=["a"])

    assert report.deactivated == ("a",)


@pytest.mark.parametrize(
    ("specs", "scope", "refusal"),
    [
        ([given("a")], [], ("job_schedule.empty_sync_scope", "scope", None)),
        ([], [], ("job_schedule.empty_sync_scope", "scope", None)),
        (
            [given("a"), given("b")],
            ["a"],
            ("job_schedule.name_outside_sync_scope", "scope", 1),
        ),
        ([given("a"), given("a")], ["a"], ("job_schedule.duplicate_name", "name", 1)),
        ([given("a")], ["a", " "], ("input.blank", "schedule_name", None)),
        ([given("a")], "a", ("input.wrong_type", "scope", None)),
        (["a"], ["a"], ("input.wrong_type", "schedules[0]", None)),
    ],
)
def test_exact_sync_refuses_input_that_makes_no_sense_before_sql(
    specs: Any, scope: Any, refusal: tuple[str, str, int | None]
):
    with pytest.raises(RunledgerError) as caught:
        sync_job_schedules_exact(object(), specs, scope=scope)  # pyright: ignore[reportArgumentType]  # not touched

    error = caught.value
    assert (error.code, error.field, error.entry_index) == refusal


def test_additive_sync_refuses_a_name_given_twice_before_sql():
    with pytest.raises(RunledgerError) as caught:
        sync_job_schedules(object(), [given("a"), given("b"), given("a")])  # pyright: ignore[reportArgumentType]  # not touched

    assert (caught.value.code, caught.value.entry_index) == ("job_schedule.duplicate_name", 2)


def test_exact_sync_needs_a_snapshot_that_is_newer_than_its_lock(schedules: Schedules):
    caller = schedules.database.connect()
    caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    with pytest.raises(ValidationError) as caught:
        sync_job_schedules_exact(caller, [given("a")], scope=["a"])

    assert caught.value.code == "job_schedule.sync_unsupported_isolation"
    assert sync_job_schedules(caller, [given("a")]).synced == ("a",)


def test_joined_sync_is_undone_with_the_callers_transaction(schedules: Schedules):
    schedules.store("b")
    caller = schedules.database.connect()
    caller.execute("SET lock_timeout = '7s'")

    sync_job_schedules_exact(caller, [given("a")], scope=["a", "b"])

    assert caller.execute("SHOW lock_timeout").fetchone() == ("7s",)
    caller.rollback()
    assert stored(schedules) == {"b": True}


BOUNDED: dict[str, Sync] = {
    "additive": lambda db, specs: sync_job_schedules(db, specs, lock_timeout_ms=20),
    "exact": lambda db, specs: sync_job_schedules_exact(
        db, specs, scope={spec.name for spec in specs}, lock_timeout_ms=20
    ),
}


@pytest.mark.parametrize("sync", BOUNDED.values(), ids=BOUNDED)
def test_held_schedule_is_waited_for_no_longer_than_asked_though_the_caller_sets_no_bound(
    schedules: Schedules, sync: Sync
):
    schedules.store("a")
    before = schedules.row("a")
    caller = schedules.database.connect()
    # Sooner than the default bound of a sync, and far later than the one that is asked for.
    caller.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '3s'")

    with schedules.held("a"), pytest.raises(RunledgerError) as caught:
        sync(caller, [given("a"), given("b")])

    assert caught.value.code == "db.lock_timeout"
    assert caller.execute("SHOW lock_timeout").fetchone() == ("0",)
    assert (stored(schedules), schedules.row("a")) == ({"a": True}, before)


def test_syncs_of_overlapping_names_never_deadlock(schedules: Schedules):
    names = [f"schedule.{number:02}" for number in range(12)]
    barrier = threading.Barrier(SYNCING)

    def sync(number: int) -> None:
        chance = random.Random(number)
        with schedules.database.connect(autocommit=True) as db:
            barrier.wait(30)
            for turn in range(1, 13):
                specs = [given(name, max_jitter_seconds=turn) for name in chance.sample(names, 6)]
                if turn % 3:
                    sync_job_schedules(db, specs)
                else:
                    scope = {*names[:4], *(spec.name for spec in specs)}
                    sync_job_schedules_exact(db, specs, scope=scope)

    with ThreadPoolExecutor(SYNCING) as threads:
        assert list(threads.map(sync, range(SYNCING))) == [None] * SYNCING


def test_first_syncs_of_many_programs_at_once_all_succeed(schedules: Schedules):
    specs = [given(f"schedule.{number:03}") for number in range(100)]
    barrier = threading.Barrier(SYNCING)

    def sync(number: int) -> int:
        shuffled = random.Random(number).sample(specs, len(specs))
        with schedules.database.connect(autocommit=True) as db:
            barrier.wait(30)
            return len(sync_job_schedules(db, shuffled).synced)

    with ThreadPoolExecutor(SYNCING) as threads:
        assert list(threads.map(sync, range(SYNCING))) == [100] * SYNCING

    assert len(stored(schedules)) == 100
