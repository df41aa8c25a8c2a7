from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runledger_core import (
    CycleDetectedError,
    WorkflowBuildError,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    validate_workflow_dag,
    validate_workflow_step_append,
)

EXISTING = {"gate", "0"}


# How long a graph takes on a busy machine tells nothing.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw):
    """Draw up to 60 steps, in good order but for the faults that are drawn too."""
    size = draw(st.integers(1, 60))
    faults = draw(st.sets(st.sampled_from(["twice", "forward", "unknown"]), max_size=2))
    keys = [str(number) for number in range(size)]
    if "twice" in faults:
        keys[draw(st.integers(0, size - 1))] = draw(st.sampled_from([*keys, "gate"]))
    graph = []
    for index, key in enumerate(keys):
        names = keys[:index]
        if "forward" in faults:
            # Near ones only, so that the way back is likely.
            names = keys[index:][:4] if draw(st.integers(0, 3)) == 0 else names[-3:]
        if "unknown" in faults and draw(st.integers(0, 9)) == 0:
            names = ["gate", "nowhere", *names]
        needed = draw(st.lists(st.sampled_from(names), max_size=4, unique=True)) if names else []
        graph.append((key, [other for other in needed if other != key]))
    return draw(st.permutations(graph)) if draw(st.booleans()) else graph


def naive_fault(graph, existing):
    """Return the code of the first fault, by looking at everything again and again."""
    keys = [key for key, _ in graph]
    if any(key in existing or keys.count(key) > 1 for key in keys):
        return "workflow.invalid_dag_duplicate_step_key"
    if any(other not in keys and other not in existing for _, needed in graph for other in needed):
        return "workflow.invalid_dag_missing_dependency"
    done = set(existing)
    for _ in keys:
        done |= {key for key, needed in graph if set(needed) <= done}
    return None if set(keys) <= done else "workflow.invalid_dag_cycle"


def found_fault(check):
    try:
        check()
    except WorkflowBuildError as error:
        return error
    return None


def steps_of(graph):
    return [
        WorkflowStepEnqueue(
            key, "a", dependencies=[WorkflowStepDependencySpec(other) for other in needed]
        )
        for key, needed in graph
    ]


def check_cycle(error, graph):
    waits = dict(graph)
    later = [*error.cycle[1:], error.cycle[0]]
    assert len(set(error.cycle)) == len(error.cycle)
    assert all(before in waits[after] for before, after in zip(error.cycle, later, strict=True))


@unhurried
@given(graphs())
def test_validation_agrees_with_a_naive_one(graph):
    error = found_fault(lambda: validate_workflow_dag(steps_of(graph)))

    assert (error and error.code) == naive_fault(graph, set())
    if isinstance(error, CycleDetectedError):
        check_cycle(error, graph)


@unhurried
@given(graphs())
def test_validation_of_appends_agrees_with_a_naive_one(graph):
    error = found_fault(lambda: validate_workflow_step_append(EXISTING, steps_of(graph)))

    assert (error and error.code) == naive_fault(graph, EXISTING)
    if isinstance(error, CycleDetectedError):
        check_cycle(error, graph)


@unhurried
@given(graphs(), st.randoms())
def test_order_of_steps_does_not_decide(graph, random):
    shuffled = random.sample(graph, len(graph))

    first = found_fault(lambda: validate_workflow_dag(steps_of(graph)))
    second = found_fault(lambda: validate_workflow_dag(steps_of(shuffled)))

    assert (first and first.code) == (second and second.code)
