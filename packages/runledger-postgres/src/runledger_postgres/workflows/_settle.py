"""The end of steps: what they release or doom, and what that makes of their runs.

Callers hold the locks of all runs concerned (`_locks`), and have ended jobs or gates by statements
of their own before. The closure is decided by `runledger_core.workflows`; one statement writes it
(`_settle_steps`), for any number of steps of any number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final
from uuid import UUID

from runledger_core import ErrorCategory, InternalError
from runledger_core.workflows import (
    WorkflowCascade,
    WorkflowSettledStep,
    WorkflowStepStatus,
    WorkflowStepVerdict,
)

from .._session import Bound, Transaction
from ..errors import refusal
from ._reached import ReachedRow, blocked_steps, ended_steps, reach_from_steps, reached_edges
from ._settle_steps import SETTLE_STEPS, SettledRow

# Most graphs have few levels of joins, and a read past joins may bring much that nobody dooms.
_MOST_LEVELS: Final = 8

# A gate that is released waits for what is outside; only the statement knows which steps are gates.
_STATUSES: Final = {
    WorkflowStepVerdict.WAITING: WorkflowStepStatus.BLOCKED,
    WorkflowStepVerdict.RELEASED: WorkflowStepStatus.ENQUEUED,
    WorkflowStepVerdict.DOOMED: WorkflowStepStatus.CANCELED,
}


def settle(work: Transaction, reached: Sequence[ReachedRow]) -> list[Bound[SettledRow]]:
    """Decide what ended steps do to the others, and return the statement that writes it all.

    One more read is made for each level of joins that are doomed, but no more than eight: then all
    that could be reached is read.

    Args:
        reached: What the first read brought.

    Returns:
        The write; nothing if no step has ended.

    Raises:
        InternalError: `workflow.internal_state` if what is stored of a run contradicts itself.
    """
    ended = ended_steps(reached)
    if not ended:
        return []
    cascade = WorkflowCascade(ended)
    try:
        cascade.add(blocked_steps(reached), reached_edges(reached))
        for level in count(1):
            if not cascade.unread:
                break
            doomed = dict.fromkeys(cascade.unread, WorkflowStepStatus.CANCELED)
            rows = work.fetch(reach_from_steps(doomed, past_joins=level == _MOST_LEVELS))
            cascade.add(blocked_steps(rows), reached_edges(rows))
        return [_write(ended, cascade.settled())]
    except InternalError as error:
        raise refusal(ErrorCategory.INTERNAL, error.code, error.client_message) from error


def _write(
    ended: Mapping[UUID, WorkflowStepStatus], settled: Sequence[WorkflowSettledStep[UUID]]
) -> Bound[SettledRow]:
    # Status, pending, unsatisfied; of a step that ended the counters stay as they are stored.
    changes = {step_id: (status, 0, 0) for step_id, status in ended.items()} | {
        step.step_id: (
            _STATUSES[step.verdict],
            step.dependency_count_pending,
            step.dependency_count_unsatisfied,
        )
        for step in settled
    }
    step_ids = sorted(changes)
    statuses, pending, unsatisfied = zip(*(changes[step_id] for step_id in step_ids), strict=True)
    return Bound(
        SETTLE_STEPS,
        {
            "step_ids": step_ids,
            "statuses": list(statuses),
            "pending": list(pending),
            "unsatisfied": list(unsatisfied),
        },
    )
