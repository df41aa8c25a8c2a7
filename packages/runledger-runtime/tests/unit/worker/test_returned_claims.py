from __future__ import annotations

from collections.abc import Callable

import pytest

from runledger_core import JobCompletion, JobLease
from runledger_postgres.errors import QueryInternalError, QueryUnavailableError
from runledger_postgres.lifecycle import WriteVerdict
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker._attempt import SHUT_DOWN, unstarted_attempt
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._returned_claims import ReturnedClaims
from runledger_runtime.worker._settling import Settling

STORED, BUSY = WriteVerdict.STORED, WriteVerdict.BUSY


class Link:
    """Remembers what is given back; some rows are held by others, or the connection is lost."""

    def __init__(self) -> None:
        self.is_lost = False
        self.held: list[JobLease] = []
        self.refused: list[JobLease] = []
        self.delays_ms: list[int] = []

    def give_back(
        self, leases: list[JobLease], *, reason: str, retry_delay_ms: int
    ) -> list[WriteVerdict]:
        if self.is_lost:
            raise QueryUnavailableError("db.unavailable", "lost")
        if any(lease in self.refused for lease in leases):
            raise QueryInternalError("db.check_violation", "refused")
        self.delays_ms.append(retry_delay_ms)
        return [BUSY if lease in self.held else STORED for lease in leases]


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook()


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def returned(link: Link, book: LeaseBook) -> ReturnedClaims:
    settling = Settling(JobRegistry(), book, on_dead_letter=lambda _letter: None)
    return ReturnedClaims(link, settling)  # type: ignore[arg-type]  # by shape


def end_unstarted(execution: Execution, book: LeaseBook) -> Outcome:
    book.add(execution)
    _, outcome = unstarted_attempt(execution)
    assert outcome is not None
    return outcome


def test_what_was_started_is_not_kept_back(
    start_execution: Callable[..., Execution], returned: ReturnedClaims
):
    assert not returned.take(Outcome(start_execution(), JobCompletion.success()))

    assert returned.seconds_of_rest() == 0


def test_claim_is_given_back_for_a_second_and_none_is_made_meanwhile(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    assert returned.take(end_unstarted(start_execution(), book))

    assert returned.give_back() == []

    assert len(book) == 0
    assert [900 <= delay <= 1_100 for delay in link.delays_ms] == [True]
    assert 0.8 < returned.seconds_of_rest() <= 1.1
    assert returned.give_back() == []
    assert len(link.delays_ms) == 1


def test_claim_of_a_told_handler_is_given_back_at_once_and_the_next_may_come(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    execution = start_execution()
    book.add(execution)
    assert returned.take(Outcome(execution, SHUT_DOWN))

    assert returned.give_back() == []

    assert (len(book), link.delays_ms, returned.seconds_of_rest()) == (0, [0], 0)
    assert returned.seconds_until_next() is None


def test_claim_whose_row_others_hold_is_tried_again_after_a_moment(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
    monkeypatch: pytest.MonkeyPatch,
):
    outcome = end_unstarted(start_execution(), book)
    link.held = [outcome.execution.job.lease]
    returned.take(outcome)

    assert returned.give_back() == []

    assert len(book) == 1
    left = returned.seconds_until_next()
    assert left is not None
    assert 0 < left < 0.1
    link.held = []
    assert returned.give_back() == []
    assert len(link.delays_ms) == 1, "it rests"
    monkeypatch.setattr(returned, "_retry_at", 0.0)
    assert returned.give_back() == []
    assert len(book) == 0


def test_refused_claim_is_left_to_be_stored_and_costs_the_others_nothing(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    outcomes = [end_unstarted(start_execution(claim_number=n), book) for n in (1, 2, 3)]
    link.refused = [outcomes[1].execution.job.lease]
    for outcome in outcomes:
        returned.take(outcome)

    assert returned.give_back() == [outcomes[1]]

    assert returned.seconds_until_next() is None


def test_claims_are_held_while_the_connection_is_lost(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    returned.take(end_unstarted(start_execution(), book))
    link.is_lost = True
    with pytest.raises(QueryUnavailableError):
        returned.give_back()
    assert len(book) == 1

    link.is_lost = False

    assert returned.give_back() == []
    assert len(book) == 0
