from uuid import UUID

import pytest

from runledger_core import (
    ValidationError,
    WorkflowRunEnqueue,
    WorkflowRunEnqueueBuilder,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
)

ORGANIZATION = UUID(int=1)


def step(key, *prerequisites):
    return WorkflowStepEnqueueBuilder(key, "a").depends_on_success(prerequisites).build()


def builder():
    return WorkflowRunEnqueueBuilder("profiles.research", {"source": "api"}).step(step("crawl"))


def test_owner_key_and_result_step_are_kept():
    run = (
        builder()
        .organization_id(ORGANIZATION)
        .idempotency_key("profile:17")
        .result_step_key("crawl")
        .build()
    )

    assert run == WorkflowRunEnqueue(
        "profiles.research",
        {"source": "api"},
        steps=[step("crawl")],
        organization_id=ORGANIZATION,
        idempotency_key="profile:17",
        result_step_key="crawl",
    )


def test_cleared_fields_are_as_if_never_set():
    run = (
        builder()
        .organization_id(ORGANIZATION)
        .idempotency_key("profile:17")
        .try_result_step_key("crawl")
        .clear_organization_id()
        .clear_idempotency_key()
        .clear_result_step_key()
        .build()
    )

    assert run == builder().build()


def test_metadata_is_an_empty_object_if_left_out():
    assert WorkflowRunEnqueueBuilder("a").step(step("crawl")).build().metadata == {}


def test_later_changes_of_the_metadata_change_nothing():
    metadata = {"source": "api"}
    run = WorkflowRunEnqueueBuilder("a", metadata).step(step("crawl"))

    metadata["source"] = "other"

    assert run.build().metadata_json == '{"source":"api"}'


def test_steps_are_appended_and_replaced():
    appended = builder().step(step("a")).extend_steps([step("b"), step("c", "a")])
    replaced = builder().set_steps([step("d")])

    assert [one.step_key for one in appended.build().steps] == ["crawl", "a", "b", "c"]
    assert [one.step_key for one in replaced.build().steps] == ["d"]


def test_prerequisites_are_looked_for_when_built():
    run = WorkflowRunEnqueueBuilder("a").step(step("score", "crawl"))

    with pytest.raises(ValidationError) as caught:
        run.build()
    assert caught.value.code == "workflow.invalid_dag_missing_dependency"

    assert len(run.step(step("crawl")).build().steps) == 2


def test_blank_fields_are_refused_when_built():
    told = []
    for run in (
        WorkflowRunEnqueueBuilder("").idempotency_key("").result_step_key(" "),
        WorkflowRunEnqueueBuilder("").result_step_key(" "),
        WorkflowRunEnqueueBuilder(" "),
        WorkflowRunEnqueueBuilder("a"),
    ):
        with pytest.raises(ValidationError) as caught:
            run.build()
        told.append(caught.value.code)

    assert told == [
        "workflow.invalid_dag_idempotency_key_blank",
        "workflow.invalid_dag_result_step_key_blank",
        "workflow.invalid_dag_workflow_type_blank",
        "workflow.invalid_dag_empty",
    ]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (
            lambda: WorkflowRunEnqueueBuilder.try_new("\t"),
            "workflow.invalid_dag_workflow_type_blank",
        ),
        (
            lambda: builder().try_result_step_key(""),
            "workflow.invalid_dag_result_step_key_blank",
        ),
    ],
)
def test_strict_forms_refuse_blank_text_at_once(call, code):
    with pytest.raises(ValidationError) as caught:
        call()

    assert caught.value.code == code


def test_strict_forms_build_the_same():
    strict = WorkflowRunEnqueueBuilder.try_new("profiles.research", {"source": "api"})

    assert strict.step(step("crawl")).try_build() == builder().build()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: WorkflowRunEnqueueBuilder(5), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: WorkflowRunEnqueueBuilder("a" * 201), "input.too_long"),
        (lambda: WorkflowRunEnqueueBuilder("a", {1: 2}), "input.json_invalid_key"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().organization_id(5), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().idempotency_key("é" * 257), "input.too_long"),
        (lambda: builder().result_step_key("a\0"), "input.invalid_characters"),
        (lambda: builder().step("crawl"), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().extend_steps(step("a")), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
    ],
)
def test_what_only_python_gets_wrong_is_refused_at_once(call, code):
    with pytest.raises(ValidationError) as caught:
        call()

    assert caught.value.code == code


def test_refused_call_leaves_the_builder_as_it_was():
    run = builder()

    with pytest.raises(ValidationError):
        run.extend_steps([step("a"), None])  # pyright: ignore[reportArgumentType]  # the mistake

    assert run.build() == builder().build()


def test_steps_are_immutable_products():
    (only,) = builder().build().steps

    assert isinstance(only, WorkflowStepEnqueue)
