"""A workflow that waits for an approval: a gate, which something outside completes.

Run it against a database of yours; it migrates, and writes its definitions:

    DATABASE_URL=postgresql://... python external_gate.py

It completes the gate itself. From another terminal the same is:

    runledger workflows complete-step ID approval --output '{"by": "ops"}'
"""

import time
from typing import TypedDict
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobContext, Scope
from runledger_core.workflows import WorkflowExternalCompletion, WorkflowStepStatus
from runledger_postgres import (
    WorkflowRunWaitOptions,
    complete_external_workflow_step,
    connect_pool,
    enqueue_workflow_run_handle,
    get_workflow_step,
    migrate,
)
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

catalog = JobCatalog()


class Article(TypedDict):
    """The payload of the steps that are about an article."""

    title: str


@catalog.job("example.articles.draft")
def draft(context: JobContext, payload: Article) -> JobCompletion:
    """Write a text that somebody is to read."""
    del context
    return JobCompletion.with_output(f"all about {payload['title']}")


@catalog.job("example.articles.publish")
def publish(context: JobContext, payload: Article) -> JobCompletion:
    """Publish it; who approved is what the gate gave."""
    del payload
    return JobCompletion.with_output(dict(context.prerequisite_outputs))


def wait_until_open(pool: ConnectionPool, run_id: UUID) -> None:
    """Wait as somebody does who looks at a page of open approvals now and then."""
    while True:
        step = get_workflow_step(pool, run_id, "approval", scope=Scope.GLOBAL)
        if step is not None and step.status is WorkflowStepStatus.WAITING_FOR_EXTERNAL:
            return
        time.sleep(0.05)


def main() -> None:
    """Enqueue a run, approve it, and wait for its result."""
    request = (
        catalog.workflow_dag("example.articles.publish")
        .job("draft", "example.articles.draft", {"title": "gates"})
        .external("approval", {"ask": "the editors"}, after_success=["draft"])
        .job(
            "publish",
            "example.articles.publish",
            {"title": "gates"},
            after_success=["draft", "approval"],
        )
        .result_step("publish")
        .build()
    )
    with connect_pool() as pool:  # DATABASE_URL
        migrate(pool)
        catalog.sync_definitions(pool)
        with Supervisor.builder(pool, JobsConfig.from_env()).with_catalog(catalog).build():
            handle = enqueue_workflow_run_handle(pool, request)
            wait_until_open(pool, handle.run_id)
            print(f"run {handle.run_id} waits for its approval")
            # A webhook would do the same; delivered twice, the second is answered as the first.
            approval = WorkflowExternalCompletion.succeeded({"by": "ops"}, reason="reads well")
            for _ in range(2):
                gate = complete_external_workflow_step(
                    pool, handle.run_id, "approval", approval, scope=Scope.GLOBAL
                )
                print(f"approval {gate.status}")
            result = handle.get_result(WorkflowRunWaitOptions(timeout=30))
        print(f"result: {result.result}")


if __name__ == "__main__":
    main()
