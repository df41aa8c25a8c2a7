import dataclasses
import json
from uuid import UUID

import pytest

from runledger_core import (
    JobStage,
    WorkflowDependencyReleaseMode,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
    workflow_append_snapshot,
    workflow_run_snapshot,
)

ORGANIZATION = UUID(int=1)
OTHER = UUID(int=2)

GOLDEN = (
    '{"metadata":{"source":"api"},"steps":['
    '{"step_key":"approval","execution_kind":"EXTERNAL","job_type":null,'
    '"organization_id":"00000000-0000-0000-0000-000000000002","priority":null,'
    '"max_attempts":null,"timeout_seconds":null,"stage":null,"dependencies":['
    '{"prerequisite_step_key":"crawl","release_mode":"ON_SUCCESS"}],"payload":{}},'
    '{"step_key":"crawl","execution_kind":"JOB","job_type":"profiles.crawl",'
    '"organization_id":"00000000-0000-0000-0000-000000000001","priority":null,'
    '"max_attempts":null,"timeout_seconds":null,"stage":"queued","dependencies":[],'
    '"payload":null},'
    '{"step_key":"persist","execution_kind":"JOB","job_type":"profiles.persist",'
    '"organization_id":"00000000-0000-0000-0000-000000000001","priority":-5,'
    '"max_attempts":4,"timeout_seconds":60,"stage":"scheduled","dependencies":['
    '{"prerequisite_step_key":"approval","release_mode":"ON_SUCCESS"},'
    '{"prerequisite_step_key":"crawl","release_mode":"ON_TERMINAL"}],'
    '"payload":{"name":"Zoë","b":1,"a":[1.0]}}'
    '],"result_step_key":"persist"}'
)


def edge(key, mode="ON_TERMINAL"):
    return WorkflowStepDependencySpec(key, WorkflowDependencyReleaseMode(mode))


def golden_run():
    return WorkflowRunEnqueue(
        "profiles.research",
        {"source": "api"},
        steps=[
            WorkflowStepEnqueue(
                "persist",
                "profiles.persist",
                payload={"name": "Zoë", "b": 1, "a": [1.0]},
                priority=-5,
                max_attempts=4,
                timeout_seconds=60,
                stage=JobStage.SCHEDULED,
                dependencies=[edge("crawl"), edge("approval", "ON_SUCCESS")],
            ),
            WorkflowStepEnqueue("crawl", "profiles.crawl", payload=None),
            WorkflowStepEnqueue(
                "approval",
                None,
                execution_kind=WorkflowStepExecutionKind.EXTERNAL,
                organization_id=OTHER,
                dependencies=[edge("crawl", "ON_SUCCESS")],
            ),
        ],
        organization_id=ORGANIZATION,
        idempotency_key="secret:17",
        result_step_key="persist",
    )


def golden_append(**changes):
    request = WorkflowStepsAppend(
        UUID(int=7),
        "secret:17",
        append_window_step_key="approval",
        steps=[
            WorkflowStepEnqueue("b", "a", dependencies=[edge("crawl"), edge("a", "ON_SUCCESS")]),
            WorkflowStepEnqueue("a", "a", organization_id=OTHER),
        ],
        mutation_metadata={"by": "ops"},
    )
    return dataclasses.replace(request, **changes)


def test_form_of_a_run():
    assert workflow_run_snapshot(golden_run()) == GOLDEN


def test_form_of_a_run_is_json():
    assert json.loads(workflow_run_snapshot(golden_run()))["steps"][1]["payload"] is None


def test_absent_result_step_is_left_out():
    run = dataclasses.replace(golden_run(), result_step_key=None)

    assert "result_step_key" not in json.loads(workflow_run_snapshot(run))


def test_what_identifies_the_run_is_not_part_of_the_form():
    run = golden_run()
    renamed = dataclasses.replace(run, workflow_type="other", idempotency_key="other")

    assert workflow_run_snapshot(renamed) == workflow_run_snapshot(run)


