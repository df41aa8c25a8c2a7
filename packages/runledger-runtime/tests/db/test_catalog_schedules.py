from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from psycopg.rows import dict_row

from runledger_core import ErrorCategory
from runledger_postgres import (
    set_job_schedule_active,
    set_job_schedule_next_fire_at,
    update_job_definition,
    upsert_job_schedule,
)
from runledger_postgres.errors import QueryError
from runledger_runtime.catalog import (
    CatalogJobScheduleSpec,
    JobCatalog,
    JobCatalogScheduleSyncScope,
)
from runledger_runtime.errors import CatalogError

from ._blocking import until_blocked

HOURLY = "0 0 * * * *"
DAILY = "0 0 0 * * *"
LATER = datetime(2031, 1, 1, tzinfo=UTC)
SCOPE = JobCatalogScheduleSyncScope(["a", "b", "c"])
TUPLES = "SELECT name, ctid, xmin::text FROM runledger.job_schedules ORDER BY name"
STEP_SECONDS = 20


def handle(context, payload):
    return None


def spec(name, job_type="jobs.one", **fields):
    return CatalogJobScheduleSpec(name, job_type, **{"cron_expr": HOURLY, **fields})


def catalog_of(*names, **fields):
    catalog = JobCatalog().job("jobs.one", handle).job("jobs.two", handle)
    for name in names:
        catalog.schedule(spec(name, **fields))
    return catalog


@pytest.fixture
def connection(runledger_database):
    connection = runledger_database.connect(autocommit=True)
    catalog_of().sync_definitions(connection)
    return connection


def row(connection, name, *columns):
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(
            "SELECT * FROM runledger.job_schedules WHERE name = %s", [name]
        ).fetchone()
    assert found is not None
    return tuple(found[column] for column in columns)


def active(connection):
    rows = connection.execute("SELECT name FROM runledger.job_schedules WHERE is_active").fetchall()
    return {name for (name,) in rows}


def stored(connection):
    rows = connection.execute("SELECT name FROM runledger.job_schedules").fetchall()
    return {name for (name,) in rows}


def tuples(connection):
    return connection.execute(TUPLES).fetchall()


def refusal(call, *arguments):
    with pytest.raises(QueryError) as caught:
        call(*arguments)
    return caught.value


def test_sync_writes_every_field(connection):
    catalog = catalog_of().schedule(
        spec(
            "a",
            "jobs.two",
            cron_expr=DAILY,
            payload_template={"full": [True]},
            is_active=False,
            organization_id=UUID(int=1),
            max_jitter_seconds=60,
            next_fire_at=LATER,
        )
    )

    assert catalog.sync_schedules(connection).synced == ("a",)

    columns = ("job_type", "cron_expr", "payload_template", "is_active", "organization_id")
    assert row(connection, "a", *columns) == (
        "jobs.two",
        DAILY,
        {"full": [True]},
        False,
        UUID(int=1),
    )
    assert row(connection, "a", "max_jitter_seconds", "next_fire_at") == (60, LATER)


def test_schedule_without_a_first_fire_is_due_at_the_sync(connection):
    before = connection.execute("SELECT clock_timestamp()").fetchone()[0]

    catalog_of("a").sync_schedules(connection)

    (next_fire_at,) = row(connection, "a", "next_fire_at")
    assert before <= next_fire_at <= connection.execute("SELECT clock_timestamp()").fetchone()[0]


def test_sync_reports_names_in_the_order_of_the_catalog(connection):
    assert catalog_of("b", "a", "c").sync_schedules(connection).synced == ("b", "a", "c")


def test_sync_with_specs_writes_those_and_not_the_catalogs(connection):
    catalog = catalog_of("a")

    report = catalog.sync_schedules_with(connection, [spec("c"), spec("b", "jobs.two")])

    assert report.synced == ("c", "b")
    assert stored(connection) == {"b", "c"}


def test_additive_sync_leaves_schedules_of_others_alone(connection):
    catalog_of("a", "b").sync_schedules(connection)
    before = tuples(connection)[1]

    catalog_of("a").sync_schedules(connection)

    assert tuples(connection)[1] == before


