"""A workflow that fans out and in again, with a worker that runs it and a result at its end.

Run it against a database of yours; it migrates, and writes its definitions:

    DATABASE_URL=postgresql://... python workflow_dag.py

and look at the run afterwards, with the id that it prints:

    runledger workflows show ID
    runledger workflows graph ID
"""

from typing import TypedDict

from runledger_core import JobCompletion, JobContext, JsonValue
from runledger_postgres import (
    WorkflowRunWaitOptions,
    connect_pool,
    enqueue_workflow_run_handle,
    migrate,
)
from runledger_runtime import JobCatalog, JobsConfig, Supervisor

catalog = JobCatalog()


class Profile(TypedDict):
    """The payload of the steps that are about a profile."""

    profile_id: str


@catalog.job("example.profiles.crawl", max_attempts=3, timeout_seconds=30)
def crawl(context: JobContext, payload: Profile) -> JobCompletion:
    """Fetch the pages of a profile."""
    del context
    return JobCompletion.with_output([f"{payload['profile_id']}/{page}" for page in ("me", "work")])


@catalog.job("example.profiles.classify")
def classify(context: JobContext, payload: Profile) -> JobCompletion:
    """Tell what kind of profile it is, from what the step before has fetched."""
    del payload
    pages = context.prerequisite_outputs["crawl"]
    return JobCompletion.with_output("person" if pages else "nobody")


@catalog.job("example.profiles.score")
def score(context: JobContext, payload: Profile) -> JobCompletion:
    """Count; it runs beside the classification."""
    del payload
    pages = context.prerequisite_outputs["crawl"]
    return JobCompletion.with_output(len(pages) if isinstance(pages, list) else 0)


@catalog.job("example.profiles.persist")
def persist(context: JobContext, payload: Profile) -> JobCompletion:
    """Put together what the two before have found."""
    found: dict[str, JsonValue] = {"profile_id": payload["profile_id"]}
    return JobCompletion.with_output(found | dict(context.prerequisite_outputs))


def main() -> None:
    """Enqueue a run, let a worker run it, and wait for its result."""
    payload: dict[str, JsonValue] = {"profile_id": "p_123"}
    request = (
        catalog.workflow_dag("example.profiles.research", {"source": "example"})
        .job("crawl", "example.profiles.crawl", payload)
        .job("classify", "example.profiles.classify", payload, after_success=["crawl"])
        .job("score", "example.profiles.score", payload, after_success=["crawl"])
        .job("persist", "example.profiles.persist", payload, after_success=["classify", "score"])
        .result_step("persist")
        .build()
    )
    with connect_pool() as pool:  # DATABASE_URL
        migrate(pool)
        catalog.sync_definitions(pool)
        with Supervisor.builder(pool, JobsConfig.from_env()).with_catalog(catalog).build():
            handle = enqueue_workflow_run_handle(pool, request)
            result = handle.get_result(WorkflowRunWaitOptions(timeout=30))
        print(f"run {handle.run_id}: {result.result}")


if __name__ == "__main__":
    main()
