"""Graphs driven to their end, step by step, against a reckoning that looks at everything anew."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runledger_core import (
    WorkflowDependencyReleaseMode,
    WorkflowStepDependencySpec,
    WorkflowStepStatus,
)
from runledger_core.workflows import (
    WorkflowBlockedStep,
    WorkflowCascade,
    WorkflowStepCounters,
    WorkflowStepEdge,
    settle_dependents,
)

ON_SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
ENDS = ["SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELED"]


@dataclass
class Graph:
    """Steps 0, 1, .. with their edges, and how each ends if it comes to run."""

    waits: list[dict[int, WorkflowDependencyReleaseMode]]
    outcomes: list[str]
    order: list[int]
    batches: list[int]


@dataclass
class Store:
    """What a database would hold: statuses and counters, written once per batch."""

    graph: Graph
    status: dict[int, str] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    unsatisfied: dict[int, int] = field(default_factory=dict)

    def read(self, starts):
        """Return BLOCKED steps that the starts reach and the edges, not past a waiting join."""
        steps, edges, frontier = {}, [], list(starts)
        for key in frontier:
            for dependent, needed in enumerate(self.graph.waits):
                if key not in needed or self.status[dependent] != "BLOCKED":
                    continue
                edges.append(WorkflowStepEdge(key, dependent, release_mode=needed[key]))
                if dependent not in steps:
                    steps[dependent] = self.row(dependent)
                    frontier += [dependent] if steps[dependent].is_expanded else []
        return steps.values(), edges

    def row(self, key):
        return WorkflowBlockedStep(
            key,
            self.pending[key],
            dependency_count_unsatisfied=self.unsatisfied[key],
            is_expanded=self.pending[key] == 1,
        )


# How long a graph takes on a busy machine tells nothing.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 60))
    modes = st.sampled_from(WorkflowDependencyReleaseMode)
    waits = [
        draw(st.dictionaries(st.integers(0, index - 1), modes, max_size=3)) if index else {}
        for index in range(size)
    ]
    return Graph(
        waits,
        [draw(st.sampled_from(ENDS)) for _ in range(size)],
        draw(st.permutations(range(size))),
        draw(st.lists(st.integers(1, 8), min_size=1, max_size=10)),
    )


def naive_round(graph, status):
    """Release or cancel whatever can be, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for key, needed in enumerate(graph.waits):
            ends = [(mode, status[other]) for other, mode in needed.items()]
            if status[key] != "BLOCKED" or any(end not in ENDS for _, end in ends):
                continue
            failed = any(mode is ON_SUCCESS and end != "SUCCEEDED" for mode, end in ends)
            status[key] = "CANCELED" if failed else "ENQUEUED"
            changed = True


def evaluate(graph):
    """Return the terminal statuses, which no order of ends changes."""
    status = []
    for key, needed in enumerate(graph.waits):
        ends = [(mode, status[other]) for other, mode in needed.items()]
        failed = any(mode is ON_SUCCESS and end != "SUCCEEDED" for mode, end in ends)
        status.append("CANCELED" if failed else graph.outcomes[key])
    return dict(enumerate(status))


def new_store(graph):
    store = Store(graph)
    for key, needed in enumerate(graph.waits):
        store.status[key] = "BLOCKED" if needed else "ENQUEUED"
        store.pending[key], store.unsatisfied[key] = len(needed), 0
    return store


def settle(store, ended):
    cascade = WorkflowCascade(ended)
    while cascade.unread:
        cascade.add(*store.read(cascade.unread))
    return cascade.settled()


def settle_at_once(store, ended):
    graph = store.graph
    steps = [store.row(key) for key, status in store.status.items() if status == "BLOCKED"]
    edges = [
        WorkflowStepEdge(other, key, release_mode=mode)
        for key, needed in enumerate(graph.waits)
        for other, mode in needed.items()
    ]
    all_read = [
        WorkflowBlockedStep(
            step.step_id,
            step.dependency_count_pending,
            dependency_count_unsatisfied=step.dependency_count_unsatisfied,
        )
        for step in steps
    ]
    return settle_dependents(ended, all_read, edges)


def write(store, settled):
    for step in settled:
        store.pending[step.step_id] = step.dependency_count_pending
        store.unsatisfied[step.step_id] = step.dependency_count_unsatisfied
        if step.verdict != "WAITING":
            after = "ENQUEUED" if step.verdict == "RELEASED" else "CANCELED"
            store.status[step.step_id] = after


def counted_from_edges(graph, status, key):
    edges = [
        WorkflowStepDependencySpec(str(other), mode) for other, mode in graph.waits[key].items()
    ]
    return WorkflowStepCounters.of(
        edges, {str(other): WorkflowStepStatus(stands) for other, stands in status.items()}
    )


def rounds(graph):
    """Yield, until all steps have ended, the store and how the next batch of steps ends."""
    store = new_store(graph)
    sizes = iter(graph.batches * 60)
    while running := [key for key in graph.order if store.status[key] == "ENQUEUED"]:
        batch = running[: next(sizes)]
        yield store, {key: WorkflowStepStatus(graph.outcomes[key]) for key in batch}


@unhurried
@given(graphs())
def test_every_round_agrees_with_a_naive_fixed_point(graph):
    for store, ended in rounds(graph):
        store.status |= ended
        expected = dict(store.status)
        naive_round(graph, expected)

        write(store, settle(store, ended))

        assert store.status == expected


@unhurried
@given(graphs())
def test_reading_in_parts_and_at_once_settle_the_same(graph):
    for store, ended in rounds(graph):
        store.status |= ended
        in_parts, at_once = settle(store, ended), settle_at_once(store, ended)

        assert set(in_parts) == set(at_once)
        write(store, in_parts)


@unhurried
@given(graphs())
def test_counters_are_those_recomputed_from_the_edges(graph):
    for store, ended in rounds(graph):
        store.status |= ended
        write(store, settle(store, ended))

        for key in store.status:
            counted = counted_from_edges(graph, store.status, key)
            assert store.pending[key] == counted.dependency_count_pending
            assert store.unsatisfied[key] == counted.dependency_count_unsatisfied


@unhurried
@given(graphs())
def test_graphs_end_as_their_outcomes_say_whatever_the_order(graph):
    store = new_store(graph)
    for current, ended in rounds(graph):
        store = current
        store.status |= ended
        write(store, settle(store, ended))

    assert store.status == evaluate(graph)