def test_second_sync_writes_nothing(connection):
    catalog = catalog_of("a", next_fire_at=LATER).schedule(spec("b", is_active=False))
    catalog.sync_schedules(connection)
    before = tuples(connection)

    catalog.sync_schedules(connection)
    catalog.sync_schedules_exact(connection, catalog.schedule_sync_scope())

    assert tuples(connection) == before


def test_sync_overwrites_an_operators_pause_and_resume(connection):
    catalog = catalog_of("a").schedule(spec("b", is_active=False))
    catalog.sync_schedules(connection)
    set_job_schedule_active(connection, "a", False)
    set_job_schedule_active(connection, "b", True)

    catalog.sync_schedules(connection)

    assert active(connection) == {"a"}


def test_pause_of_a_schedule_that_no_catalog_owns_lasts(connection):
    catalog = catalog_of("a")
    upsert_job_schedule(connection, catalog.job_schedule("own", "jobs.one", cron_expr=HOURLY))
    set_job_schedule_active(connection, "own", False)

    upsert_job_schedule(connection, catalog.job_schedule("own", "jobs.one", cron_expr=HOURLY))
    catalog.sync_schedules(connection)
    catalog.sync_schedules_exact(connection, catalog.schedule_sync_scope())

    assert active(connection) == {"a"}


def test_sync_keeps_the_organization_of_the_first_insert(connection):
    catalog_of("a", organization_id=UUID(int=1)).sync_schedules(connection)

    catalog_of("a", organization_id=UUID(int=2), max_jitter_seconds=5).sync_schedules(connection)

    assert row(connection, "a", "organization_id", "max_jitter_seconds") == (UUID(int=1), 5)


def test_next_fire_is_kept_while_the_expression_is_the_same(connection):
    catalog_of("a").sync_schedules(connection)
    set_job_schedule_next_fire_at(connection, "a", LATER)

    changed = catalog_of("a", next_fire_at=LATER + timedelta(1), max_jitter_seconds=5)
    changed.sync_schedules(connection)

    assert row(connection, "a", "next_fire_at", "max_jitter_seconds") == (LATER, 5)


def test_new_expression_takes_the_next_fire_of_the_spec_or_now(connection):
    catalog_of("a", next_fire_at=LATER).sync_schedules(connection)

    catalog_of("a", cron_expr=DAILY, next_fire_at=LATER + timedelta(1)).sync_schedules(connection)
    assert row(connection, "a", "next_fire_at") == (LATER + timedelta(1),)

    catalog_of("a").sync_schedules(connection)
    (next_fire_at,) = row(connection, "a", "next_fire_at")
    assert next_fire_at < LATER


def test_sync_needs_the_definitions_first(runledger_database):
    connection = runledger_database.connect(autocommit=True)

    error = refusal(catalog_of("a").sync_schedules, connection)

    assert error.code == "job_schedule.definition_not_found_or_disabled"
    assert error.category is ErrorCategory.VALIDATION
    assert stored(connection) == set()


def test_failing_entry_is_named_and_nothing_is_written(connection):
    catalog = catalog_of("c").schedule(spec("b", "jobs.two")).schedule(spec("a"))
    catalog_of("c", max_jitter_seconds=9).sync_schedules(connection)
    update_job_definition(connection, "jobs.two", is_enabled=False)
    before = tuples(connection)

    for error in (
        refusal(catalog.sync_schedules, connection),
        refusal(catalog.sync_schedules_exact, connection, catalog.schedule_sync_scope()),
    ):
        assert error.code == "job_schedule.definition_not_found_or_disabled"
        assert error.entry_index == 1
        assert " b" in error.client_message

    assert tuples(connection) == before


def test_joined_sync_is_undone_with_the_callers_transaction(connection):
    with connection.transaction(force_rollback=True):
        catalog_of("a").sync_schedules(connection)
        assert stored(connection) == {"a"}

    assert stored(connection) == set()


