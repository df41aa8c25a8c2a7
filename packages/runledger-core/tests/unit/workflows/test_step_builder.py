from uuid import UUID

import pytest

from runledger_core import (
    JobStage,
    ValidationError,
    WorkflowDependencyReleaseMode,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
    WorkflowStepExecutionKind,
)

ORGANIZATION = UUID(int=1)
ON_SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
ON_TERMINAL = WorkflowDependencyReleaseMode.ON_TERMINAL


def builder():
    return WorkflowStepEnqueueBuilder("score", "profiles.score", {"profile": "p"})


def full_builder():
    return (
        builder()
        .organization_id(ORGANIZATION)
        .priority(-5)
        .max_attempts(4)
        .timeout_seconds(60)
        .stage(JobStage.SCHEDULED)
        .depends_on_success(["crawl"])
    )


def test_defaults():
    assert builder().build() == WorkflowStepEnqueue(
        "score",
        "profiles.score",
        payload={"profile": "p"},
        execution_kind=WorkflowStepExecutionKind.JOB,
        stage=JobStage.QUEUED,
    )


def test_payload_is_an_empty_object_if_left_out():
    assert WorkflowStepEnqueueBuilder("a", "b").build().payload_json == "{}"
    assert WorkflowStepEnqueueBuilder("a", "b", None).build().payload_json == "null"


def test_every_setting_is_kept():
    assert full_builder().build() == WorkflowStepEnqueue(
        "score",
        "profiles.score",
        payload={"profile": "p"},
        organization_id=ORGANIZATION,
        priority=-5,
        max_attempts=4,
        timeout_seconds=60,
        stage=JobStage.SCHEDULED,
        dependencies=[WorkflowStepDependencySpec("crawl", ON_SUCCESS)],
    )


def test_cleared_settings_are_as_if_never_set():
    cleared = (
        full_builder()
        .clear_organization_id()
        .clear_priority()
        .clear_max_attempts()
        .clear_timeout_seconds()
        .clear_stage()
        .set_dependencies([])
    )

    assert cleared.build() == builder().build()


def test_gate_has_neither_type_nor_stage():
    step = WorkflowStepEnqueueBuilder.new_external("approval", {"by": "ops"}).build()

    assert step == WorkflowStepEnqueue(
        "approval",
        None,
        payload={"by": "ops"},
        execution_kind=WorkflowStepExecutionKind.EXTERNAL,
    )
    assert step.stage is None


def test_gate_takes_owner_and_dependencies():
    step = (
        WorkflowStepEnqueueBuilder.try_new_external("approval")
        .organization_id(ORGANIZATION)
        .depends_on_terminal(["crawl"])
        .build()
    )

    assert step.organization_id == ORGANIZATION
    assert step.dependencies == (WorkflowStepDependencySpec("crawl", ON_TERMINAL),)


@pytest.mark.parametrize(
    "setting",
    [
        lambda gate: gate.priority(1),
        lambda gate: gate.max_attempts(1),
        lambda gate: gate.timeout_seconds(1),
        lambda gate: gate.stage(JobStage.QUEUED),
    ],
)
def test_gate_refuses_settings_of_jobs_when_built(setting):
    gate = setting(WorkflowStepEnqueueBuilder.new_external("approval"))

    with pytest.raises(ValidationError) as caught:
        gate.build()

    code = "workflow.invalid_dag_external_step_queue_settings_not_allowed"
    assert caught.value.code == code


def test_cleared_settings_make_a_gate_whole_again():
    gate = WorkflowStepEnqueueBuilder.new_external("approval").priority(1).clear_priority()

    assert gate.build().priority is None


def test_dependencies_keep_the_order_of_calls():
    step = (
        builder()
        .depends_on_terminal(["c"])
        .dependency(WorkflowStepDependencySpec("b"))
        .depends_on_success(["a", "d"])
        .build()
    )

    assert [(edge.prerequisite_step_key, edge.release_mode) for edge in step.dependencies] == [
        ("c", ON_TERMINAL),
        ("b", ON_TERMINAL),
        ("a", ON_SUCCESS),
        ("d", ON_SUCCESS),
    ]


def test_set_dependencies_replaces():
    edge = WorkflowStepDependencySpec("b", ON_SUCCESS)

    step = builder().depends_on_success(["a"]).set_dependencies([edge]).build()

    assert step.dependencies == (edge,)


