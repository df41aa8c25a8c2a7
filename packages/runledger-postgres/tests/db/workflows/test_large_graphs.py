"""Large graphs: a batch takes the same few statements, however much it releases or dooms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from uuid import UUID

import pytest

from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
)

from .conftest import JOB_TYPE, Workflows
from .engine import Engine, counted_statements, dead_letter, success

IS_FULL = os.environ.get("RUNLEDGER_TEST_SIZE") == "full"
SIZES = [1_000, 3_000, 10_000] if IS_FULL else [40, 400]
MANY = 5_000 if IS_FULL else 500
AT_ONCE = 500

# BEGIN, locks of runs, successes, failures, read of what they reach; the write, COMMIT.
BOTH_ENDS, ONE_END = 8, 7
# Of a round: how it walks, what came due, the claim, the look behind it.
CLAIM = 4

SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
TERMINAL = WorkflowDependencyReleaseMode.ON_TERMINAL


@pytest.fixture(autouse=True)
def analyzed(workflows: Workflows) -> Iterator[None]:
    """Take statistics before the invariants are looked at, which join all rows."""
    yield
    workflows.look.execute("ANALYZE")


def step(
    place: int, prerequisites: Iterable[int] = (), mode: WorkflowDependencyReleaseMode = SUCCESS
) -> WorkflowStepEnqueue:
    edges = [WorkflowStepDependencySpec(str(key), mode) for key in prerequisites]
    return WorkflowStepEnqueue(str(place), JOB_TYPE, payload=place, dependencies=edges)


def wide(size: int) -> list[WorkflowStepEnqueue]:
    middle = range(1, size - 1)
    return [step(0), *(step(place, [0]) for place in middle), step(size - 1, middle)]


def chain(size: int) -> list[WorkflowStepEnqueue]:
    return [step(place, [place - 1] if place else []) for place in range(size)]


def layered(size: int) -> list[WorkflowStepEnqueue]:
    """Layers of 20, in which each step waits for three of the layer before."""

    def above(place: int) -> set[int]:
        layer, column = divmod(place, 20)
        return (
            {(layer - 1) * 20 + (column + shift) % 20 for shift in (0, 1, 10)} if layer else set()
        )

    return [step(place, above(place)) for place in range(size)]


def enqueue(workflows: Workflows, steps: list[WorkflowStepEnqueue]) -> UUID:
    return workflows.enqueue(WorkflowRunEnqueue("test.workflow", steps=steps))


def count_of_statuses(workflows: Workflows, run_id: UUID) -> dict[str, int]:
    statuses = list(workflows.steps(run_id).values())
    return {status: statuses.count(status) for status in set(statuses)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [wide, chain, layered])
def test_graph_runs_to_its_end_with_the_same_statements_in_each_round(
    workflows: Workflows, monkeypatch, shape, size
):
    engine = Engine(workflows.database)
    run_id = enqueue(workflows, shape(size))
    jobs = engine.claim(AT_ONCE)

    counts: set[int] = set()
    done = 0
    while jobs:
        done += len(jobs)
        with counted_statements(monkeypatch) as sent:
            jobs = engine.round([success(job) for job in jobs], claim=AT_ONCE).claimed
        counts.add(len(sent))

    assert counts == {ONE_END + CLAIM}
    assert (workflows.status(run_id), done) == ("SUCCEEDED", size)


def test_enqueue_of_a_graph_is_one_statement(workflows: Workflows, monkeypatch):
    with counted_statements(monkeypatch) as sent:
        run_id = enqueue(workflows, layered(MANY))

    assert len(sent) == 3
    assert count_of_statuses(workflows, run_id) == {"ENQUEUED": 20, "BLOCKED": MANY - 20}


def test_branches_that_fail_one_by_one_read_the_tail_once(workflows: Workflows, monkeypatch):
    branches = [step(place) for place in range(MANY)]
    join = step(MANY, range(MANY))
    tail = [step(place, [place - 1]) for place in range(MANY + 1, 2 * MANY)]
    last = step(2 * MANY, [2 * MANY - 1], TERMINAL)
    engine = Engine(workflows.database)
    run_id = enqueue(workflows, [*branches, join, *tail, last])

    counts: set[int] = set()
    failed = 0
    while failed < MANY:
        for job in engine.claim(AT_ONCE):
            failed += 1
            with counted_statements(monkeypatch) as sent:
                engine.round(failures=[dead_letter(job)])
            counts.add(len(sent))
    after = count_of_statuses(workflows, run_id)
    engine.run_to_the_end()

    assert counts == {ONE_END}
    assert after == {"FAILED": MANY, "CANCELED": MANY, "ENQUEUED": 1}
    assert workflows.status(run_id) == "COMPLETED_WITH_ERRORS"


@pytest.mark.core
def test_jobs_that_are_released_together_keep_the_order_of_their_steps(
    workflows: Workflows, monkeypatch
):
    steps = [step(0), *(step(place, [0]) for place in range(1, MANY + 1))]
    engine = Engine(workflows.database)
    run_id = enqueue(workflows, steps)
    # So the rows do not lie in the order of their ids.
    workflows.look.execute(
        "UPDATE runledger.workflow_steps SET updated_at = now() WHERE step_key::int4 % 3 > 0"
    )
    jobs = engine.claim()

    with counted_statements(monkeypatch) as sent:
        engine.round([success(job) for job in jobs])

    assert len(sent) == ONE_END
    assert count_of_statuses(workflows, run_id) == {"SUCCEEDED": 1, "ENQUEUED": MANY}
    order = "SELECT payload::int4 FROM runledger.job_queue ORDER BY id"
    assert [row[0] for row in workflows.look.execute(order)] == list(range(MANY + 1))
    engine.run_to_the_end()


@pytest.mark.core
def test_batch_that_dooms_many_opens_what_waits_for_any_end_of_them(
    workflows: Workflows, monkeypatch
):
    doomed = range(1, MANY + 1)
    steps = [step(0), *(step(place, [0]) for place in doomed), step(MANY + 1, doomed, TERMINAL)]
    engine = Engine(workflows.database)
    run_id = enqueue(workflows, steps)
    jobs = engine.claim()

    with counted_statements(monkeypatch) as sent:
        engine.round(failures=[dead_letter(job) for job in jobs])

    assert len(sent) == ONE_END
    assert count_of_statuses(workflows, run_id) == {"FAILED": 1, "CANCELED": MANY, "ENQUEUED": 1}
    assert workflows.value(
        "SELECT count(*)::int4 FROM runledger.workflow_steps"
        " WHERE status_reason = 'workflow.dependency_unsatisfied'"
        " AND last_error_code = 'workflow.dependency_unsatisfied'"
    ) == MANY  # fmt: skip
    engine.run_to_the_end()


# The last layer has nobody behind it, and the first is read from at once. The eighth read goes past
# all joins.
@pytest.mark.parametrize(("layers", "reads"), [(5, 4), (9, 8), (60, 8)])
def test_each_level_of_doomed_joins_takes_one_more_read_up_to_eight(
    workflows: Workflows, monkeypatch, layers, reads
):
    engine = Engine(workflows.database)
    run_id = enqueue(workflows, layered(20 * layers))
    jobs = engine.claim()

    with counted_statements(monkeypatch) as sent:
        engine.round(failures=[dead_letter(job) for job in jobs])

    assert len(sent) == ONE_END + reads
    assert count_of_statuses(workflows, run_id) == {"FAILED": 20, "CANCELED": 20 * (layers - 1)}


def test_ends_in_many_runs_are_settled_together(workflows: Workflows, monkeypatch):
    engine = Engine(workflows.database)
    run_ids = [enqueue(workflows, chain(2)) for _ in range(100)]
    jobs = engine.claim(100)

    with counted_statements(monkeypatch) as sent:
        successes = [success(job) for job in jobs[:50]]
        engine.round(successes, [dead_letter(job) for job in jobs[50:]])

    assert len(sent) == BOTH_ENDS
    statuses = [workflows.status(run_id) for run_id in run_ids]
    assert statuses == ["RUNNING"] * 50 + ["COMPLETED_WITH_ERRORS"] * 50
    engine.run_to_the_end()
