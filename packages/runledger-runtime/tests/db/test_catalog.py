import pytest

from runledger_core import ErrorCategory
from runledger_postgres import enqueue_job, get_job_definition, update_job_definition
from runledger_postgres.errors import QueryError
from runledger_runtime.catalog import JobCatalog, JobCatalogDefaults, JobCatalogSyncScope
from runledger_runtime.errors import CatalogError

SCOPE = JobCatalogSyncScope(["jobs.one", "jobs.two"])


def handle(context, payload):
    return None


def catalog_of(*job_types, enabled=None):
    catalog = JobCatalog()
    for job_type in job_types:
        catalog.job(job_type, handle, enabled=enabled)
    return catalog


def stored(pool, job_type):
    definition = get_job_definition(pool, job_type)
    assert definition is not None
    return definition


def is_enabled(pool, job_type):
    return stored(pool, job_type).is_enabled


def test_sync_writes_what_the_catalog_says(runledger_pool):
    catalog = (
        JobCatalog()
        .job("jobs.one", handle, max_attempts=5, timeout_seconds=60, priority=-2, version=4)
        .defaults(JobCatalogDefaults(max_attempts=7))
        .job("jobs.two", handle)
    )

    report = catalog.sync_definitions(runledger_pool)

    one = stored(runledger_pool, "jobs.one")
    assert (one.version, one.max_attempts) == (4, 5)
    assert (one.default_timeout_seconds, one.default_priority, one.is_enabled) == (60, -2, True)
    assert stored(runledger_pool, "jobs.two").max_attempts == 7
    assert report.disabled_catalog_job_types == ()


def test_sync_of_no_job_does_nothing(runledger_pool):
    assert JobCatalog().sync_definitions(runledger_pool).disabled_catalog_job_types == ()


def test_a_second_sync_changes_nothing(runledger_pool):
    catalog = catalog_of("jobs.one").job("jobs.two", handle, enabled=False)
    first = catalog.sync_definitions(runledger_pool)
    before = get_job_definition(runledger_pool, "jobs.one")

    second = catalog.sync_definitions(runledger_pool)

    assert first.disabled_catalog_job_types == ("jobs.two",)
    assert second.disabled_catalog_job_types == ()
    assert get_job_definition(runledger_pool, "jobs.one") == before


def test_sync_restores_values_and_keeps_an_operators_pause(runledger_pool):
    catalog_of("jobs.one").sync_definitions(runledger_pool)
    update_job_definition(runledger_pool, "jobs.one", max_attempts=9, is_enabled=False)

    catalog_of("jobs.one").sync_definitions(runledger_pool)

    assert stored(runledger_pool, "jobs.one").max_attempts == 3
    assert not is_enabled(runledger_pool, "jobs.one")


def test_sync_leaves_jobs_of_others_alone(runledger_pool):
    catalog_of("jobs.one", "jobs.two").sync_definitions(runledger_pool)

    catalog_of("jobs.one").sync_definitions(runledger_pool)

    assert is_enabled(runledger_pool, "jobs.two")


def test_sync_disables_what_the_catalog_disables(runledger_pool):
    catalog_of("jobs.one").sync_definitions(runledger_pool)

    report = catalog_of("jobs.one", enabled=False).sync_definitions(runledger_pool)

    assert report.disabled_catalog_job_types == ("jobs.one",)
    assert not is_enabled(runledger_pool, "jobs.one")


def test_exact_sync_disables_absent_jobs_in_its_scope_only(runledger_pool):
    catalog_of("jobs.one", "jobs.two", "jobs.three").sync_definitions(runledger_pool)

    report = catalog_of("jobs.one").sync_definitions_exact(runledger_pool, SCOPE)

    assert report.disabled_absent_job_types == ("jobs.two",)
    assert report.disabled_catalog_job_types == ()
    assert is_enabled(runledger_pool, "jobs.one")
    assert not is_enabled(runledger_pool, "jobs.two")
    assert is_enabled(runledger_pool, "jobs.three")


def test_exact_sync_enables_again(runledger_pool):
    catalog_of("jobs.one").sync_definitions(runledger_pool)
    update_job_definition(runledger_pool, "jobs.one", is_enabled=False)

    catalog_of("jobs.one").sync_definitions_exact(runledger_pool, SCOPE)

    assert is_enabled(runledger_pool, "jobs.one")


def test_exact_sync_disables_what_the_catalog_disables(runledger_pool):
    catalog_of("jobs.one").sync_definitions(runledger_pool)

    report = catalog_of("jobs.one", enabled=False).sync_definitions_exact(runledger_pool, SCOPE)

    assert report.disabled_catalog_job_types == ("jobs.one",)


def test_a_refused_exact_sync_writes_nothing(runledger_pool):
    catalog = catalog_of("jobs.one", "jobs.foreign")

    with pytest.raises(CatalogError):
        catalog.sync_definitions_exact(runledger_pool, SCOPE)

    assert get_job_definition(runledger_pool, "jobs.one") is None


def test_sync_joins_the_callers_transaction(runledger_pool):
    with runledger_pool.connection() as connection, connection.transaction(force_rollback=True):
        catalog_of("jobs.one").sync_definitions(connection)
        assert is_enabled(connection, "jobs.one")

    assert get_job_definition(runledger_pool, "jobs.one") is None


def test_helpers_do_not_see_an_operators_pause_but_the_enqueue_does(runledger_pool):
    catalog = catalog_of("jobs.one")
    catalog.sync_definitions(runledger_pool)
    update_job_definition(runledger_pool, "jobs.one", is_enabled=False)

    request = catalog.job_enqueue("jobs.one", {})
    with pytest.raises(QueryError) as caught:
        enqueue_job(runledger_pool, request)

    assert caught.value.code == "job.definition_not_found_or_disabled"
    assert caught.value.category is ErrorCategory.VALIDATION
