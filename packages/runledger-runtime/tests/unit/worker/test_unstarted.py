from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runledger_core import JobCompletion
from runledger_postgres.errors import QueryUnavailableError
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker._attempt import unstarted_attempt
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._settling import Settling
from runledger_runtime.worker._unstarted import UnstartedClaims


class Link:
    """Remembers what is released; some of it is held by others, or the connection is lost."""

    def __init__(self) -> None:
        self.is_lost = False
        self.held: list[Any] = []
        self.delays_ms: list[int] = []

    def release(self, leases: Any, *, reason: str, retry_delay_ms: int) -> list[Any]:
        if self.is_lost:
            raise QueryUnavailableError("db.unavailable", "lost")
        self.delays_ms.append(retry_delay_ms)
        return self.held


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook()


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def unstarted(link: Link, book: LeaseBook) -> UnstartedClaims:
    settling = Settling(JobRegistry(), book, on_dead_letter=lambda _letter: None)
    return UnstartedClaims(link, settling)  # type: ignore[arg-type]  # by shape


def end_unstarted(execution: Execution, book: LeaseBook) -> Outcome:
    book.add(execution)
    _, outcome = unstarted_attempt(execution)
    assert outcome is not None
    return outcome


def test_what_was_started_is_not_kept_back(
    start_execution: Callable[..., Execution], unstarted: UnstartedClaims
):
    assert not unstarted.take(Outcome(start_execution(), JobCompletion.success()))

    assert unstarted.seconds_left() == 0


def test_claim_is_given_back_for_a_second_and_none_is_made_meanwhile(
    start_execution: Callable[..., Execution],
    unstarted: UnstartedClaims,
    link: Link,
    book: LeaseBook,
):
    assert unstarted.take(end_unstarted(start_execution(), book))

    assert unstarted.give_back() == []

    assert len(book) == 0
    assert [900 <= delay <= 1_100 for delay in link.delays_ms] == [True]
    assert 0.8 < unstarted.seconds_left() <= 1.1
    assert unstarted.give_back() == []
    assert len(link.delays_ms) == 1


def test_claim_whose_row_others_hold_is_left_to_be_stored(
    start_execution: Callable[..., Execution],
    unstarted: UnstartedClaims,
    link: Link,
    book: LeaseBook,
):
    outcome = end_unstarted(start_execution(), book)
    link.held = [outcome.execution.job.lease]
    unstarted.take(outcome)

    assert unstarted.give_back() == [outcome]

    assert len(book) == 1


def test_claims_are_held_while_the_connection_is_lost(
    start_execution: Callable[..., Execution],
    unstarted: UnstartedClaims,
    link: Link,
    book: LeaseBook,
):
    unstarted.take(end_unstarted(start_execution(), book))
    link.is_lost = True
    with pytest.raises(QueryUnavailableError):
        unstarted.give_back()
    assert len(book) == 1

    link.is_lost = False

    assert unstarted.give_back() == []
    assert len(book) == 0
