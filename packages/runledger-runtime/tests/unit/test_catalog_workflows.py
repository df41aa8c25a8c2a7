"""Workflows of a catalog: unknown and disabled types are refused where they are named."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from runledger_core import JobStage, ValidationError
from runledger_core.workflows import (
    BlankWorkflowTypeError,
    CycleDetectedError,
    DuplicateStepKeyError,
    EmptyStepsError,
    WorkflowDagBuilder,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
)
from runledger_runtime import CatalogWorkflowDagBuilder, JobCatalog
from runledger_runtime.errors import CatalogError

ORGANIZATION = UUID(int=7)


@pytest.fixture
def catalog() -> JobCatalog:
    """A catalog with a job that is enabled and one that is not."""
    return (
        JobCatalog()
        .job("jobs.one", lambda _context, _payload: None)
        .job("jobs.off", lambda _context, _payload: None, enabled=False)
    )


@pytest.mark.parametrize(
    ("job_type", "code"),
    [
        ("jobs.none", "catalog.unknown_job_type"),
        ("", "catalog.unknown_job_type"),
        ({}, "catalog.unknown_job_type"),
        ("jobs.off", "catalog.disabled_job_type"),
    ],
)
def test_types_that_cannot_be_enqueued_are_refused_where_they_are_named(
    catalog: JobCatalog, job_type: Any, code: str
) -> None:
    dag = catalog.workflow_dag("test.workflow").job("a", "jobs.one", {})
    built = WorkflowStepEnqueue("b", job_type or "jobs.none", payload={})

    for call in (
        lambda: dag.job("b", job_type, {}),
        lambda: dag.step(built),
        lambda: catalog.workflow_step("b", job_type),
    ):
        with pytest.raises(CatalogError) as caught:
            call()
        assert (caught.value.code, caught.value.field) == (code, "job_type")

    assert [step.step_key for step in dag.build().steps] == ["a"]


def test_run_is_the_one_that_the_plain_builder_makes(catalog: JobCatalog) -> None:
    def graph(builder: WorkflowDagBuilder) -> Any:
        return (
            builder.organization_id(ORGANIZATION)
            .idempotency_key("key")
            .job("a", "jobs.one", {"n": 1})
            .external("gate", {"who": "ops"}, after_success=["a"])
            .step(WorkflowStepEnqueueBuilder("b", "jobs.one").priority(3).build())
            .after_success("b", ["gate"])
            .job("c", "jobs.one", None, after_terminal=["b"])
            .after_terminal("c", ["a"])
            .result_step("c")
            .build()
        )

    checked = graph(catalog.workflow_dag("test.workflow", {"source": "api"}))

    assert checked == graph(WorkflowDagBuilder("test.workflow", {"source": "api"}))


def test_methods_return_the_checking_builder(catalog: JobCatalog) -> None:
    dag = catalog.workflow_dag("test.workflow")

    assert isinstance(dag, CatalogWorkflowDagBuilder)
    assert dag.job("a", "jobs.one", {}).external("g").after_success("g", ["a"]) is dag


def test_faults_of_the_graph_have_the_codes_of_the_plain_builder(catalog: JobCatalog) -> None:
    dag = catalog.workflow_dag("").job("a", "jobs.one", {}, after_success=["b"])

    with pytest.raises(DuplicateStepKeyError):
        dag.job("a", "jobs.one", {})
    with pytest.raises(BlankWorkflowTypeError):
        dag.build()
    with pytest.raises(EmptyStepsError):
        catalog.workflow_dag("test.workflow").build()
    with pytest.raises(CycleDetectedError):
        catalog.workflow_dag("test.workflow").job("a", "jobs.one", {}, after_success=["b"]).job(
            "b", "jobs.one", {}, after_success=["a"]
        ).build()
    with pytest.raises(ValidationError) as caught:
        dag.step("a")  # pyright: ignore[reportArgumentType]  # the mistake
    assert caught.value.code == "input.wrong_type"


def test_builder_without_a_catalog_knows_no_type() -> None:
    dag = CatalogWorkflowDagBuilder.try_new("test.workflow").external("gate")

    with pytest.raises(CatalogError) as caught:
        dag.job("a", "jobs.one", {})

    assert caught.value.code == "catalog.unknown_job_type"


def test_step_has_the_settings_that_it_is_given(catalog: JobCatalog) -> None:
    step = (
        catalog.workflow_step("a", "jobs.one", {"n": 1})
        .priority(5)
        .max_attempts(2)
        .stage(JobStage.QUEUED)
        .depends_on_terminal(["z"])
        .build()
    )

    assert step.payload == {"n": 1}
    assert (step.priority, step.max_attempts) == (5, 2)
    assert [edge.prerequisite_step_key for edge in step.dependencies] == ["z"]


def test_frozen_catalog_begins_workflows(catalog: JobCatalog) -> None:
    catalog.freeze()

    assert catalog.workflow_dag("test.workflow").job("a", "jobs.one", {}).build().steps
