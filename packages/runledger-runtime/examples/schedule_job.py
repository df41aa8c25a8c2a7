"""A worker with a schedule of its own; it runs until Ctrl-C or SIGTERM.

Run it against a database of yours; it migrates, and writes its definition and its schedule:

    DATABASE_URL=postgresql://... python schedule_job.py

and look at the schedule from another terminal:

    runledger schedules list
    runledger schedules preview example.heartbeat
"""

import logging
from typing import TypedDict

from runledger_core import JobContext
from runledger_postgres import connect_pool, migrate
from runledger_runtime import CatalogJobScheduleSpec, JobCatalog, JobsConfig, Supervisor

logger = logging.getLogger("example")
catalog = JobCatalog()


class Fire(TypedDict):
    """What a schedule adds to the payload: which of its fires the job is of."""

    schedule_id: str
    schedule_name: str
    scheduled_for: str


class Heartbeat(TypedDict):
    """The payload of a heartbeat: that of the template, and the fire."""

    to: str
    _schedule: Fire


@catalog.job("example.heartbeat", max_attempts=3, timeout_seconds=10)
def send_heartbeat(context: JobContext, payload: Heartbeat) -> None:
    """Tell somebody that all is well."""
    del context
    # After downtime one job comes late: it carries the time for which it was meant.
    logger.info("heartbeat to %s for %s", payload["to"], payload["_schedule"]["scheduled_for"])


catalog.schedule(
    CatalogJobScheduleSpec(
        "example.heartbeat",
        "example.heartbeat",
        # The second comes first: every five seconds, in UTC.
        cron_expr="*/5 * * * * ?",
        payload_template={"to": "ops@example.com"},
    )
)


def main() -> None:
    """Run the worker; its Supervisor fires the schedule, too."""
    logging.basicConfig(level=logging.INFO)
    with connect_pool() as pool:  # DATABASE_URL
        migrate(pool)
        catalog.sync_definitions(pool)
        catalog.sync_schedules(pool)
        supervisor = Supervisor.builder(pool, JobsConfig.from_env()).with_catalog(catalog).build()
        supervisor.run_until_shutdown(timeout=30)


if __name__ == "__main__":
    main()