def test_refused_sync_leaves_the_callers_transaction_usable(connection):
    update_job_definition(connection, "jobs.two", is_enabled=False)
    catalog = catalog_of("a").schedule(spec("b", "jobs.two"))

    with connection.transaction():
        catalog_of("c").sync_schedules(connection)
        refusal(catalog.sync_schedules, connection)

    assert stored(connection) == {"c"}


def test_exact_sync_deactivates_absent_schedules_in_its_scope_only(connection):
    catalog_of("c", "b", "a", "foreign").sync_schedules(connection)

    report = catalog_of("a").sync_schedules_exact(connection, SCOPE)

    assert report.synced == ("a",)
    assert report.deactivated == ("b", "c")
    assert active(connection) == {"a", "foreign"}
    assert stored(connection) == {"a", "b", "c", "foreign"}


def test_exact_sync_reports_what_was_active_only(connection):
    catalog_of("a", "b").schedule(spec("c", is_active=False)).sync_schedules(connection)
    catalog = catalog_of("a")

    first = catalog.sync_schedules_exact(connection, SCOPE)
    second = catalog.sync_schedules_exact(connection, SCOPE)

    assert (first.deactivated, second.deactivated) == (("b",), ())


def test_exact_sync_of_no_schedule_deactivates_the_whole_scope(connection):
    catalog_of("a", "b", "foreign").sync_schedules(connection)

    report = catalog_of().sync_schedules_exact(connection, SCOPE)

    assert (report.synced, report.deactivated) == ((), ("a", "b"))
    assert active(connection) == {"foreign"}


def test_exact_sync_with_specs_takes_one_list_of_both_kinds(connection):
    catalog = catalog_of("a")
    catalog_of("a", "b", "c").sync_schedules(connection)

    report = catalog.sync_schedules_exact_with(connection, SCOPE, [spec("c"), spec("a")])

    assert (report.synced, report.deactivated) == (("c", "a"), ("b",))


def test_reintroduced_schedule_is_active_again(connection):
    catalog_of("a", "b", next_fire_at=LATER).sync_schedules_exact(connection, SCOPE)
    catalog_of("a").sync_schedules_exact(connection, SCOPE)
    assert active(connection) == {"a"}

    report = catalog_of("a", "b").sync_schedules_exact(connection, SCOPE)

    assert report.deactivated == ()
    assert active(connection) == {"a", "b"}
    # The expression is the same, so the cursor is too.
    assert row(connection, "b", "next_fire_at") == (LATER,)


def test_exact_sync_outside_its_scope_writes_nothing(connection):
    catalog_of("a", "b").sync_schedules(connection)
    before = tuples(connection)

    with pytest.raises(CatalogError):
        catalog_of("a", "foreign").sync_schedules_exact(connection, SCOPE)

    assert tuples(connection) == before


def test_deploys_with_overlapping_scopes_switch_each_others_schedules_off(connection):
    old = catalog_of("a", "b")
    new = catalog_of("b", "c")

    old.sync_schedules_exact(connection, SCOPE)
    assert new.sync_schedules_exact(connection, SCOPE).deactivated == ("a",)
    # An old process that starts once more while the new ones run.
    assert old.sync_schedules_exact(connection, SCOPE).deactivated == ("c",)

    assert active(connection) == {"a", "b"}


def test_deploys_with_scopes_of_their_own_leave_each_other_alone(connection):
    old = catalog_of("a", "b")
    new = catalog_of("c").schedule(spec("d", is_active=False))

    for catalog in (old, new, old):
        report = catalog.sync_schedules_exact(connection, catalog.schedule_sync_scope())
        assert report.deactivated == ()

    assert active(connection) == {"a", "b", "c"}


def test_flagged_schedule_that_stays_registered_is_off_and_owned(connection):
    catalog_of("a").schedule(spec("b")).sync_schedules_exact(connection, SCOPE)

    flagged = catalog_of("a").schedule(spec("b", is_active=False))
    report = flagged.sync_schedules_exact(connection, flagged.schedule_sync_scope())

    # Given as inactive, so not absent.
    assert (report.synced, report.deactivated) == (("a", "b"), ())
    assert active(connection) == {"a"}


