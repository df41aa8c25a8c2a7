import pytest

from runledger_core import (
    InternalError,
    WorkflowDependencyReleaseMode,
    WorkflowStepStatus,
)
from runledger_core.workflows import (
    DOOMED_CODE,
    WorkflowBlockedStep,
    WorkflowCascade,
    WorkflowStepEdge,
    settle_dependents,
)

ON_SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
ON_TERMINAL = WorkflowDependencyReleaseMode.ON_TERMINAL
SUCCEEDED = WorkflowStepStatus.SUCCEEDED
FAILED = WorkflowStepStatus.FAILED
CANCELED = WorkflowStepStatus.CANCELED
LARGE = 10_000


def edge(before, after, mode=ON_SUCCESS):
    return WorkflowStepEdge(before, after, release_mode=mode)


def blocked(key, pending=1, *, unsatisfied=0, expanded=True):
    return WorkflowBlockedStep(
        key, pending, dependency_count_unsatisfied=unsatisfied, is_expanded=expanded
    )


def verdicts(settled):
    return {step.step_id: str(step.verdict) for step in settled}


def counts(settled):
    return {
        step.step_id: (step.dependency_count_pending, step.dependency_count_unsatisfied)
        for step in settled
    }


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


def counted(size):
    keys: list[str] = [CountedKey(number) for number in range(size)]
    return keys


def chain(size):
    keys = counted(size)
    return [blocked(key) for key in keys[1:]], list(map(edge, keys, keys[1:]))


def branches(size):
    """Branches that fail one by one before a join with a long tail."""
    half, keys = size // 2, counted(size)
    into = [edge(key, keys[half]) for key in keys[:half]]
    steps = [blocked(key) for key in keys[half + 1 :]]
    steps.append(blocked(keys[half], half, expanded=False))
    return steps, [*into, *map(edge, keys[half:], keys[half + 1 :])]


@pytest.mark.parametrize(
    ("status", "mode", "verdict"),
    [
        (SUCCEEDED, ON_SUCCESS, "RELEASED"),
        (SUCCEEDED, ON_TERMINAL, "RELEASED"),
        (FAILED, ON_SUCCESS, "DOOMED"),
        (FAILED, ON_TERMINAL, "RELEASED"),
        (CANCELED, ON_SUCCESS, "DOOMED"),
        (CANCELED, ON_TERMINAL, "RELEASED"),
    ],
)
def test_what_an_end_does_to_a_step_that_waits_for_it_alone(status, mode, verdict):
    settled = settle_dependents({"a": status}, [blocked("b")], [edge("a", "b", mode)])

    assert verdicts(settled) == {"b": verdict}


def test_doomed_steps_store_a_code_of_their_own():
    assert DOOMED_CODE == "workflow.dependency_unsatisfied"


def test_failure_dooms_only_with_the_last_prerequisite():
    first = settle_dependents({"a": FAILED}, [blocked("c", 2)], [edge("a", "c")])
    last = settle_dependents({"b": SUCCEEDED}, [blocked("c", 1, unsatisfied=1)], [edge("b", "c")])

    assert (verdicts(first), counts(first)) == ({"c": "WAITING"}, {"c": (1, 1)})
    assert (verdicts(last), counts(last)) == ({"c": "DOOMED"}, {"c": (0, 1)})


def test_mixed_edges_need_every_success_and_every_end():
    edges = [edge("a", "c"), edge("b", "c", ON_TERMINAL)]

    both = settle_dependents({"a": SUCCEEDED, "b": FAILED}, [blocked("c", 2)], edges)
    swapped = settle_dependents({"a": FAILED, "b": SUCCEEDED}, [blocked("c", 2)], edges)

    assert verdicts(both) == {"c": "RELEASED"}
    assert verdicts(swapped) == {"c": "DOOMED"}


def test_two_last_prerequisites_that_end_together_release_once():
    settled = settle_dependents(
        {"a": SUCCEEDED, "b": SUCCEEDED}, [blocked("c", 2)], [edge("a", "c"), edge("b", "c")]
    )

    assert (verdicts(settled), counts(settled)) == ({"c": "RELEASED"}, {"c": (0, 0)})


def test_doomed_steps_are_ends_for_those_behind_them():
    settled = settle_dependents(
        {"a": FAILED},
        [blocked("b"), blocked("c"), blocked("cleanup")],
        [edge("a", "b"), edge("b", "c"), edge("c", "cleanup", ON_TERMINAL)],
    )

    assert verdicts(settled) == {"b": "DOOMED", "c": "DOOMED", "cleanup": "RELEASED"}