@pytest.mark.parametrize("key", ["", " ", "\u3000"])
def test_blank_names_are_refused_when_built(key):
    with pytest.raises(ValidationError) as caught:
        WorkflowStepEnqueueBuilder(key, key).build()
    assert caught.value.code == "workflow.invalid_dag_step_key_blank"

    with pytest.raises(ValidationError) as caught:
        WorkflowStepEnqueueBuilder("a", key).build()
    assert caught.value.code == "workflow.invalid_dag_job_type_blank"

    with pytest.raises(ValidationError) as caught:
        WorkflowStepEnqueueBuilder.new_external(key).build()
    assert caught.value.code == "workflow.invalid_dag_step_key_blank"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (
            lambda: WorkflowStepEnqueueBuilder.try_new("", ""),
            "workflow.invalid_dag_step_key_blank",
        ),
        (
            lambda: WorkflowStepEnqueueBuilder.try_new("a", " "),
            "workflow.invalid_dag_job_type_blank",
        ),
        (
            lambda: WorkflowStepEnqueueBuilder.try_new_external("\n"),
            "workflow.invalid_dag_step_key_blank",
        ),
    ],
)
def test_strict_forms_refuse_blank_names_at_once(call, code):
    with pytest.raises(ValidationError) as caught:
        call()

    assert caught.value.code == code


def test_strict_form_builds_the_same():
    strict = WorkflowStepEnqueueBuilder.try_new("score", "profiles.score", {"profile": "p"})

    assert strict.try_build() == builder().build()


def test_faults_are_told_in_the_order_key_type_limits_dependencies():
    def faulty(key, job_type, attempts, seconds):
        return (
            WorkflowStepEnqueueBuilder(key, job_type)
            .max_attempts(attempts)
            .timeout_seconds(seconds)
            .depends_on_success([" ", "a", "a"])
        )

    told = []
    for builder_ in (
        faulty("", "", 0, 0),
        faulty("a", "", 0, 0),
        faulty("a", "b", 0, 0),
        faulty("a", "b", 1, 0),
        faulty("a", "b", 1, 1),
    ):
        with pytest.raises(ValidationError) as caught:
            builder_.build()
        told.append(caught.value.code.removeprefix("workflow.invalid_dag_"))

    assert told == [
        "step_key_blank",
        "job_type_blank",
        "step_max_attempts_non_positive",
        "step_timeout_seconds_non_positive",
        "dependency_step_key_blank",
    ]


def test_self_and_double_dependencies_are_refused_when_built():
    with pytest.raises(ValidationError) as caught:
        builder().depends_on_success(["score"]).build()
    assert caught.value.code == "workflow.invalid_dag_self_dependency"

    with pytest.raises(ValidationError) as caught:
        builder().depends_on_success(["a"]).depends_on_terminal(["a"]).build()
    assert caught.value.code == "workflow.invalid_dag_duplicate_dependency"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: WorkflowStepEnqueueBuilder(None, "b"), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: WorkflowStepEnqueueBuilder("a" * 201, "b"), "input.too_long"),
        (lambda: WorkflowStepEnqueueBuilder("a", "b", {1}), "input.json_unsupported_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().organization_id("a"), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().priority(2**31), "input.out_of_range"),
        (lambda: builder().max_attempts(True), "input.wrong_type"),
        (lambda: builder().timeout_seconds(1.5), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().stage("waiting"), "input.out_of_range"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().depends_on_success("crawl"), "input.wrong_type"),
        (lambda: builder().depends_on_terminal([None]), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().dependency("crawl"), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().set_dependencies(None), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
    ],
)
def test_what_only_python_gets_wrong_is_refused_at_once(call, code):
    with pytest.raises(ValidationError) as caught:
        call()

    assert caught.value.code == code


def test_refused_call_leaves_the_builder_as_it_was():
    step = builder().depends_on_success(["a"])

    with pytest.raises(ValidationError):
        step.depends_on_success(["b", 5])  # pyright: ignore[reportArgumentType]  # the mistake

    assert [edge.prerequisite_step_key for edge in step.build().dependencies] == ["a"]


def test_later_changes_of_the_payload_change_nothing():
    payload = {"to": "a"}
    step = WorkflowStepEnqueueBuilder("a", "b", payload)

    payload["to"] = "b"

    assert step.build().payload == {"to": "a"}


def test_builder_can_build_again():
    step = builder()
    first = step.build()

    second = step.priority(3).build()

    assert (first.priority, second.priority) == (None, 3)