def test_owner_of_the_run_counts_for_steps_without_their_own():
    run = golden_run()
    explicit = dataclasses.replace(
        run,
        steps=[
            one
            if one.organization_id is not None
            else dataclasses.replace(one, organization_id=ORGANIZATION)
            for one in run.steps
        ],
    )
    moved = dataclasses.replace(run, organization_id=OTHER)

    assert workflow_run_snapshot(explicit) == workflow_run_snapshot(run)
    assert workflow_run_snapshot(moved) != workflow_run_snapshot(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"job_type": "profiles.other"},
        {"payload": {}},
        {"organization_id": OTHER},
        {"priority": -4},
        {"priority": None},
        {"max_attempts": 5},
        {"timeout_seconds": 61},
        {"stage": JobStage.RUNNING},
        {"dependencies": [edge("crawl")]},
        {"dependencies": [edge("crawl"), edge("approval")]},
    ],
)
def test_every_field_of_a_step_counts(changes):
    run = golden_run()
    changed = [dataclasses.replace(run.steps[0], **changes), *run.steps[1:]]

    other = dataclasses.replace(run, steps=changed)

    assert workflow_run_snapshot(other) != workflow_run_snapshot(run)


@pytest.mark.parametrize(
    "changes", [{"metadata": {}}, {"result_step_key": "crawl"}, {"result_step_key": None}]
)
def test_every_field_of_a_run_counts(changes):
    other = dataclasses.replace(golden_run(), **changes)

    assert workflow_run_snapshot(other) != workflow_run_snapshot(golden_run())


def test_stage_left_out_is_queued():
    with_stage = WorkflowStepEnqueue("a", "a", stage=JobStage.QUEUED)
    without = WorkflowStepEnqueue("a", "a")

    assert workflow_run_snapshot(WorkflowRunEnqueue("a", steps=[with_stage])) == (
        workflow_run_snapshot(WorkflowRunEnqueue("a", steps=[without]))
    )


def test_form_of_an_append():
    assert workflow_append_snapshot(golden_append(), organization_id=ORGANIZATION) == (
        '{"append_window_step_key":"approval","steps":['
        '{"step_key":"a","execution_kind":"JOB","job_type":"a",'
        '"organization_id":"00000000-0000-0000-0000-000000000002","priority":null,'
        '"max_attempts":null,"timeout_seconds":null,"stage":"queued","dependencies":[],'
        '"payload":{}},'
        '{"step_key":"b","execution_kind":"JOB","job_type":"a",'
        '"organization_id":"00000000-0000-0000-0000-000000000001","priority":null,'
        '"max_attempts":null,"timeout_seconds":null,"stage":"queued","dependencies":['
        '{"prerequisite_step_key":"a","release_mode":"ON_SUCCESS"},'
        '{"prerequisite_step_key":"crawl","release_mode":"ON_TERMINAL"}],"payload":{}}]}'
    )


def test_metadata_run_and_key_of_a_mutation_are_not_part_of_the_form():
    other = golden_append(
        mutation_metadata={"by": "dev"}, mutation_key="other", workflow_run_id=UUID(int=8)
    )

    assert workflow_append_snapshot(other) == workflow_append_snapshot(golden_append())


def test_gate_and_owner_of_an_append_count():
    request = golden_append()

    moved = workflow_append_snapshot(golden_append(append_window_step_key="other"))
    owned = workflow_append_snapshot(request, organization_id=ORGANIZATION)

    assert workflow_append_snapshot(request) not in {moved, owned}


def test_owner_of_the_run_counts_for_appended_steps_without_their_own():
    request = golden_append()
    explicit = golden_append(
        steps=[
            dataclasses.replace(request.steps[0], organization_id=ORGANIZATION),
            request.steps[1],
        ]
    )

    assert workflow_append_snapshot(explicit, organization_id=ORGANIZATION) == (
        workflow_append_snapshot(request, organization_id=ORGANIZATION)
    )
