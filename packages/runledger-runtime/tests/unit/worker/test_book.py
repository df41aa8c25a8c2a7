from __future__ import annotations

from collections.abc import Callable

from runledger_core import CancelReason
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, ExecutionState


def test_end_of_an_earlier_claim_leaves_the_lease_of_a_later_one(
    start_execution: Callable[..., Execution],
):
    book = LeaseBook()
    earlier, later = start_execution(claim_number=1), start_execution(claim_number=2)
    book.add(earlier)
    book.add(later)

    book.close(earlier)

    assert book.executions() == [later]
    assert (earlier.state, later.state) == (ExecutionState.CLOSED, ExecutionState.RUNNING)


def test_abandoned_lease_is_kept_no_longer_but_stays_known(
    start_execution: Callable[..., Execution],
):
    book = LeaseBook()
    execution = start_execution()
    book.add(execution)

    book.abandon(execution)

    assert len(book) == 0
    assert book.executions() == []
    assert book.leases() == [execution.job.lease]


def test_all_are_told_to_stop_and_so_is_a_claim_that_comes_later(
    start_execution: Callable[..., Execution],
):
    book = LeaseBook()
    held, late = start_execution(claim_number=1), start_execution(claim_number=2)
    book.add(held)

    book.cancel_all(CancelReason.SHUTDOWN)
    book.add(late)

    assert held.cancelled.is_set()
    assert late.cancelled.is_set()
    assert held.cancel_reason is late.cancel_reason is CancelReason.SHUTDOWN


def test_handler_that_was_told_already_keeps_its_reason(start_execution: Callable[..., Execution]):
    book, execution = LeaseBook(), start_execution()
    book.add(execution)
    execution.cancel(CancelReason.TIMEOUT)

    book.cancel_all(CancelReason.SHUTDOWN)

    assert execution.cancel_reason is CancelReason.TIMEOUT
