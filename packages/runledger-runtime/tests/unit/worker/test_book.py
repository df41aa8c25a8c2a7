from __future__ import annotations

from collections.abc import Callable

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
