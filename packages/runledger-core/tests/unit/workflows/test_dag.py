from uuid import UUID

import pytest

from runledger_core import (
    ValidationError,
    WorkflowDagBuilder,
    WorkflowDependencyReleaseMode,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
    WorkflowStepExecutionKind,
)

ORGANIZATION = UUID(int=1)
ON_SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
ON_TERMINAL = WorkflowDependencyReleaseMode.ON_TERMINAL


def builder():
    return WorkflowDagBuilder("profiles.research").job("crawl", "profiles.crawl", {})


def edges(run):
    return {
        (step.step_key, edge.prerequisite_step_key): edge.release_mode
        for step in run.steps
        for edge in step.dependencies
    }


def code_of(call):
    with pytest.raises(ValidationError) as caught:
        call()
    return caught.value.code


def test_a_whole_graph():
    run = (
        WorkflowDagBuilder("profiles.research", {"source": "api"})
        .organization_id(ORGANIZATION)
        .idempotency_key("profile:p_123:research")
        .job("crawl", "profiles.crawl", {"profile_id": "p_123"})
        .job("classify", "profiles.classify", {})
        .after_success("classify", ["crawl"])
        .job("score", "profiles.score", None)
        .after_success("score", ["crawl"])
        .job("persist", "profiles.persist", {})
        .after_success("persist", ["classify", "score"])
        .result_step("persist")
        .build()
    )

    crawl = WorkflowStepDependencySpec("crawl", ON_SUCCESS)
    assert run == WorkflowRunEnqueue(
        "profiles.research",
        {"source": "api"},
        organization_id=ORGANIZATION,
        idempotency_key="profile:p_123:research",
        result_step_key="persist",
        steps=[
            WorkflowStepEnqueue("crawl", "profiles.crawl", payload={"profile_id": "p_123"}),
            WorkflowStepEnqueue("classify", "profiles.classify", dependencies=[crawl]),
            WorkflowStepEnqueue("score", "profiles.score", payload=None, dependencies=[crawl]),
            WorkflowStepEnqueue(
                "persist",
                "profiles.persist",
                dependencies=[
                    WorkflowStepDependencySpec("classify", ON_SUCCESS),
                    WorkflowStepDependencySpec("score", ON_SUCCESS),
                ],
            ),
        ],
    )


def test_prerequisites_can_be_given_with_the_step():
    chained = (
        builder()
        .job("score", "a", {})
        .after_success("score", ["crawl"])
        .job("report", "a", {})
        .after_success("report", ["score"])
        .after_terminal("report", ["crawl"])
    )
    short = (
        builder()
        .job("score", "a", {}, after_success=["crawl"])
        .job("report", "a", {}, after_success=["score"], after_terminal=["crawl"])
    )

    assert short.build() == chained.build()
    assert edges(short.build())["report", "crawl"] is ON_TERMINAL


def test_prerequisites_may_be_added_later():
    run = (
        WorkflowDagBuilder("a")
        .job("score", "a", {}, after_success=["crawl"])
        .job("crawl", "a", {})
        .build()
    )

    assert edges(run) == {("score", "crawl"): ON_SUCCESS}


def test_gates_and_built_steps_take_part():
    low = (
        WorkflowStepEnqueueBuilder("score", "a").priority(7).depends_on_terminal(["crawl"]).build()
    )

    run = (
        builder()
        .step(low)
        .external("approval", {"by": "ops"}, after_success=["score"])
        .external("open")
        .after_success("score", ["open"])
        .build()
    )

    approval = run.steps[2]
    assert approval.execution_kind is WorkflowStepExecutionKind.EXTERNAL
    assert (approval.payload_json, run.steps[3].payload_json) == ('{"by":"ops"}', "{}")
    assert run.steps[1].priority == 7
    assert edges(run) == {
        ("score", "crawl"): ON_TERMINAL,
        ("score", "open"): ON_SUCCESS,
        ("approval", "score"): ON_SUCCESS,
    }


def test_cleared_fields_are_as_if_never_set():
    run = (
        builder()
        .organization_id(ORGANIZATION)
        .idempotency_key("secret")
        .result_step("crawl")
        .clear_organization_id()
        .clear_idempotency_key()
        .clear_result_step()
        .build()
    )

    assert run == builder().build()


