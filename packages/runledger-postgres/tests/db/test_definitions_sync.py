from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from runledger_core import JobDefinitionSpec, RunledgerError
from runledger_postgres.definitions import (
    ActiveScheduleExistsError,
    DefinitionSyncReport,
    ExactDefinitionSyncReport,
    list_job_definitions,
    sync_job_definitions,
    sync_job_definitions_exact,
    update_job_definition,
)
from runledger_test_support import TemporaryDatabase

MAIL = JobDefinitionSpec("mail", version=2)
SMS = JobDefinitionSpec("sms")
FAX = JobDefinitionSpec("fax")
SMS_DISABLED = JobDefinitionSpec("sms", is_enabled=False)
TUPLES = "SELECT ctid, xmin::text, xmax::text FROM runledger.job_definitions ORDER BY job_type"
SYNCING = 8


@pytest.fixture
def connection(runledger_database: TemporaryDatabase) -> psycopg.Connection[Any]:
    return runledger_database.connect(autocommit=True)


def stored(db: psycopg.Connection[Any]) -> dict[str, tuple[int, bool]]:
    return {row.job_type: (row.version, row.is_enabled) for row in list_job_definitions(db)}


def schedule(db: psycopg.Connection[Any], job_type: str) -> None:
    db.execute(
        "INSERT INTO runledger.job_schedules (name, job_type, cron_expr, next_fire_at)"
        " VALUES (%s, %s, '0 0 * * *', now())",
        [f"nightly.{job_type}", job_type],
    )


@pytest.mark.core
def test_additive_sync_writes_what_is_given_and_leaves_the_rest(
    connection: psycopg.Connection[Any],
):
    sync_job_definitions(connection, [JobDefinitionSpec("mail", version=1), FAX])

    report = sync_job_definitions(connection, [SMS, MAIL])

    assert report == DefinitionSyncReport(disabled_catalog_job_types=())
    assert stored(connection) == {"fax": (1, True), "mail": (2, True), "sms": (1, True)}


def test_additive_sync_keeps_what_an_operator_disabled(connection: psycopg.Connection[Any]):
    sync_job_definitions(connection, [JobDefinitionSpec("mail", version=1)])
    update_job_definition(connection, "mail", is_enabled=False)

    report = sync_job_definitions(connection, [MAIL])

    assert report.disabled_catalog_job_types == ()
    assert stored(connection) == {"mail": (2, False)}


def test_types_that_become_disabled_are_reported_sorted(connection: psycopg.Connection[Any]):
    sync_job_definitions(connection, [SMS])
    given = [
        SMS_DISABLED,
        JobDefinitionSpec("pager", is_enabled=False),
        JobDefinitionSpec("fax", is_enabled=False),
        MAIL,
    ]

    assert sync_job_definitions(connection, given) == DefinitionSyncReport(("fax", "pager", "sms"))
    assert sync_job_definitions(connection, given) == DefinitionSyncReport(())


def test_sync_of_nothing_is_no_work():
    assert sync_job_definitions(psycopg.Connection, []) == DefinitionSyncReport()  # pyright: ignore[reportArgumentType]  # not touched


def test_equal_definitions_are_neither_written_nor_waited_for(
    runledger_database: TemporaryDatabase, connection: psycopg.Connection[Any]
):
    sync_job_definitions(connection, [MAIL, SMS])
    before = connection.execute(TUPLES).fetchall()
    other = runledger_database.connect()
    other.execute("LOCK TABLE runledger.job_definitions IN SHARE ROW EXCLUSIVE MODE")

    sync_job_definitions(connection, [MAIL, SMS], lock_timeout_ms=1)
    sync_job_definitions_exact(connection, [MAIL, SMS], scope=["mail", "sms"], lock_timeout_ms=1)

    assert connection.execute(TUPLES).fetchall() == before


def test_scheduled_type_is_not_disabled_and_nothing_else_is_written(
    connection: psycopg.Connection[Any],
):
    sync_job_definitions(connection, [SMS, JobDefinitionSpec("mail", version=1)])
    schedule(connection, "sms")

    with pytest.raises(ActiveScheduleExistsError) as caught:
        sync_job_definitions(connection, [MAIL, SMS_DISABLED, FAX])

    assert caught.value.job_types == ("sms",)
    assert stored(connection) == {"mail": (1, True), "sms": (1, True)}


def test_exact_sync_disables_absent_types_in_scope_only(connection: psycopg.Connection[Any]):
    sync_job_definitions(connection, [MAIL, SMS, FAX, JobDefinitionSpec("pager")])

    report = sync_job_definitions_exact(
        connection, [MAIL], scope={"sms", "mail", "fax", "never.defined"}
    )

    assert report == ExactDefinitionSyncReport(disabled_absent_job_types=("fax", "sms"))
    assert stored(connection) == {
        "fax": (1, False),
        "mail": (2, True),
        "pager": (1, True),
        "sms": (1, False),
    }


def test_exact_sync_enables_what_an_operator_disabled(connection: psycopg.Connection[Any]):
    sync_job_definitions(connection, [MAIL])
    update_job_definition(connection, "mail", is_enabled=False)

    report = sync_job_definitions_exact(connection, [MAIL], scope=["mail"])

    assert report == ExactDefinitionSyncReport()
    assert stored(connection) == {"mail": (2, True)}


def test_exact_sync_reports_both_kinds_apart(connection: psycopg.Connection[Any]):
    sync_job_definitions(connection, [MAIL, SMS, FAX])

    report = sync_job_definitions_exact(
        connection, [MAIL, SMS_DISABLED], scope=["mail", "sms", "fax"]
    )

    assert report == ExactDefinitionSyncReport(
        disabled_catalog_job_types=("sms",), disabled_absent_job_types=("fax",)
    )


