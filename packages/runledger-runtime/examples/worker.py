"""A worker with two kinds of jobs; it runs until Ctrl-C or SIGTERM.

Run it against a database of yours; it migrates and writes its definitions:

    DATABASE_URL=postgresql://... python worker.py

and give it work from another terminal:

    runledger jobs enqueue example.confirm_order '{"order_id": 17, "to": "ops@example.com"}'

The command can run its catalog too: `runledger worker --app worker:catalog`.
"""

import logging
from typing import TypedDict

from runledger_core import JobCompletion, JobContext, JobDeadLetterInfo, JobFailure
from runledger_postgres import connect_pool, migrate
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

logger = logging.getLogger("example")
catalog = JobCatalog()


class Confirmation(TypedDict):
    """The payload of a confirmation."""

    order_id: int
    to: str


@catalog.job("example.confirm_order", max_attempts=5, timeout_seconds=30)
def confirm_order(context: JobContext, payload: Confirmation) -> JobCompletion:
    """Send a confirmation; without an address no attempt would help."""
    if not payload.get("to"):
        raise JobFailure.terminal("order.no_address", "the order has no mail address")
    # Safe to repeat: a worker that dies after the mail but before the end runs it again.
    logger.info("confirmed order %s, attempt %s", payload["order_id"], context.attempt)
    return JobCompletion.with_output({"confirmed": payload["order_id"]})


class CustomerFile(TypedDict):
    """The payload of an import."""

    name: str
    lines: int


class ImportCustomers:
    """A handler that is an object: it may have state, and an ear for dead letters."""

    job_type = "example.import_customers"

    def execute(self, context: JobContext, payload: CustomerFile) -> None:
        """Import line by line; another attempt goes on where this one stopped."""
        first = context.checkpoint if isinstance(context.checkpoint, int) else 0
        for line in range(first, payload["lines"]):
            context.raise_if_cancelled()
            context.progress(line + 1, payload["lines"], checkpoint=line + 1)

    def on_dead_letter(
        self, context: JobContext, payload: CustomerFile, info: JobDeadLetterInfo
    ) -> None:
        """Tell somebody."""
        logger.error("%s of %s: %s", context.job_id, payload["name"], info.failure.code)


catalog.job(ImportCustomers.job_type, ImportCustomers(), timeout_seconds=600)


def main() -> None:
    """Run the worker."""
    logging.basicConfig(level=logging.INFO)
    with connect_pool() as pool:  # DATABASE_URL
        migrate(pool)
        catalog.sync_definitions(pool)
        supervisor = Supervisor.builder(pool, JobsConfig.from_env()).with_catalog(catalog).build()
        supervisor.run_until_shutdown(timeout=30)


if __name__ == "__main__":
    main()
