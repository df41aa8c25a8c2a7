import sys

import pytest

from runledger_core import (
    MissingDependencyError,
    ValidationError,
    WorkflowDependencyReleaseMode,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    validate_workflow_dag,
    validate_workflow_step_append,
)
from runledger_core.workflows import outside_prerequisites
from runledger_core.workflows.validation import find_cycle

LARGE = 10_000


def step(key, *prerequisites):
    edges = [WorkflowStepDependencySpec(prerequisite) for prerequisite in prerequisites]
    return WorkflowStepEnqueue(key, "a", dependencies=edges)


def code_of(call):
    with pytest.raises(ValidationError) as caught:
        call()
    return caught.value.code.removeprefix("workflow.invalid_dag_")


class CountedKey(str):
    """A key that counts how often it is looked at."""

    __slots__ = ()
    looks = 0

    def __hash__(self):
        CountedKey.looks += 1
        return super().__hash__()

    def __eq__(self, other):
        CountedKey.looks += 1
        return super().__eq__(other)


def chain(size):
    return {CountedKey(n): [CountedKey(n - 1)] if n else [] for n in range(size)}


def wide(size):
    return {CountedKey(n): [CountedKey(0)] if n else [] for n in range(size)}


def join(size):
    return {
        CountedKey(n): list(map(CountedKey, range(n))) if n == size - 1 else [] for n in range(size)
    }


def layered(size, width=10):
    return {
        CountedKey(n): [CountedKey(n - n % width - k) for k in range(1, width + 1) if n >= width]
        for n in range(size)
    }


def backwards(size):
    return {CountedKey(n): [CountedKey(n + 1)] if n < size - 1 else [] for n in range(size)}


def closed(size):
    return chain(size) | {CountedKey(0): [CountedKey(size - 1)]}


SHAPES = [chain, wide, join, layered, backwards, closed]


def test_one_step_is_a_graph():
    validate_workflow_dag([step("a")])


def test_both_kinds_of_edges_and_parts_without_connection_are_graphs():
    success = WorkflowStepDependencySpec("a", WorkflowDependencyReleaseMode.ON_SUCCESS)

    validate_workflow_dag(
        [
            step("c", "a", "b"),
            step("a"),
            step("b", "a"),
            step("d"),
            WorkflowStepEnqueue("e", "a", dependencies=[success]),
        ]
    )


def test_faults_are_told_in_order():
    assert code_of(lambda: validate_workflow_dag([])) == "empty"
    assert code_of(
        lambda: validate_workflow_dag([step("a", "b"), step("b", "a"), step("c", "d"), step("a")])
    ) == ("duplicate_step_key")
    assert code_of(
        lambda: validate_workflow_dag([step("a", "b"), step("b", "a"), step("c", "d")])
    ) == ("missing_dependency")
    assert code_of(lambda: validate_workflow_dag([step("a", "b"), step("b", "a")])) == "cycle"


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({}, None),
        ({"a": [], "b": ["a"]}, None),
        ({"a": ["elsewhere"]}, None),
        ({"a": ["a"]}, ("a",)),
        ({"a": ["b"], "b": ["a"]}, ("a", "b")),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ("a", "c", "b")),
        ({"start": [], "c": ["b", "start"], "b": ["a"], "a": ["c"]}, ("c", "a", "b")),
        # Who only waits for a circle is no part of it.
        ({"after": ["b"], "a": ["b"], "b": ["a"]}, ("a", "b")),
    ],
)
def test_cycle_is_named_in_the_order_of_its_edges(graph, cycle):
    assert find_cycle(graph) == cycle


def test_cycle_at_the_end_of_a_long_chain_is_found():
    steps = [step("0"), *(step(str(n), str(n - 1)) for n in range(1, LARGE))]
    steps += [step("x", str(LARGE - 1), "z"), step("y", "x"), step("z", "y")]

    with pytest.raises(ValidationError) as caught:
        validate_workflow_dag(steps)

    assert caught.value.cycle == ("x", "y", "z")  # pyright: ignore[reportAttributeAccessIssue]  # of its subclass


def test_cycle_of_all_steps_is_found():
    steps = [step(str(n), str((n - 1) % LARGE)) for n in range(LARGE)]

    assert code_of(lambda: validate_workflow_dag(steps)) == "cycle"


@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_with_steps_and_edges(shape):
    def looks(size):
        graph = shape(size)
        before = CountedKey.looks
        find_cycle(graph)
        return CountedKey.looks - before

    assert looks(2_000) <= 2.2 * looks(1_000)


@pytest.mark.parametrize("shape", SHAPES)
def test_large_graphs_need_no_recursion(shape):
    steps = [step(*map(str, (key, *needed))) for key, needed in shape(LARGE).items()]
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(200 + frames())
    try:
        found = code_of(lambda: validate_workflow_dag(steps)) if shape is closed else None
        if found is None:
            validate_workflow_dag(steps)
    finally:
        sys.setrecursionlimit(depth)

    assert found == ("cycle" if shape is closed else None)


def frames():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def test_append_may_wait_for_new_and_existing_steps():
    validate_workflow_step_append(["gate", "crawl"], [step("b", "a"), step("a", "crawl", "gate")])


def test_faults_of_an_append_are_told_in_order():
    def appended(*steps):
        return code_of(lambda: validate_workflow_step_append({"gate"}, steps))

    assert appended() == "empty"
    assert appended(step("a", "missing"), step("gate")) == "duplicate_step_key"
    assert appended(step("a", "missing"), step("a")) == "duplicate_step_key"
    assert appended(step("a", "b"), step("b", "a"), step("c", "missing")) == "missing_dependency"
    assert appended(step("a", "b", "gate"), step("b", "a")) == "cycle"


def test_append_suggests_existing_steps_too():
    with pytest.raises(ValidationError) as caught:
        validate_workflow_step_append(["approval"], [step("a", "aproval")])

    assert "did you mean 'approval'?" in caught.value.client_message


@pytest.mark.parametrize(
    ("existing", "missing", "suggestion"),
    [
        ([f"s{number}" for number in range(98)] + ["approval"], "aproval", "approval"),
        ([f"s{number}" for number in range(99)] + ["approval"], "aproval", None),
        (["a" * 64], "b" + "a" * 63, "a" * 64),
        (["a" * 64], "a" * 65, None),
        (["a" * 65], "a" * 64, None),
    ],
    ids=["hundredth", "behind it", "64 characters", "longer prerequisite", "longer step"],
)
def test_effort_for_a_suggestion_is_bounded(
    existing: list[str], missing: str, suggestion: str | None
):
    with pytest.raises(MissingDependencyError) as caught:
        validate_workflow_step_append(existing, [step("new", missing)])

    assert caught.value.suggestion == suggestion


def test_outside_prerequisites_are_told_once_as_they_come():
    steps = [step("a", "gate", "b"), step("b", "crawl", "gate"), step("c", "a")]

    assert outside_prerequisites(steps) == ("gate", "crawl")
