"""What the end of steps does to the steps that wait for them, decided without I/O.

A step that ends is one prerequisite less for each that waits for it. One whose last prerequisite
has ended is released, unless one that had to succeed did not: then it is doomed. It is
cancelled without ever having run, and so is an end itself, for those that wait for it.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Generic, TypeVar

from runledger_core import codes
from runledger_core.errors import InternalError
from runledger_core.workflows.counters import WorkflowStepVerdict, step_verdict
from runledger_core.workflows.status import WorkflowDependencyReleaseMode, WorkflowStepStatus

KeyT = TypeVar("KeyT", bound=Hashable)

DOOMED_CODE: Final = codes.WORKFLOW_DEPENDENCY_UNSATISFIED
"""What a doomed step stores as the reason of its status and as its error code."""


@dataclass(frozen=True, slots=True)
class WorkflowBlockedStep(Generic[KeyT]):
    """Hold what is stored of a BLOCKED step.

    Attributes:
        step_id: Its id; anything that tells steps apart will do.
        dependency_count_pending: Prerequisites that have not ended.
        dependency_count_unsatisfied: Prerequisites that ended in another way than demanded.
        is_expanded: Whether the same read brought the edges out of it too.
    """

    step_id: KeyT
    dependency_count_pending: int
    _: KW_ONLY
    dependency_count_unsatisfied: int = 0
    is_expanded: bool = True


@dataclass(frozen=True, slots=True)
class WorkflowStepEdge(Generic[KeyT]):
    """Hold what is stored of a dependency.

    Attributes:
        prerequisite_step_id: The step waited for.
        dependent_step_id: The step that waits.
        release_mode: Which end of the former is enough.
    """

    prerequisite_step_id: KeyT
    dependent_step_id: KeyT
    _: KW_ONLY
    release_mode: WorkflowDependencyReleaseMode


@dataclass(frozen=True, slots=True)
class WorkflowSettledStep(Generic[KeyT]):
    """Tell how a step that waited stands now.

    Attributes:
        step_id: The step.
        verdict: What becomes of it.
        dependency_count_pending: Prerequisites that have not ended.
        dependency_count_unsatisfied: Prerequisites that ended in another way than demanded.
    """

    step_id: KeyT
    verdict: WorkflowStepVerdict
    _: KW_ONLY
    dependency_count_pending: int
    dependency_count_unsatisfied: int


class WorkflowCascade(Generic[KeyT]):
    """Follow the ends of some steps to all steps that they release or doom.

    A read need not go past a step that waits for more than one prerequisite: most such joins are
    not doomed by it. `unread` tells from where to read on if one is. All reads together take time
    linear in the steps and edges that they bring.
    """

    def __init__(self, ended: Mapping[KeyT, WorkflowStepStatus]) -> None:
        """Begin with steps that have just ended, of one run or of many.

        Args:
            ended: How each of them ended.
        """
        self._ends = dict(ended)
        self._unread: list[KeyT] = list(ended)
        self._expanded: set[KeyT] = set()
        self._counts: dict[KeyT, tuple[int, int]] = {}
        self._edges: dict[KeyT, dict[KeyT, WorkflowDependencyReleaseMode]] = {}
        self._changed: dict[KeyT, None] = {}

    @property
    def unread(self) -> tuple[KeyT, ...]:
        """Return the steps that have ended, or are doomed, and whose edges were not read yet."""
        return tuple(self._unread)

    def add(
        self,
        steps: Iterable[WorkflowBlockedStep[KeyT]],
        edges: Iterable[WorkflowStepEdge[KeyT]],
    ) -> None:
        """Take what a read from `unread` brought, and go on as far as it reaches.

        What an earlier read brought may come again, and more may come than is needed.

        Args:
            steps: The BLOCKED steps that it reached, as they are stored.
            edges: The edges out of all of `unread` and of all steps that are expanded.

        Raises:
            InternalError: `workflow.internal_state` if a step had fewer prerequisites left than
                have now ended.
        """
        for step in steps:
            stored = (step.dependency_count_pending, step.dependency_count_unsatisfied)
            self._counts.setdefault(step.step_id, stored)
            if step.is_expanded:
                self._expanded.add(step.step_id)
        for edge in edges:
            out = self._edges.setdefault(edge.prerequisite_step_id, {})
            out[edge.dependent_step_id] = edge.release_mode
        queue = self._unread
        self._unread = []
        # The list grows while it is walked.
        for key in queue:
            for doomed in self._doomed_by(key):
                (queue if doomed in self._expanded else self._unread).append(doomed)

    def settled(self) -> tuple[WorkflowSettledStep[KeyT], ...]:
        """Return every step whose counters have changed, in the order of their first change.

        Raises:
            InternalError: `workflow.internal_state` while something is `unread`.
        """
        if self._unread:
            message = "the edges of some steps that have ended were not read"
            raise InternalError(codes.WORKFLOW_INTERNAL_STATE, message)
        return tuple(self._settled(key) for key in self._changed)

    def _doomed_by(self, key: KeyT) -> Iterator[KeyT]:
        succeeded = self._ends[key] == WorkflowStepStatus.SUCCEEDED
        for dependent, mode in self._edges.pop(key, {}).items():
            # Whoever is not BLOCKED any more was not read, and does not change.
            if dependent not in self._counts:
                continue
            pending, unsatisfied = self._counts[dependent]
            if pending < 1:
                message = "a step had fewer prerequisites left than have ended"
                raise InternalError(codes.WORKFLOW_INTERNAL_STATE, message)
            if not succeeded and mode == WorkflowDependencyReleaseMode.ON_SUCCESS:
                unsatisfied += 1
            self._counts[dependent] = (pending - 1, unsatisfied)
            self._changed[dependent] = None
            if step_verdict(pending - 1, unsatisfied) is WorkflowStepVerdict.DOOMED:
                self._ends[dependent] = WorkflowStepStatus.CANCELED
                yield dependent

    def _settled(self, key: KeyT) -> WorkflowSettledStep[KeyT]:
        pending, unsatisfied = self._counts[key]
        return WorkflowSettledStep(
            key,
            step_verdict(pending, unsatisfied),
            dependency_count_pending=pending,
            dependency_count_unsatisfied=unsatisfied,
        )


def settle_dependents(
    ended: Mapping[KeyT, WorkflowStepStatus],
    steps: Iterable[WorkflowBlockedStep[KeyT]],
    edges: Iterable[WorkflowStepEdge[KeyT]],
) -> tuple[WorkflowSettledStep[KeyT], ...]:
    """Return every step whose counters change when some steps end.

    Args:
        ended: How each of them ended.
        steps: All BLOCKED steps that they reach, as they are stored.
        edges: All edges out of both.

    Raises:
        InternalError: `workflow.internal_state`, as `WorkflowCascade` does.
    """
    cascade = WorkflowCascade(ended)
    cascade.add(steps, edges)
    return cascade.settled()
