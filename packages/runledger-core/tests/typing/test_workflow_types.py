"""What users' type checkers see of workflows; run by pyright and mypy, and once by pytest."""

from collections.abc import Sequence
from typing import assert_type
from uuid import UUID

from runledger_core import (
    CycleDetectedError,
    JobStage,
    JsonInput,
    MissingDependencyError,
    StepKey,
    WorkflowBuildError,
    WorkflowDagBuilder,
    WorkflowDependencyReleaseMode,
    WorkflowRunEnqueue,
    WorkflowRunEnqueueBuilder,
    WorkflowRunStatus,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
    WorkflowStepStatus,
    workflow_append_snapshot,
    workflow_run_snapshot,
)
from runledger_core.workflows import (
    WorkflowBlockedStep,
    WorkflowCascade,
    WorkflowRunCounters,
    WorkflowSettledStep,
    WorkflowStepEdge,
    outside_prerequisites,
    run_status,
    settle_dependents,
)


class OwnDagBuilder(WorkflowDagBuilder):
    """A subclass, whose chain keeps its type."""


def test_chains_keep_their_type() -> None:
    texts: dict[str, str] = {"source": "api"}
    keys: tuple[str, ...] = ("crawl",)
    dag = OwnDagBuilder.try_new("a", texts).job("crawl", "a", texts)

    assert_type(dag, OwnDagBuilder)
    assert_type(dag.external("gate", after_terminal=keys), OwnDagBuilder)
    assert_type(dag.after_success("gate", [StepKey("crawl")]), OwnDagBuilder)
    assert_type(dag.idempotency_key("k").result_step("crawl"), OwnDagBuilder)


def test_builders_make_specs() -> None:
    step = WorkflowStepEnqueueBuilder("score", "a", [1]).priority(1).stage(JobStage.QUEUED)
    gate = WorkflowStepEnqueueBuilder.new_external("gate").depends_on_success({"score"})

    assert_type(step, WorkflowStepEnqueueBuilder)
    assert_type(step.build(), WorkflowStepEnqueue)
    assert_type(gate.try_build(), WorkflowStepEnqueue)
    run = WorkflowRunEnqueueBuilder("a").extend_steps([step.build(), gate.build()])
    assert_type(run.build(), WorkflowRunEnqueue)
    assert_type(run.step(step.build()), WorkflowRunEnqueueBuilder)


def test_specs_are_typed() -> None:
    edge = WorkflowStepDependencySpec("a")
    step = WorkflowStepEnqueue("b", "t", payload={"a": [1]}, dependencies=[edge])
    first = WorkflowStepEnqueue("a", None, execution_kind=WorkflowStepExecutionKind.EXTERNAL)
    run = WorkflowRunEnqueue("w", {"a": "b"}, steps=[first, step], organization_id=UUID(int=1))
    append = WorkflowStepsAppend(
        UUID(int=1), "m", append_window_step_key="a", steps=[WorkflowStepEnqueue("c", "t")]
    )

    assert_type(edge.release_mode, WorkflowDependencyReleaseMode)
    assert_type(step.payload, JsonInput)
    assert_type(step.job_type, str | None)
    assert_type(run.steps, Sequence[WorkflowStepEnqueue])
    assert_type(workflow_run_snapshot(run), str)
    assert_type(workflow_append_snapshot(append, organization_id=None), str)
    assert_type(outside_prerequisites(append.steps), tuple[StepKey, ...])
    assert_type(WorkflowRunStatus.RUNNING.is_terminal, bool)


def reads_errors(error: WorkflowBuildError) -> None:
    assert_type(error.step_key, str | None)
    if isinstance(error, CycleDetectedError):
        assert_type(error.cycle, tuple[str, ...])
    if isinstance(error, MissingDependencyError):
        assert_type(error.suggestion, str | None)


def test_ends_are_followed_by_any_key() -> None:
    ended = {UUID(int=1): WorkflowStepStatus.FAILED}
    step = WorkflowBlockedStep(UUID(int=2), 1)
    edge = WorkflowStepEdge(
        UUID(int=1), UUID(int=2), release_mode=WorkflowDependencyReleaseMode.ON_SUCCESS
    )

    assert_type(settle_dependents(ended, [step], [edge]), tuple[WorkflowSettledStep[UUID], ...])
    assert_type(WorkflowCascade(ended).unread, tuple[UUID, ...])
    assert_type(run_status(WorkflowRunCounters(steps_open=1)), WorkflowRunStatus)
