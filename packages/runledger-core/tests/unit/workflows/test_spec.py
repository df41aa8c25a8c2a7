import copy
import dataclasses
import pickle
from uuid import UUID

import pytest

from runledger_core import (
    JobStage,
    JobType,
    Limits,
    StepKey,
    ValidationError,
    WorkflowDependencyReleaseMode,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    raise_limits,
)
from runledger_core import limits as limits_module
from runledger_core.workflows import spec as spec_module

INT32_MAX = 2_147_483_647
ORGANIZATION = UUID(int=1)
EXTERNAL = WorkflowStepExecutionKind.EXTERNAL


def full_step():
    return WorkflowStepEnqueue(
        "score",
        "profiles.score",
        payload={"profile": "secret"},
        organization_id=ORGANIZATION,
        priority=-5,
        max_attempts=4,
        timeout_seconds=60,
        stage=JobStage.SCHEDULED,
        dependencies=[WorkflowStepDependencySpec("crawl")],
    )


def gate():
    return WorkflowStepEnqueue("approval", None, execution_kind=EXTERNAL)


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # our own bytes


def test_only_key_and_type_are_needed():
    step = WorkflowStepEnqueue("crawl", "profiles.crawl")

    assert type(step.step_key) is StepKey
    assert type(step.job_type) is JobType
    assert dataclasses.asdict(step) == {
        "step_key": "crawl",
        "job_type": "profiles.crawl",
        "payload": {},
        "execution_kind": "JOB",
        "organization_id": None,
        "priority": None,
        "max_attempts": None,
        "timeout_seconds": None,
        "stage": "queued",
        "dependencies": (),
        "payload_json": "{}",
    }


def test_gate_has_no_settings_of_jobs():
    step = gate()

    assert (step.job_type, step.stage, step.priority) == (None, None, None)
    assert (step.max_attempts, step.timeout_seconds) == (None, None)
    assert step.execution_kind is EXTERNAL


def test_gate_takes_owner_payload_and_dependencies():
    edge = WorkflowStepDependencySpec("crawl")

    step = dataclasses.replace(
        gate(), organization_id=ORGANIZATION, payload=[1], dependencies=[edge]
    )

    assert step.organization_id == ORGANIZATION
    assert step.payload_json == "[1]"
    assert step.dependencies == (edge,)


def test_edge_waits_for_any_end_unless_told_otherwise():
    edge = WorkflowStepDependencySpec("crawl")
    explicit = WorkflowStepDependencySpec("crawl", WorkflowDependencyReleaseMode.ON_SUCCESS)

    assert type(edge.prerequisite_step_key) is StepKey
    assert edge.release_mode is WorkflowDependencyReleaseMode.ON_TERMINAL
    assert explicit.release_mode is WorkflowDependencyReleaseMode.ON_SUCCESS


def test_modes_are_taken_as_text_too():
    edge = dataclasses.replace(WorkflowStepDependencySpec("crawl"), release_mode="ON_SUCCESS")

    assert edge.release_mode is WorkflowDependencyReleaseMode.ON_SUCCESS


def test_repr_does_not_show_the_payload():
    assert "secret" not in repr(full_step())
    assert "step_key='score'" in repr(full_step())


def test_later_changes_of_the_payload_change_nothing():
    payload = {"to": "a"}
    step = WorkflowStepEnqueue("crawl", "profiles.crawl", payload=payload)

    payload["to"] = "b"

    assert step.payload_json == '{"to":"a"}'
    edge = WorkflowStepDependencySpec("other")
    assert spec_module.with_dependencies(step, [edge]).payload_json == '{"to":"a"}'


