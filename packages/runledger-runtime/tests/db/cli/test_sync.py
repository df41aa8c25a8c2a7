"""What a worker writes before it runs."""

from runledger_postgres import update_job_definition
from runledger_postgres.schedules import get_job_schedule_by_name
from runledger_runtime.catalog import CatalogJobScheduleSpec, JobCatalog
from runledger_runtime.cli._sync import sync_catalog


def test_schedule_that_is_paused_keeps_the_template_that_was_encoded(
    runledger_pool, runledger_database
):
    template = {"n": 1}
    catalog = JobCatalog().job("report", lambda context, payload: None)
    catalog.schedule(
        CatalogJobScheduleSpec("nightly", "report", cron_expr="@daily", payload_template=template)
    )
    catalog.sync_definitions(runledger_pool)
    update_job_definition(runledger_pool, "report", is_enabled=False)
    template["n"] = 2

    with runledger_database.connect(autocommit=True) as connection:
        sync_catalog(connection, catalog)

    schedule = get_job_schedule_by_name(runledger_pool, "nightly")
    assert schedule is not None
    assert (schedule.is_active, schedule.payload_template) == (False, {"n": 1})
