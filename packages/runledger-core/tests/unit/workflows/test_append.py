import dataclasses
import pickle
from uuid import UUID

import pytest

from runledger_core import (
    StepKey,
    ValidationError,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepsAppend,
)

RUN = UUID(int=7)


def step(key, *prerequisites):
    edges = [WorkflowStepDependencySpec(prerequisite) for prerequisite in prerequisites]
    return WorkflowStepEnqueue(key, "a", dependencies=edges)


def append():
    return WorkflowStepsAppend(
        RUN,
        "secret:17",
        append_window_step_key="gate",
        steps=[step("b", "a"), step("a", "gate", "crawl")],
        mutation_metadata={"by": "secret"},
    )


def test_every_field_is_kept():
    request = append()

    assert type(request.append_window_step_key) is StepKey
    assert request.mutation_key == "secret:17"
    assert [one.step_key for one in request.steps] == ["b", "a"]
    assert request.mutation_metadata_json == '{"by":"secret"}'


def test_metadata_is_an_empty_object_if_left_out():
    request = WorkflowStepsAppend(RUN, "m", append_window_step_key="gate", steps=[step("a")])

    assert request.mutation_metadata_json == "{}"


def test_repr_shows_neither_key_nor_metadata_nor_steps():
    assert repr(append()) == (
        "WorkflowStepsAppend(workflow_run_id=UUID('00000000-0000-0000-0000-000000000007'), "
        "append_window_step_key='gate')"
    )


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("workflow_run_id", str(RUN), "input.wrong_type"),
        ("mutation_key", " \t", "workflow.append_mutation_key_blank"),
        ("mutation_key", "é" * 257, "input.too_long"),
        ("mutation_key", None, "input.wrong_type"),
        ("append_window_step_key", "", "workflow.invalid_dag_step_key_blank"),
        ("append_window_step_key", "a" * 201, "input.too_long"),
        ("steps", [], "workflow.invalid_dag_empty"),
        ("steps", "a", "input.wrong_type"),
        ("mutation_metadata", {1}, "input.json_unsupported_type"),
        pytest.param("mutation_metadata", "x" * 1_048_575, "input.json_too_large", id="1 MiB + 1"),
    ],
)
def test_other_values_are_refused(field, value, code):
    request = append()

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(request, **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def test_largest_mutation_key_is_kept():
    assert dataclasses.replace(append(), mutation_key="é" * 256).mutation_key == "é" * 256


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([step("a"), step("a")], "workflow.invalid_dag_duplicate_step_key"),
        ([step("a", "b"), step("b", "a")], "workflow.invalid_dag_cycle"),
    ],
)
def test_faults_among_the_new_steps_are_found_without_the_run(steps, code):
    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(append(), steps=steps)

    assert caught.value.code == code


def test_blank_mutation_key_is_told_first():
    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(append(), mutation_key="", append_window_step_key="", steps=[])

    assert caught.value.code == "workflow.append_mutation_key_blank"


def test_clones_are_equal():
    cloned = pickle.loads(pickle.dumps(append()))  # our own bytes

    assert cloned == append()
    assert hash(cloned) == hash(append())