def test_null_payload_is_kept():
    assert WorkflowStepEnqueue("crawl", "profiles.crawl", payload=None).payload_json == "null"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("step_key", "a" * 201, "input.too_long"),
        ("step_key", "a\0", "input.invalid_characters"),
        ("step_key", 5, "input.wrong_type"),
        ("job_type", "a" * 201, "input.too_long"),
        ("job_type", b"a", "input.wrong_type"),
        ("payload", {1}, "input.json_unsupported_type"),
        ("payload", float("nan"), "input.json_not_finite"),
        pytest.param("payload", "x" * 1_048_575, "input.json_too_large", id="1 MiB + 1"),
        ("execution_kind", "TIMER", "input.out_of_range"),
        ("execution_kind", None, "input.wrong_type"),
        ("organization_id", str(ORGANIZATION), "input.wrong_type"),
        ("priority", INT32_MAX + 1, "input.out_of_range"),
        ("priority", True, "input.wrong_type"),
        ("max_attempts", INT32_MAX + 1, "input.out_of_range"),
        ("max_attempts", False, "input.wrong_type"),
        ("timeout_seconds", 1.0, "input.wrong_type"),
        ("timeout_seconds", INT32_MAX + 1, "input.out_of_range"),
        ("stage", "waiting", "input.out_of_range"),
        ("dependencies", ["crawl"], "input.wrong_type"),
        ("dependencies", 5, "input.wrong_type"),
        ("dependencies", None, "input.wrong_type"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(field, value, code):
    step = full_step()

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(step, **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("step_key", " \u3000", "workflow.invalid_dag_step_key_blank"),
        ("job_type", "", "workflow.invalid_dag_job_type_blank"),
        ("job_type", None, "workflow.invalid_dag_job_type_blank"),
        ("max_attempts", 0, "workflow.invalid_dag_step_max_attempts_non_positive"),
        ("max_attempts", -1, "workflow.invalid_dag_step_max_attempts_non_positive"),
        ("timeout_seconds", 0, "workflow.invalid_dag_step_timeout_seconds_non_positive"),
        (
            "dependencies",
            [WorkflowStepDependencySpec("score")],
            "workflow.invalid_dag_self_dependency",
        ),
        (
            "dependencies",
            [
                WorkflowStepDependencySpec("crawl"),
                WorkflowStepDependencySpec("crawl", WorkflowDependencyReleaseMode.ON_SUCCESS),
            ],
            "workflow.invalid_dag_duplicate_dependency",
        ),
    ],
)
def test_what_is_wrong_with_the_workflow_has_its_own_code(field, value, code):
    step = full_step()

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(step, **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        (
            "job_type",
            "profiles.crawl",
            "workflow.invalid_dag_external_step_job_type_not_allowed",
        ),
        ("priority", 0, "workflow.invalid_dag_external_step_queue_settings_not_allowed"),
        ("max_attempts", 1, "workflow.invalid_dag_external_step_queue_settings_not_allowed"),
        ("timeout_seconds", 1, "workflow.invalid_dag_external_step_queue_settings_not_allowed"),
        (
            "stage",
            JobStage.QUEUED,
            "workflow.invalid_dag_external_step_queue_settings_not_allowed",
        ),
    ],
)
def test_gates_refuse_what_belongs_to_jobs(field, value, code):
    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(gate(), **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field
    assert "'approval'" in caught.value.client_message


def test_blank_prerequisite_is_refused_when_the_edge_is_made():
    with pytest.raises(ValidationError) as caught:
        WorkflowStepDependencySpec("\t")

    assert caught.value.code == "workflow.invalid_dag_dependency_step_key_blank"


@pytest.mark.parametrize(
    ("mode", "code"), [("ON_FAILURE", "input.out_of_range"), (None, "input.wrong_type")]
)
def test_unknown_modes_are_refused(mode, code):
    with pytest.raises(ValidationError) as caught:
        WorkflowStepDependencySpec("crawl", mode)

    assert caught.value.code == code


def test_faults_are_told_in_the_order_key_type_settings_dependencies():
    faults = [
        ("step_key", "", "workflow.invalid_dag_step_key_blank"),
        ("job_type", " ", "workflow.invalid_dag_job_type_blank"),
        ("max_attempts", 0, "workflow.invalid_dag_step_max_attempts_non_positive"),
        ("timeout_seconds", 0, "workflow.invalid_dag_step_timeout_seconds_non_positive"),
        (
            "dependencies",
            [WorkflowStepDependencySpec("score")],
            "workflow.invalid_dag_self_dependency",
        ),
    ]
    told = []
    for first in range(len(faults)):
        changes = {field: value for field, value, _ in faults[first:]}
        with pytest.raises(ValidationError) as caught:
            dataclasses.replace(full_step(), **changes)
        told.append(caught.value.code)

    assert told == [code for _, _, code in faults]


def test_more_prerequisites_than_can_be_counted_are_refused(monkeypatch):
    monkeypatch.setattr(spec_module, "_MAX_DEPENDENCIES", 2)
    edges = [WorkflowStepDependencySpec(str(number)) for number in range(3)]

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(full_step(), dependencies=edges)

    assert caught.value.code == "workflow.invalid_dag_dependency_count_overflow"
    assert len(dataclasses.replace(full_step(), dependencies=edges[:2]).dependencies) == 2


def test_raised_limits_hold_for_steps_too(monkeypatch):
    monkeypatch.setattr(limits_module, "_current", Limits())
    raise_limits(identifier_characters=201, payload_bytes=1_048_577)

    step = WorkflowStepEnqueue("a" * 201, "b" * 201, payload="x" * 1_048_575)

    assert len(step.payload_json) == 1_048_577


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickled])
def test_clones_are_equal(clone):
    cloned = clone(full_step())

    assert cloned == full_step()
    assert hash(cloned) == hash(full_step())
    assert cloned.payload_json == '{"profile":"secret"}'


def test_steps_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        full_step().priority = 1  # pyright: ignore[reportAttributeAccessIssue]  # the mistake
