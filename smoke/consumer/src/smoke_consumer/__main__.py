"""Run the service on DATABASE_URL until its two jobs are done, then print what became of them."""

import json

from runledger_core import JobEnqueue, Scope
from runledger_postgres import connect_pool, enqueue_job, get_job, migrate
from runledger_runtime import JobsConfig, Supervisor

from .app import catalog, finished


def main() -> None:
    """Migrate, enqueue, work, report."""
    with connect_pool() as pool:
        migrate(pool)
        catalog.sync_definitions(pool)
        bad = enqueue_job(pool, JobEnqueue("jobs.email.send", {}, priority=1))
        good = enqueue_job(pool, JobEnqueue("jobs.email.send", {"to": "a@example.com"}))
        supervisor = Supervisor.builder(pool, JobsConfig.from_env()).with_catalog(catalog).build()
        supervisor.run_until_shutdown(finished, timeout=30)
        report = {}
        for name, enqueued in (("good", good), ("bad", bad)):
            job = get_job(pool, enqueued.id, scope=Scope.GLOBAL)
            report[name] = job and job.status
        print(json.dumps(report))


if __name__ == "__main__":
    main()
