from __future__ import annotations

import time
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
        self.tries: list[int] = []

    def give_back(
        self, leases: list[JobLease], *, reason: str, retry_delay_ms: int
    ) -> list[WriteVerdict]:
        self.tries.append(len(leases))
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


def give_all_back(returned: ReturnedClaims) -> list[Outcome]:
    """Give back until nothing is held, and return what was refused."""
    refused: list[Outcome] = []
    while (left := returned.seconds_until_next()) is not None:
        time.sleep(left)
        refused += returned.give_back()
    return refused


def test_what_was_started_is_not_kept_back(
    start_execution: Callable[..., Execution], returned: ReturnedClaims
):
    assert not returned.take(Outcome(start_execution(), JobCompletion.success()))

    assert (len(returned), returned.seconds_of_pause()) == (0, 0)


def test_claim_is_given_back_for_a_second_and_none_is_made_meanwhile(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    assert returned.take(end_unstarted(start_execution(), book))
    assert len(returned) == 1

    assert give_all_back(returned) == []

    assert (len(returned), len(book)) == (0, 0)
    assert [900 <= delay <= 1_100 for delay in link.delays_ms] == [True]
    assert 0.8 < returned.seconds_of_pause() <= 1.1


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

    assert (len(book), link.delays_ms, returned.seconds_of_pause()) == (0, [0], 0)
    assert returned.seconds_until_next() is None


def test_claims_of_both_kinds_go_back_one_after_the_other(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    for number in (1, 2, 3):
        returned.take(end_unstarted(start_execution(number), book))
        returned.take(Outcome(start_execution(10 + number), SHUT_DOWN))

    assert give_all_back(returned) == []

    assert link.tries == [3, 3]
    assert sorted(delay > 0 for delay in link.delays_ms) == [False, True]


def test_two_claims_of_one_job_go_back_one_after_the_other(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    for number in (1, 2):
        returned.take(end_unstarted(start_execution(claim_number=number), book))

    assert give_all_back(returned) == []

    assert link.tries == [1, 1]


def test_claim_whose_row_others_hold_is_tried_again_after_a_rest_that_grows(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
    caplog: pytest.LogCaptureFixture,
):
    outcome = end_unstarted(start_execution(), book)
    link.held = [outcome.execution.job.lease]
    returned.take(outcome)
    rests: list[float] = []
    for _ in range(6):
        assert returned.give_back() == []
        assert returned.give_back() == [], "it rests"
        rests.append(returned.seconds_until_next() or 0)
        returned._retry_at = 0.0

    assert len(link.tries) == 6
    assert 0.03 < rests[0] < 0.06
    assert 0.8 < rests[-1] < 1.2
    assert sorted(rests) == rests
    told = [each for each in caplog.records if each.message.startswith("a job cannot be given")]
    assert len(told) == 1
    link.held = []
    assert give_all_back(returned) == []
    assert len(book) == 0


def test_refused_claim_is_left_to_be_stored_and_costs_the_others_nothing(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    outcomes = [end_unstarted(start_execution(number), book) for number in range(8)]
    link.refused = [outcomes[3].execution.job.lease]
    for outcome in outcomes:
        returned.take(outcome)

    assert give_all_back(returned) == [outcomes[3]]

    assert len(book) == 1
    # By halves, and not one by one.
    assert link.tries == [8, 4, 2, 4, 2, 1, 1]


def test_claims_are_held_while_the_connection_is_lost(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
):
    outcomes = [end_unstarted(start_execution(number), book) for number in range(4)]
    link.refused = [outcomes[1].execution.job.lease]
    for outcome in outcomes:
        returned.take(outcome)
    link.is_lost = True
    for _ in range(3):
        returned._retry_at = 0.0
        with pytest.raises(QueryUnavailableError):
            returned.give_back()
    assert (len(book), len(returned)) == (4, 4)

    link.is_lost = False

    assert give_all_back(returned) == [outcomes[1]]
    assert len(book) == 1


def test_after_a_try_that_took_long_for_nothing_the_others_have_most_of_the_time(
    start_execution: Callable[..., Execution],
    returned: ReturnedClaims,
    link: Link,
    book: LeaseBook,
    monkeypatch: pytest.MonkeyPatch,
):
    def cut_off(*_arguments: object, **_keywords: object) -> list[WriteVerdict]:
        time.sleep(0.1)
        raise QueryUnavailableError("db.statement_timeout", "cut off")

    for number in (1, 2):
        returned.take(end_unstarted(start_execution(number), book))
    monkeypatch.setattr(link, "give_back", cut_off)
    with pytest.raises(QueryUnavailableError):
        returned.give_back()
    monkeypatch.undo()

    left = returned.seconds_until_next()

    assert left is not None
    assert 0.3 < left < 2
    assert give_all_back(returned) == []
    assert link.tries == [1, 1]
