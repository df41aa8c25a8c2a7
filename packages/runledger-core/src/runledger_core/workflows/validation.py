"""Checks of a whole graph, in time linear in its steps and dependencies and without recursion."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final, TypeVar

from runledger_core.identifiers import StepKey
from runledger_core.workflows.errors import (
    CycleDetectedError,
    DuplicateStepKeyError,
    EmptyStepsError,
    GraphTooLargeError,
    MissingDependencyError,
)
from runledger_core.workflows.spec import WorkflowStepEnqueue

KeyT = TypeVar("KeyT", bound=str)

# A graph is stored as one jsonb array too, which ends at 256 MiB and needs up to six bytes for one
# character of JSON.
_MAX_GRAPH_CHARACTERS: Final = 40_000_000
# Looking for a similar key is slow, and only a kindness: an append looks while it holds the run.
_LIKELY_KEYS: Final = 100
_LIKELY_CHARACTERS: Final = 64


def validate_workflow_dag(steps: Sequence[WorkflowStepEnqueue]) -> None:
    """Check that steps make a graph that can run to its end.

    `WorkflowRunEnqueue` does this itself.

    Args:
        steps: All steps of a run, in any order.

    Raises:
        WorkflowBuildError: In this order `workflow.invalid_dag_empty`,
            `workflow.invalid_dag_too_large`, `workflow.invalid_dag_duplicate_step_key`,
            `workflow.invalid_dag_missing_dependency`, `workflow.invalid_dag_cycle`.
    """
    _check_size(steps)
    keys = _distinct_keys(steps, ())
    _check_prerequisites(steps, keys)
    _check_cycles(steps)


def validate_appended_steps(steps: Sequence[WorkflowStepEnqueue]) -> None:
    """Check what can be told of appended steps without those that the run has.

    `WorkflowStepsAppend` does this itself; the rest is for `validate_workflow_step_append`.

    Raises:
        WorkflowBuildError: As `validate_workflow_dag`, but for missing prerequisites.
    """
    _check_size(steps)
    _distinct_keys(steps, ())
    _check_cycles(steps)


def validate_workflow_step_append(
    existing_step_keys: Collection[str], steps: Sequence[WorkflowStepEnqueue]
) -> None:
    """Check that steps can be added to a run.

    Args:
        existing_step_keys: Keys of the run's steps; of a large run those suffice that new steps
            have, or name as prerequisites.
        steps: The new steps, in any order.

    Raises:
        WorkflowBuildError: As `validate_workflow_dag`; a key may neither come twice nor exist, and
            a prerequisite may be a new step or an existing one.
    """
    _check_size(steps)
    existing = set(existing_step_keys)
    keys = _distinct_keys(steps, existing)
    _check_prerequisites(steps, {**keys, **dict.fromkeys(existing_step_keys)})
    _check_cycles(steps)


def outside_prerequisites(steps: Sequence[WorkflowStepEnqueue]) -> tuple[StepKey, ...]:
    """Return the prerequisites that are not among the steps, each once, as they are named first."""
    inside = {step.step_key for step in steps}
    named = (StepKey(edge.prerequisite_step_key) for step in steps for edge in step.dependencies)
    return tuple(dict.fromkeys(key for key in named if key not in inside))


def find_cycle(prerequisites: Mapping[KeyT, Sequence[KeyT]]) -> tuple[KeyT, ...] | None:
    """Return keys that wait for each other in a circle, None if there are none.

    Args:
        prerequisites: What each key waits for; what is no key itself is passed over.

    Returns:
        Each key before the one that waits for it, beginning with the one of them that comes first
        in the mapping.
    """
    waiting: dict[KeyT, int] = {}
    dependents: dict[KeyT, list[KeyT]] = {key: [] for key in prerequisites}
    for key, needed in prerequisites.items():
        inside = [other for other in needed if other in dependents]
        waiting[key] = len(inside)
        for other in inside:
            dependents[other].append(key)
    done = [key for key, count in waiting.items() if count == 0]
    # The list grows while it is walked.
    for key in done:
        for dependent in dependents[key]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                done.append(dependent)
    if len(done) == len(waiting):
        return None
    return _circle(prerequisites, {key for key, count in waiting.items() if count > 0})


def _circle(
    prerequisites: Mapping[KeyT, Sequence[KeyT]], stuck: Container[KeyT]
) -> tuple[KeyT, ...]:
    # Whoever is stuck waits for someone who is stuck, so this walk comes round.
    key = next(key for key in prerequisites if key in stuck)
    walked: dict[KeyT, int] = {}
    while key not in walked:
        walked[key] = len(walked)
        key = next(other for other in prerequisites[key] if other in stuck)
    circle = list(islice(walked, walked[key], None))[::-1]
    members = set(circle)
    first = next(key for key in prerequisites if key in members)
    turn = circle.index(first)
    return (*circle[turn:], *circle[:turn])


def _check_size(steps: Sequence[WorkflowStepEnqueue]) -> None:
    if not steps:
        raise EmptyStepsError
    if sum(len(step.payload_json) for step in steps) > _MAX_GRAPH_CHARACTERS:
        raise GraphTooLargeError(max_characters=_MAX_GRAPH_CHARACTERS)


def _distinct_keys(
    steps: Sequence[WorkflowStepEnqueue], existing: Container[str]
) -> dict[str, None]:
    keys: dict[str, None] = {}
    for index, step in enumerate(steps):
        if step.step_key in keys or step.step_key in existing:
            raise DuplicateStepKeyError(step.step_key, entry_index=index)
        keys[step.step_key] = None
    return keys


def _check_prerequisites(steps: Sequence[WorkflowStepEnqueue], keys: Mapping[str, None]) -> None:
    for index, step in enumerate(steps):
        for edge in step.dependencies:
            missing = edge.prerequisite_step_key
            if missing not in keys:
                raise MissingDependencyError(
                    step.step_key, missing, suggestion=_similar(missing, keys), entry_index=index
                )


def _similar(missing: str, keys: Iterable[str]) -> str | None:
    if len(missing) > _LIKELY_CHARACTERS:
        return None
    short = (key for key in islice(keys, _LIKELY_KEYS) if len(key) <= _LIKELY_CHARACTERS)
    found = get_close_matches(missing, short, n=1)
    return found[0] if found else None


def _check_cycles(steps: Sequence[WorkflowStepEnqueue]) -> None:
    waits = {
        step.step_key: [edge.prerequisite_step_key for edge in step.dependencies] for step in steps
    }
    cycle = find_cycle(waits)
    if cycle is not None:
        raise CycleDetectedError(cycle)
