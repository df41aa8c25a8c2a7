import dataclasses
import pickle
from uuid import UUID

import pytest

from runledger_core import (
    StepKey,
    ValidationError,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    WorkflowType,
)

ORGANIZATION = UUID(int=1)


def step(key, *prerequisites):
    edges = [WorkflowStepDependencySpec(prerequisite) for prerequisite in prerequisites]
    return WorkflowStepEnqueue(key, "profiles.work", dependencies=edges)


def full_run():
    return WorkflowRunEnqueue(
        "profiles.research",
        {"source": "secret"},
        steps=[step("crawl"), step("score", "crawl")],
        organization_id=ORGANIZATION,
        idempotency_key="secret:17",
        result_step_key="score",
    )


def test_only_type_and_steps_are_needed():
    run = WorkflowRunEnqueue("profiles.research", steps=[step("crawl")])

    assert type(run.workflow_type) is WorkflowType
    assert run.steps == (step("crawl"),)
    assert run.metadata_json == "{}"
    assert (run.organization_id, run.idempotency_key, run.result_step_key) == (None, None, None)


def test_run_keeps_owner_key_and_result_step():
    run = full_run()

    assert run.organization_id == ORGANIZATION
    assert run.idempotency_key == "secret:17"
    assert run.result_step_key == "score"
    assert type(run.result_step_key) is StepKey
    assert run.metadata_json == '{"source":"secret"}'


def test_repr_shows_neither_metadata_nor_key_nor_steps():
    assert repr(full_run()) == (
        "WorkflowRunEnqueue(workflow_type='profiles.research', "
        "organization_id=UUID('00000000-0000-0000-0000-000000000001'), result_step_key='score')"
    )


def test_gate_may_be_the_result_step_and_need_not_be_the_last():
    gate = WorkflowStepEnqueue("approval", None, execution_kind=WorkflowStepExecutionKind.EXTERNAL)

    run = WorkflowRunEnqueue(
        "profiles.research", steps=[gate, step("after", "approval")], result_step_key="approval"
    )

    assert run.result_step_key == "approval"


def test_prerequisites_may_come_later_among_the_steps():
    assert WorkflowRunEnqueue("a", steps=[step("score", "crawl"), step("crawl")]).steps


def test_steps_may_come_from_any_iterable():
    run = WorkflowRunEnqueue("a", steps=iter([step("crawl")]))  # pyright: ignore[reportArgumentType]  # not typed, but harmless

    assert run.steps == (step("crawl"),)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("workflow_type", " ", "workflow.invalid_dag_workflow_type_blank"),
        ("workflow_type", "a" * 201, "input.too_long"),
        ("workflow_type", None, "input.wrong_type"),
        ("metadata", {"a": {1}}, "input.json_unsupported_type"),
        pytest.param("metadata", "x" * 1_048_575, "input.json_too_large", id="1 MiB + 1"),
        ("organization_id", "global", "input.wrong_type"),
        ("idempotency_key", "", "workflow.invalid_dag_idempotency_key_blank"),
        ("idempotency_key", "\u3000\t", "workflow.invalid_dag_idempotency_key_blank"),
        ("idempotency_key", "é" * 257, "input.too_long"),
        ("idempotency_key", "a\0", "input.invalid_characters"),
        ("idempotency_key", 17, "input.wrong_type"),
        ("result_step_key", "", "workflow.invalid_dag_result_step_key_blank"),
        ("result_step_key", "a" * 201, "input.too_long"),
        ("result_step_key", "persist", "workflow.invalid_dag_unknown_result_step_key"),
        ("steps", [], "workflow.invalid_dag_empty"),
        ("steps", None, "input.wrong_type"),
        ("steps", ["crawl"], "input.wrong_type"),
    ],
)
def test_other_values_are_refused(field, value, code):
    run = full_run()

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(run, **{field: value})

    assert caught.value.code == code
    assert (caught.value.field or "").partition(".")[0] == field
    assert "secret" not in str(caught.value)


def test_largest_key_is_kept():
    assert dataclasses.replace(full_run(), idempotency_key="é" * 256).idempotency_key == "é" * 256


def test_faults_are_told_in_order():
    faults = [
        ({"idempotency_key": ""}, "workflow.invalid_dag_idempotency_key_blank"),
        ({"result_step_key": " "}, "workflow.invalid_dag_result_step_key_blank"),
        ({"workflow_type": ""}, "workflow.invalid_dag_workflow_type_blank"),
    ]
    graphs = [
        ([], "workflow.invalid_dag_empty"),
        (
            [step("a"), step("a"), step("b", "missing"), step("c", "d"), step("d", "c")],
            "workflow.invalid_dag_duplicate_step_key",
        ),
        (
            [step("b", "missing"), step("c", "d"), step("d", "c")],
            "workflow.invalid_dag_missing_dependency",
        ),
        ([step("c", "d"), step("d", "c")], "workflow.invalid_dag_cycle"),
        ([step("c")], "workflow.invalid_dag_unknown_result_step_key"),
    ]
    rising = [{"steps": graphs[0][0], "result_step_key": "absent"}]
    for changes, _ in reversed(faults):
        rising.insert(0, rising[0] | changes)
    cases = [(changes, code) for changes, (_, code) in zip(rising, faults, strict=False)]
    cases += [({"steps": steps, "result_step_key": "absent"}, code) for steps, code in graphs]
    told = []
    for changes, _ in cases:
        with pytest.raises(ValidationError) as caught:
            dataclasses.replace(full_run(), **changes)
        told.append(caught.value.code)

    assert told == [code for _, code in cases]


def test_clones_are_equal():
    cloned = pickle.loads(pickle.dumps(full_run()))  # our own bytes

    assert cloned == full_run()
    assert hash(cloned) == hash(full_run())
    assert cloned.metadata_json == '{"source":"secret"}'
