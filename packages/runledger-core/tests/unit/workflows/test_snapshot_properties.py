import dataclasses
import json
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runledger_core import (
    WorkflowDependencyReleaseMode,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
    workflow_append_snapshot,
    workflow_run_snapshot,
)

JOB, EXTERNAL = WorkflowStepExecutionKind

keys = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="ascii", min_codepoint=32)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


# How long a graph takes on a busy machine tells nothing.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def runs(draw):
    names = draw(st.lists(keys, min_size=1, max_size=15, unique=True))
    steps = []
    for index, name in enumerate(names):
        needed = draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        kind = draw(st.sampled_from([JOB, EXTERNAL]))
        steps.append(
            WorkflowStepEnqueue(
                name,
                "a" if kind is JOB else None,
                execution_kind=kind,
                payload=draw(json_values),
                organization_id=draw(st.none() | st.just(UUID(int=2))),
                dependencies=[
                    WorkflowStepDependencySpec(
                        other, draw(st.sampled_from(WorkflowDependencyReleaseMode))
                    )
                    for other in needed
                ],
            )
        )
    return WorkflowRunEnqueue(
        "a",
        draw(json_values),
        steps=steps,
        organization_id=draw(st.none() | st.just(UUID(int=1))),
        result_step_key=draw(st.none() | st.sampled_from(names)),
    )


def shuffled(steps, random):
    return [
        dataclasses.replace(
            step, dependencies=random.sample(step.dependencies, len(step.dependencies))
        )
        for step in random.sample(steps, len(steps))
    ]


@unhurried
@given(runs(), st.randoms())
def test_order_of_steps_and_dependencies_does_not_count(run, random):
    other = dataclasses.replace(run, steps=shuffled(run.steps, random))

    assert workflow_run_snapshot(other) == workflow_run_snapshot(run)


@unhurried
@given(runs(), st.randoms())
def test_order_of_appended_steps_does_not_count(run, random):
    def append(steps):
        return WorkflowStepsAppend(UUID(int=7), "m", append_window_step_key="gate", steps=steps)

    assert workflow_append_snapshot(append(shuffled(run.steps, random))) == (
        workflow_append_snapshot(append(run.steps))
    )


@unhurried
@given(runs())
def test_form_holds_the_whole_request(run):
    form = json.loads(workflow_run_snapshot(run))

    assert form["metadata"] == run.metadata
    assert form.get("result_step_key") == run.result_step_key
    assert {step["step_key"]: step["payload"] for step in form["steps"]} == {
        step.step_key: step.payload for step in run.steps
    }
    assert {
        (step["step_key"], edge["prerequisite_step_key"], edge["release_mode"])
        for step in form["steps"]
        for edge in step["dependencies"]
    } == {
        (step.step_key, edge.prerequisite_step_key, edge.release_mode)
        for step in run.steps
        for edge in step.dependencies
    }
