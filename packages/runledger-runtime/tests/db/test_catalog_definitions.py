"""Syncs of definitions beside schedules, operators and each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from runledger_core import JobDefinitionSpec
from runledger_postgres import (
    get_job_definition,
    list_job_definitions,
    update_job_definition,
    upsert_job_definition,
)
from runledger_postgres.definitions import ActiveScheduleExistsError
from runledger_postgres.errors import QueryError
from runledger_runtime.catalog import JobCatalog, JobCatalogDefaults, JobCatalogSyncScope

from ._blocking import until_blocked

SCOPE = JobCatalogSyncScope(["a", "b", "c"])
TUPLES = "SELECT job_type, ctid, xmin::text FROM runledger.job_definitions ORDER BY job_type"
STEP_SECONDS = 20


def handle(context, payload):
    return None


def catalog_of(*job_types, **values):
    catalog = JobCatalog()
    for job_type in job_types:
        catalog.job(job_type, handle, **values)
    return catalog


@pytest.fixture
def connection(runledger_database):
    return runledger_database.connect(autocommit=True)


def tuples(connection):
    return connection.execute(TUPLES).fetchall()


def enabled(connection):
    return {row.job_type for row in list_job_definitions(connection) if row.is_enabled}


def schedule(connection, job_type, *, is_active=True):
    connection.execute(
        "INSERT INTO runledger.job_schedules (name, job_type, cron_expr, next_fire_at, is_active)"
        " VALUES (%s, %s, '0 0 * * *', now(), %s)",
        [f"nightly.{job_type}", job_type, is_active],
    )


def both_syncs(catalog):
    """Return the additive and the exact sync, each to be called with a connection."""
    return (
        catalog.sync_definitions,
        lambda connection: catalog.sync_definitions_exact(connection, SCOPE),
    )


@pytest.mark.parametrize("kind", [0, 1], ids=["additive", "exact"])
def test_sync_overwrites_every_value_that_it_owns(connection, kind):
    spec = JobDefinitionSpec(
        "a", version=9, max_attempts=9, default_timeout_seconds=9, default_priority=9
    )
    upsert_job_definition(connection, spec)
    catalog = catalog_of("a", version=2, max_attempts=4, timeout_seconds=60, priority=-1)

    both_syncs(catalog)[kind](connection)

    stored = get_job_definition(connection, "a")
    assert stored is not None
    assert (stored.version, stored.max_attempts) == (2, 4)
    assert (stored.default_timeout_seconds, stored.default_priority) == (60, -1)


def test_repeated_syncs_of_both_kinds_write_nothing(connection):
    catalog = catalog_of("a", "b").job("c", handle, enabled=False)
    catalog.sync_definitions(connection)
    before = tuples(connection)

    for sync in both_syncs(catalog) * 2:
        assert sync(connection).disabled_catalog_job_types == ()

    assert tuples(connection) == before


def test_defaults_set_after_the_jobs_are_what_a_sync_writes(connection):
    catalog = catalog_of("a").job("b", handle, max_attempts=2)

    catalog.defaults(JobCatalogDefaults(max_attempts=8)).sync_definitions(connection)

    attempts = {row.job_type: row.max_attempts for row in list_job_definitions(connection)}
    assert attempts == {"a": 8, "b": 2}


def test_job_enabled_by_itself_is_written_enabled_under_disabled_defaults(connection):
    catalog = catalog_of("b", enabled=True).job("a", handle)

    report = catalog.defaults(JobCatalogDefaults(enabled=False)).sync_definitions(connection)

    assert report.disabled_catalog_job_types == ("a",)
    assert enabled(connection) == {"b"}


@pytest.mark.parametrize("kind", [0, 1], ids=["additive", "exact"])
def test_types_that_a_sync_disables_are_reported_sorted_and_once(connection, kind):
    catalog_of("c", "a", "b").sync_definitions(connection)
    update_job_definition(connection, "b", is_enabled=False)
    catalog = catalog_of("c", "b", "a", enabled=False)

    first = both_syncs(catalog)[kind](connection)
    second = both_syncs(catalog)[kind](connection)

    # An operator had disabled b before.
    assert first.disabled_catalog_job_types == ("a", "c")
    assert second.disabled_catalog_job_types == ()


def test_exact_sync_reports_absent_types_sorted_and_deletes_none(connection):
    catalog_of("c", "b", "a").sync_definitions(connection)

    report = catalog_of("b").sync_definitions_exact(connection, SCOPE)

    assert report.disabled_absent_job_types == ("a", "c")
    assert [row.job_type for row in list_job_definitions(connection)] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [0, 1], ids=["additive", "exact"])
def test_scheduled_job_that_the_catalog_disables_refuses_the_whole_sync(connection, kind):
    catalog_of("a", "b").sync_definitions(connection)
    schedule(connection, "b")
    before = tuples(connection)
    catalog = catalog_of("c").job("a", handle, max_attempts=9).job("b", handle, enabled=False)

    with pytest.raises(ActiveScheduleExistsError) as caught:
        both_syncs(catalog)[kind](connection)

    assert caught.value.code == "job_definition.active_schedule_exists"
    assert caught.value.job_types == ("b",)
    # Neither the change of a nor the new c.
    assert tuples(connection) == before


def test_scheduled_job_that_is_absent_refuses_the_whole_exact_sync(connection):
    catalog_of("a", "b").sync_definitions(connection)
    schedule(connection, "b")
    before = tuples(connection)

    with pytest.raises(ActiveScheduleExistsError) as caught:
        catalog_of("a", "c", max_attempts=9).sync_definitions_exact(connection, SCOPE)

    assert caught.value.job_types == ("b",)
    assert tuples(connection) == before


def test_absent_job_that_is_disabled_already_blocks_no_exact_sync(connection):
    catalog_of("b", enabled=False).sync_definitions(connection)
    schedule(connection, "b")

    report = catalog_of("a").sync_definitions_exact(connection, SCOPE)

    assert report.disabled_absent_job_types == ()
    assert enabled(connection) == {"a"}


def test_absent_job_outside_the_scope_may_be_scheduled(connection):
    catalog_of("foreign").sync_definitions(connection)
    schedule(connection, "foreign")

    catalog_of("a").sync_definitions_exact(connection, SCOPE)

    assert enabled(connection) == {"a", "foreign"}


@pytest.mark.parametrize("kind", [0, 1], ids=["additive", "exact"])
def test_job_with_an_inactive_schedule_can_be_disabled(connection, kind):
    catalog_of("a").sync_definitions(connection)
    schedule(connection, "a", is_active=False)

    both_syncs(catalog_of("a", enabled=False))[kind](connection)

    assert enabled(connection) == set()


def test_reintroduced_job_is_enabled_by_an_exact_sync_and_by_no_additive_one(connection):
    catalog_of("a", "b").sync_definitions_exact(connection, SCOPE)
    catalog_of("a").sync_definitions_exact(connection, SCOPE)
    assert enabled(connection) == {"a"}

    catalog_of("a", "b").sync_definitions(connection)
    assert enabled(connection) == {"a"}

    catalog_of("a", "b").sync_definitions_exact(connection, SCOPE)
    assert enabled(connection) == {"a", "b"}


def test_deploys_with_overlapping_scopes_disable_each_others_types(connection):
    old, new = catalog_of("a", "b"), catalog_of("b", "c")

    old.sync_definitions_exact(connection, SCOPE)
    assert new.sync_definitions_exact(connection, SCOPE).disabled_absent_job_types == ("a",)
    # An old process that starts once more while the new ones run.
    assert old.sync_definitions_exact(connection, SCOPE).disabled_absent_job_types == ("c",)

    assert enabled(connection) == {"a", "b"}


def test_deploys_that_only_add_leave_each_other_alone(connection):
    old, new = catalog_of("a", "b"), catalog_of("b", "c")

    for catalog in (old, new, old):
        assert catalog.sync_definitions(connection).disabled_catalog_job_types == ()

    assert enabled(connection) == {"a", "b", "c"}


def test_exact_sync_waits_for_the_lock_and_goes_on_from_what_was_committed(
    connection, runledger_database
):
    catalog_of("a", "b").sync_definitions(connection)
    operator, syncing = runledger_database.connect(), runledger_database.connect(autocommit=True)
    update_job_definition(operator, "b", max_attempts=9)

    with ThreadPoolExecutor(1) as thread:
        sync = thread.submit(catalog_of("a").sync_definitions_exact, syncing, SCOPE)
        until_blocked(connection, syncing, by=operator)
        operator.commit()
        report = sync.result(STEP_SECONDS)

    assert report.disabled_absent_job_types == ("b",)
    stored = get_job_definition(connection, "b")
    assert stored is not None
    assert (stored.max_attempts, stored.is_enabled) == (9, False)


def test_additive_sync_that_waited_keeps_the_disable_it_waited_for(connection, runledger_database):
    catalog_of("a").sync_definitions(connection)
    operator, syncing = runledger_database.connect(), runledger_database.connect(autocommit=True)
    update_job_definition(operator, "a", is_enabled=False)

    with ThreadPoolExecutor(1) as thread:
        sync = thread.submit(catalog_of("a", max_attempts=9).sync_definitions, syncing)
        until_blocked(connection, syncing, by=operator)
        operator.commit()
        report = sync.result(STEP_SECONDS)

    # The operator disabled it, not the sync.
    assert report.disabled_catalog_job_types == ()
    assert enabled(connection) == set()


@pytest.mark.parametrize("kind", [0, 1], ids=["additive", "exact"])
def test_sync_that_waits_too_long_is_refused_and_leaves_the_settings(
    connection, runledger_database, kind
):
    catalog_of("a", "b").sync_definitions(connection)
    holder, syncing = runledger_database.connect(), runledger_database.connect(autocommit=True)
    holder.execute("SELECT FROM runledger.job_definitions WHERE job_type = 'b' FOR UPDATE")
    # The smaller of the caller's bound and ours.
    syncing.execute("SET lock_timeout = '20ms'")

    with pytest.raises(QueryError) as caught:
        both_syncs(catalog_of("a", "b", max_attempts=9))[kind](syncing)

    assert caught.value.code == "db.lock_timeout"
    assert syncing.execute("SHOW lock_timeout").fetchone() == ("20ms",)
    assert {row.max_attempts for row in list_job_definitions(connection)} == {3}