def test_strict_forms_build_the_same():
    strict = WorkflowDagBuilder.try_new("profiles.research").job("crawl", "profiles.crawl", {})

    assert strict.try_build() == builder().build()


def test_duplicates_are_caught_however_the_steps_were_added():
    built = WorkflowStepEnqueue("crawl", "a")
    code = "workflow.invalid_dag_duplicate_step_key"

    assert code_of(lambda: builder().job("crawl", "a", {})) == code
    assert code_of(lambda: builder().external("crawl")) == code
    assert code_of(lambda: builder().step(built)) == code
    assert code_of(lambda: WorkflowDagBuilder("a").step(built).job("crawl", "a", {})) == code


def test_duplicate_is_told_before_a_blank_job_type():
    assert (
        code_of(lambda: builder().job("crawl", "", {})) == "workflow.invalid_dag_duplicate_step_key"
    )
    assert code_of(lambda: builder().job("", "", {})) == "workflow.invalid_dag_step_key_blank"


def test_prerequisites_need_a_known_target_and_are_checked_before_it():
    blank = "workflow.invalid_dag_dependency_step_key_blank"

    assert code_of(lambda: builder().after_success(" ", [""])) == (
        "workflow.invalid_dag_step_key_blank"
    )
    assert code_of(lambda: builder().after_success("score", ["crawl", ""])) == blank
    assert code_of(lambda: builder().after_terminal("score", ["crawl"])) == (
        "workflow.invalid_dag_unknown_step_key"
    )


def test_faults_of_a_step_are_told_before_those_of_the_run():
    faulty = WorkflowDagBuilder("").job("a", "a", {}).job("b", "b", {}, after_success=["b"])

    assert code_of(faulty.idempotency_key("").build) == "workflow.invalid_dag_self_dependency"


def test_double_edge_is_refused_when_built_whatever_its_modes():
    twice = (
        builder().job("score", "a", {}, after_success=["crawl"]).after_terminal("score", ["crawl"])
    )

    assert code_of(twice.build) == "workflow.invalid_dag_duplicate_dependency"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: WorkflowDagBuilder(None), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: WorkflowDagBuilder("a", {1}), "input.json_unsupported_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().job("a" * 201, "a", {}), "input.too_long"),
        (lambda: builder().job("a", "a" * 201, {}), "input.too_long"),
        (lambda: builder().job("a", "a", float("nan")), "input.json_not_finite"),
        (lambda: builder().external("a", {1}), "input.json_unsupported_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().step("a"), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().job("a", "a", {}, after_success="crawl"), "input.wrong_type"),
        (lambda: builder().after_success("crawl", "crawl"), "input.wrong_type"),
        (lambda: builder().after_success("crawl", [5]), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: builder().idempotency_key("é" * 257), "input.too_long"),
        (lambda: builder().result_step(5), "input.wrong_type"),  # pyright: ignore[reportArgumentType]  # the mistake
    ],
)
def test_what_only_python_gets_wrong_is_refused_at_once(call, code):
    assert code_of(call) == code


def test_refused_calls_leave_the_builder_as_it_was():
    dag = builder()

    for call in (
        lambda: dag.job("score", "a", {}, after_success=[""]),
        lambda: dag.job("score", "", {}),
        lambda: dag.after_success("crawl", ["a", ""]),
        lambda: dag.result_step(" "),
        lambda: dag.external("gate", after_terminal="crawl"),
    ):
        with pytest.raises(ValidationError):
            call()

    assert dag.build() == builder().build()


def test_builder_can_build_again():
    dag = builder()
    first = dag.build()

    second = dag.job("score", "a", {}, after_success=["crawl"]).build()

    assert [len(first.steps), len(second.steps)] == [1, 2]


def test_ten_thousand_steps_in_a_chain():
    dag = WorkflowDagBuilder("a").job("0", "a", {})
    for number in range(1, 10_000):
        dag.job(str(number), "a", {}, after_success=[str(number - 1)])

    assert len(dag.build().steps) == 10_000