def test_absent_type_with_an_active_schedule_refuses_everything(
    connection: psycopg.Connection[Any],
):
    sync_job_definitions(connection, [SMS, FAX])
    schedule(connection, "sms")
    schedule(connection, "fax")

    with pytest.raises(ActiveScheduleExistsError) as caught:
        sync_job_definitions_exact(connection, [MAIL], scope=["mail", "sms", "fax"])

    assert caught.value.code == "job_definition.active_schedule_exists"
    assert caught.value.job_types == ("fax", "sms")
    assert stored(connection) == {"fax": (1, True), "sms": (1, True)}


def test_absent_type_that_is_disabled_already_blocks_nothing(connection: psycopg.Connection[Any]):
    sync_job_definitions(connection, [SMS_DISABLED])
    schedule(connection, "sms")

    report = sync_job_definitions_exact(connection, [MAIL], scope=["mail", "sms"])

    assert report == ExactDefinitionSyncReport()
    assert stored(connection) == {"mail": (2, True), "sms": (1, False)}


@pytest.mark.parametrize(
    ("specs", "scope", "refusal"),
    [
        ([], ["mail"], ("job_definition.empty_job_type_list", "specs", None)),
        ([MAIL], [], ("job_definition.empty_job_type_list", "scope", None)),
        ([MAIL, SMS], ["mail"], ("job_definition.type_outside_sync_scope", "scope", 1)),
        ([MAIL, MAIL], ["mail"], ("job_definition.duplicate_job_type", "job_type", 1)),
        ([MAIL], ["mail", " "], ("input.blank", "job_type", None)),
        ([MAIL], "mail", ("input.wrong_type", "scope", None)),
    ],
)
def test_exact_sync_refuses_input_that_makes_no_sense(
    connection: psycopg.Connection[Any],
    specs: list[JobDefinitionSpec],
    scope: Any,
    refusal: tuple[str, str, int | None],
):
    with pytest.raises(RunledgerError) as caught:
        sync_job_definitions_exact(connection, specs, scope=scope)

    error = caught.value
    assert (error.code, error.field, error.entry_index) == refusal
    assert stored(connection) == {}


def test_additive_sync_refuses_a_type_given_twice(connection: psycopg.Connection[Any]):
    with pytest.raises(RunledgerError) as caught:
        sync_job_definitions(connection, [MAIL, SMS, MAIL])

    assert caught.value.code == "job_definition.duplicate_job_type"
    assert caught.value.entry_index == 2


def test_joined_sync_is_undone_with_the_callers_transaction(runledger_database: TemporaryDatabase):
    caller = runledger_database.connect()

    sync_job_definitions(caller, [MAIL])
    caller.rollback()

    assert stored(caller) == {}


SYNCS: dict[str, Callable[[psycopg.Connection[Any]], object]] = {
    "additive": lambda db: sync_job_definitions(db, [MAIL, SMS], lock_timeout_ms=20),
    "exact": lambda db: sync_job_definitions_exact(
        db, [MAIL, SMS], scope=["mail", "sms"], lock_timeout_ms=20
    ),
}


@pytest.mark.parametrize("sync", SYNCS.values(), ids=SYNCS)
def test_held_definition_is_waited_for_no_longer_than_asked_though_the_caller_sets_no_bound(
    runledger_database: TemporaryDatabase,
    connection: psycopg.Connection[Any],
    sync: Callable[[psycopg.Connection[Any]], object],
):
    sync_job_definitions(connection, [JobDefinitionSpec("mail", version=1)])
    other = runledger_database.connect()
    other.execute("SELECT FROM runledger.job_definitions WHERE job_type = 'mail' FOR UPDATE")
    caller = runledger_database.connect()
    # Sooner than the default bound of a sync, and far later than the one that is asked for.
    caller.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '3s'")

    with pytest.raises(RunledgerError) as caught:
        sync(caller)

    assert caught.value.code == "db.lock_timeout"
    assert caller.execute("SHOW lock_timeout").fetchone() == ("0",)
    other.rollback()
    assert stored(caller) == {"mail": (1, True)}


def test_first_syncs_of_many_programs_at_once_all_succeed(
    runledger_database: TemporaryDatabase, connection: psycopg.Connection[Any]
):
    specs = [JobDefinitionSpec(f"job.{number:03}") for number in range(300)]
    barrier = threading.Barrier(SYNCING)

    def sync(number: int) -> None:
        given = random.Random(number).sample(specs, len(specs))
        with runledger_database.connect(autocommit=True) as db:
            for _ in range(5):
                if barrier.wait(30) == 0:
                    connection.execute("DELETE FROM runledger.job_definitions")
                barrier.wait(30)
                sync_job_definitions(db, given)

    with ThreadPoolExecutor(SYNCING) as threads:
        assert list(threads.map(sync, range(SYNCING))) == [None] * SYNCING

    assert len(list_job_definitions(connection, limit=1000)) == 300


def test_syncs_of_overlapping_types_never_deadlock(runledger_database: TemporaryDatabase):
    types = [f"job.{number:02}" for number in range(12)]
    barrier = threading.Barrier(SYNCING)

    def sync(number: int) -> None:
        chance = random.Random(number)
        with runledger_database.connect(autocommit=True) as db:
            barrier.wait(30)
            for version in range(1, 11):
                chosen = chance.sample(types, 6)
                specs = [JobDefinitionSpec(t, version=version * 100 + number) for t in chosen]
                if version % 2:
                    sync_job_definitions(db, specs)
                else:
                    sync_job_definitions_exact(db, specs, scope=[*chosen, *types[:3]])

    with ThreadPoolExecutor(SYNCING) as threads:
        assert list(threads.map(sync, range(SYNCING))) == [None] * SYNCING