def test_failed_gate_with_many_dependents_opens_the_join_behind_them():
    middle = [str(number) for number in range(64)]
    steps = [*map(blocked, middle), blocked("join", 64)]
    edges = [edge("gate", key) for key in middle]
    edges += [edge(key, "join", ON_TERMINAL) for key in middle]

    settled = settle_dependents({"gate": FAILED}, steps, edges)

    assert verdicts(settled) == dict.fromkeys(middle, "DOOMED") | {"join": "RELEASED"}
    assert counts(settled)["join"] == (0, 0)


def test_one_batch_settles_several_runs():
    settled = settle_dependents(
        {"a1": FAILED, "a2": SUCCEEDED},
        [blocked("b1"), blocked("b2")],
        [edge("a1", "b1"), edge("a2", "b2")],
    )

    assert verdicts(settled) == {"b1": "DOOMED", "b2": "RELEASED"}


def test_steps_that_nothing_reaches_and_edges_of_others_are_left_alone():
    settled = settle_dependents(
        {"a": SUCCEEDED},
        [blocked("b", 2), blocked("elsewhere")],
        [edge("a", "b"), edge("earlier", "b"), edge("running", "elsewhere")],
    )

    assert (verdicts(settled), counts(settled)) == ({"b": "WAITING"}, {"b": (1, 0)})


def test_dependents_that_are_not_blocked_do_not_change():
    assert settle_dependents({"a": SUCCEEDED}, [], [edge("a", "b")]) == ()


def test_an_edge_that_is_read_twice_counts_once():
    settled = settle_dependents(
        {"a": SUCCEEDED}, [blocked("b", 2), blocked("b", 2)], [edge("a", "b"), edge("a", "b")]
    )

    assert counts(settled) == {"b": (1, 0)}


def test_columns_may_come_as_the_text_that_is_stored():
    settled = settle_dependents({"a": "FAILED"}, [blocked("b")], [edge("a", "b", "ON_SUCCESS")])  # pyright: ignore[reportArgumentType]  # rows of a driver

    assert verdicts(settled) == {"b": "DOOMED"}


def test_doomed_join_is_read_from_before_all_is_settled():
    cascade = WorkflowCascade({"a": FAILED, "b": SUCCEEDED})
    assert cascade.unread == ("a", "b")

    cascade.add([blocked("join", 2, expanded=False)], [edge("a", "join"), edge("b", "join")])
    assert cascade.unread == ("join",)
    with pytest.raises(InternalError) as caught:
        cascade.settled()
    assert caught.value.code == "workflow.internal_state"

    cascade.add([blocked("tail")], [edge("join", "tail")])
    assert cascade.unread == ()
    assert verdicts(cascade.settled()) == {"join": "DOOMED", "tail": "DOOMED"}


def test_join_that_goes_on_waiting_is_not_read_from():
    cascade = WorkflowCascade({"a": FAILED})

    cascade.add([blocked("join", 2, expanded=False)], [edge("a", "join")])

    assert cascade.unread == ()
    assert verdicts(cascade.settled()) == {"join": "WAITING"}


def test_later_reads_go_on_with_the_counts_of_earlier_ones():
    cascade = WorkflowCascade({"a": FAILED})
    both = blocked("both", 2, expanded=False)
    cascade.add(
        [blocked("b"), blocked("join", 2, expanded=False), both],
        [edge("a", "b"), edge("a", "join"), edge("b", "join"), edge("b", "both")],
    )
    assert cascade.unread == ("join",)

    # The row is read again as it is stored: nothing is written yet.
    cascade.add([both], [edge("join", "both")])

    assert cascade.unread == ("both",)

    cascade.add([], [])

    assert counts(cascade.settled()) == {"b": (0, 1), "join": (0, 2), "both": (0, 2)}


def test_more_ends_than_prerequisites_are_refused():
    with pytest.raises(InternalError) as caught:
        settle_dependents({"a": SUCCEEDED}, [blocked("b", 0)], [edge("a", "b")])

    assert caught.value.code == "workflow.internal_state"


def test_ten_thousand_doomed_steps_in_a_chain():
    steps, edges = chain(LARGE)

    settled = settle_dependents({"0": FAILED}, steps, edges)

    assert set(verdicts(settled).values()) == {"DOOMED"}
    assert len(settled) == LARGE - 1


@pytest.mark.parametrize("shape", [chain, branches])
def test_work_grows_with_steps_and_edges(shape):
    def looks(size):
        steps, edges = shape(size)
        ended = {str(number): FAILED for number in range(size // 2 if shape is branches else 1)}
        before = CountedKey.looks
        cascade = WorkflowCascade(ended)
        cascade.add(steps, edges)
        while cascade.unread:
            cascade.add([], [])
        assert cascade.settled()
        return CountedKey.looks - before

    assert looks(2_000) <= 2.2 * looks(1_000)
