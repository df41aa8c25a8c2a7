from __future__ import annotations

from collections.abc import Callable

from runledger_core import CancelReason, JobFailure, JobFailureKind
from runledger_runtime.event_loop import EventLoop
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Ending, Execution
from runledger_runtime.worker._timekeeper import Timekeeper

GRACE = 10.0


def test_handler_is_told_at_its_deadline_and_given_up_after_the_grace_period(
    start_execution: Callable[..., Execution],
):
    delivered = []
    keeper = Timekeeper(
        LeaseBook(),
        lambda *end: delivered.append(end),
        event_loop=EventLoop(),
        grace_seconds=GRACE,
    )
    execution = start_execution(timeout_seconds=60)

    keeper._look(execution, execution.deadline_at - 0.001)
    was_told_early = execution.cancelled.is_set()
    keeper._look(execution, execution.deadline_at)
    keeper._look(execution, execution.told_at + GRACE - 0.001)
    was_given_up_early = bool(delivered)
    keeper._look(execution, execution.told_at + GRACE)

    assert (was_told_early, was_given_up_early) == (False, False)
    assert execution.cancel_reason is CancelReason.TIMEOUT
    ((ended, ending, outcome),) = delivered
    assert (ended, ending) == (execution, Ending.GIVEN_UP)
    assert isinstance(outcome.result, JobFailure)
    assert outcome.result.kind is JobFailureKind.TIMEOUT