def test_exact_sync_waits_for_an_open_write_and_sees_it(connection, runledger_database):
    writer, syncing = runledger_database.connect(), runledger_database.connect(autocommit=True)
    # Of another type: nothing but the table is locked by both.
    upsert_job_schedule(writer, catalog_of().job_schedule("b", "jobs.two", cron_expr=HOURLY))

    with ThreadPoolExecutor(1) as thread:
        sync = thread.submit(catalog_of("a").sync_schedules_exact, syncing, SCOPE)
        until_blocked(connection, syncing, by=writer)
        assert stored(connection) == set()
        writer.commit()
        report = sync.result(STEP_SECONDS)

    assert (report.synced, report.deactivated) == (("a",), ("b",))
    assert active(connection) == {"a"}


def test_exact_syncs_do_not_interleave(connection, runledger_database):
    first, second = runledger_database.connect(), runledger_database.connect()
    catalog_of("a").sync_schedules_exact(first, SCOPE)
    other = catalog_of().schedule(spec("c", "jobs.two"))

    with ThreadPoolExecutor(1) as thread:
        sync = thread.submit(other.sync_schedules_exact, second, SCOPE)
        until_blocked(connection, second, by=first)
        first.commit()
        report = sync.result(STEP_SECONDS)
        second.commit()

    # Not both, as if neither had seen the other.
    assert report.deactivated == ("a",)
    assert active(connection) == {"c"}


def test_exact_sync_that_waits_too_long_is_refused_and_leaves_the_settings(
    connection, runledger_database
):
    writer, syncing = runledger_database.connect(), runledger_database.connect(autocommit=True)
    writer.execute("LOCK TABLE runledger.job_schedules IN ROW EXCLUSIVE MODE")
    # The smaller of the caller's bound and ours.
    syncing.execute("SET lock_timeout = '20ms'")

    error = refusal(catalog_of("a").sync_schedules_exact, syncing, SCOPE)

    assert error.code == "db.lock_timeout"
    assert stored(connection) == set()
    assert syncing.execute("SHOW lock_timeout").fetchone() == ("20ms",)


def test_disable_waits_for_an_open_activation_and_is_refused(connection, runledger_database):
    activating, disabling = runledger_database.connect(), runledger_database.connect()
    catalog_of("a").sync_schedules(activating)
    disabled = JobCatalog().job("jobs.one", handle, enabled=False)

    with ThreadPoolExecutor(1) as thread:
        sync = thread.submit(refusal, disabled.sync_definitions, disabling)
        until_blocked(connection, disabling, by=activating)
        activating.commit()
        error = sync.result(STEP_SECONDS)

    assert error.code == "job_definition.active_schedule_exists"
    assert active(connection) == {"a"}


def test_activation_waits_for_an_open_disable_and_is_refused(connection, runledger_database):
    disabling, activating = runledger_database.connect(), runledger_database.connect()
    JobCatalog().job("jobs.one", handle, enabled=False).sync_definitions(disabling)

    with ThreadPoolExecutor(1) as thread:
        sync = thread.submit(refusal, catalog_of("a").sync_schedules, activating)
        until_blocked(connection, activating, by=disabling)
        disabling.commit()
        error = sync.result(STEP_SECONDS)

    assert error.code == "job_schedule.definition_not_found_or_disabled"
    assert stored(connection) == set()


def test_helper_does_not_see_an_operators_disable_but_the_upsert_does(connection):
    catalog = catalog_of()
    update_job_definition(connection, "jobs.one", is_enabled=False)

    request = catalog.job_schedule("a", "jobs.one", cron_expr=HOURLY)
    error = refusal(upsert_job_schedule, connection, request)

    assert error.code == "job_schedule.definition_not_found_or_disabled"


def test_retired_job_is_disabled_after_its_schedule_was_given_up(connection):
    catalog_of("a", "b").sync_schedules_exact(connection, SCOPE)
    retired = JobCatalog().job("jobs.one", handle, enabled=False)
    assert refusal(retired.sync_definitions, connection).code == (
        "job_definition.active_schedule_exists"
    )

    retired.sync_schedules_exact(connection, SCOPE)

    assert retired.sync_definitions(connection).disabled_catalog_job_types == ("jobs.one",)
