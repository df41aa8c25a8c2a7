"""A workflow that grows: one step finds out what is to be done, and adds a step for each.

Run it against a database of yours; it migrates, and writes its definitions:

    DATABASE_URL=postgresql://... python append_workflow_steps.py
"""

from typing import TypedDict

from runledger_core import JobCompletion, JobContext, JobFailure, JsonValue, Scope
from runledger_core.workflows import (
    WorkflowExternalCompletion,
    WorkflowStepsAppend,
)
from runledger_postgres import (
    WorkflowRunWaitOptions,
    append_workflow_steps,
    complete_external_workflow_step,
    connect_pool,
    enqueue_workflow_run_handle,
    get_workflow_step,
    migrate,
)
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

catalog = JobCatalog()
GATE = "discovered"


class Site(TypedDict):
    """The payload of the step that looks for pages."""

    pages: list[str]


class Page(TypedDict):
    """The payload of a step that is about one page."""

    page: str


@catalog.job("example.site.discover", max_attempts=5)
def discover(context: JobContext, payload: Site) -> JobCompletion:
    """Add a step for each page and one behind them, then close the gate."""
    run_id = context.workflow_run_id
    if run_id is None:
        raise JobFailure.terminal("example.no_workflow", "this is a step of a workflow")
    fetches = [
        catalog.workflow_step(f"fetch:{page}", "example.page.fetch", {"page": page}).build()
        for page in payload["pages"]
    ]
    merge = catalog.workflow_step("merge", "example.site.merge")
    append = WorkflowStepsAppend(
        run_id,
        # The same in every attempt of this step, so that a second one adds nothing.
        "pages",
        append_window_step_key=GATE,
        steps=[
            *fetches,
            merge.depends_on_success([step.step_key for step in fetches]).build(),
        ],
    )
    with context.connection() as connection:
        # One transaction: the gate is closed if and only if the steps are there.
        append_workflow_steps(connection, append, scope=Scope.GLOBAL)
        done = WorkflowExternalCompletion.succeeded()
        complete_external_workflow_step(connection, run_id, GATE, done, scope=Scope.GLOBAL)
    return JobCompletion.with_output(len(fetches))


@catalog.job("example.page.fetch")
def fetch(context: JobContext, payload: Page) -> JobCompletion:
    """Fetch one page."""
    del context
    return JobCompletion.with_output(f"text of {payload['page']}")


@catalog.job("example.site.merge")
def merge_pages(context: JobContext, payload: JsonValue) -> JobCompletion:
    """Take what all pages gave, whatever their number."""
    del payload
    return JobCompletion.with_output(sorted(map(str, context.prerequisite_outputs.values())))


def main() -> None:
    """Enqueue a run of one step and a gate, and see what becomes of it."""
    request = (
        catalog.workflow_dag("example.site")
        .external(GATE)
        .job("discover", "example.site.discover", {"pages": ["home", "about", "blog"]})
        .result_step("discover")
        .build()
    )
    with connect_pool() as pool:  # DATABASE_URL
        migrate(pool)
        catalog.sync_definitions(pool)
        with Supervisor.builder(pool, JobsConfig.from_env()).with_catalog(catalog).build():
            handle = enqueue_workflow_run_handle(pool, request)
            result = handle.get_result(WorkflowRunWaitOptions(timeout=30))
        merged = get_workflow_step(pool, handle.run_id, "merge", scope=Scope.GLOBAL)
        print(f"run {handle.run_id}: {result.result} pages")
        print(f"merged: {merged.output if merged else None}")


if __name__ == "__main__":
    main()
