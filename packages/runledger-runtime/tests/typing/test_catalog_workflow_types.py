"""What users' type checkers see of workflows; run by pyright and mypy, and once by pytest."""

from collections.abc import Mapping
from typing import assert_type
from uuid import UUID

from runledger_core import JobContext, JsonValue, StepKey
from runledger_core.workflows import WorkflowRunEnqueue, WorkflowStepEnqueueBuilder
from runledger_runtime import CatalogWorkflowDagBuilder, JobCatalog


def check_context(context: JobContext) -> None:
    """A handler need not be of a step."""
    assert_type(context.workflow_run_id, UUID | None)
    assert_type(context.step_key, StepKey | None)
    assert_type(context.prerequisite_outputs, Mapping[str, JsonValue])


def test_chain_stays_the_catalogs_builder() -> None:
    catalog = JobCatalog().job("orders.send", lambda _context, _payload: None)

    dag = catalog.workflow_dag("orders.ship").job("send", "orders.send", {}).external("paid")
    chained = dag.after_success("send", ["paid"]).result_step("send").idempotency_key("order:1")

    assert_type(chained, CatalogWorkflowDagBuilder)
    assert_type(chained.build(), WorkflowRunEnqueue)
    assert_type(catalog.workflow_step("send", "orders.send"), WorkflowStepEnqueueBuilder)
