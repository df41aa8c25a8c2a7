from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion
from runledger_postgres.errors import QueryUnavailableError
from runledger_postgres.lifecycle import RoundResult, SuccessOutcome, WriteVerdict
from runledger_runtime.config import JobsConfig
from runledger_runtime.dead_letters import DeadLetterHooks
from runledger_runtime.health import LoopHealth
from runledger_runtime.registry import JobRegistry
from runledger_runtime.shutdown import StopToken
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._pump import Pump
from runledger_runtime.worker._sleep import Sleep

SLOW = 1


class LinkAfterAnOutage:
    """Stores everything, and remembers what each round was asked to do."""

    worker_id = "worker-1"
    claim_cut_offs = 0

    def __init__(self) -> None:
        self.rounds: list[tuple[int, bool]] = []

    def is_down(self) -> bool:
        return False

    def is_recovering(self) -> bool:
        return not self.rounds

    def has_unknown_claims(self) -> bool:
        return False

    def round(self, batch: Any, claim: Any) -> RoundResult:
        self.rounds.append((len(batch.successes), claim is not None))
        return RoundResult([SuccessOutcome(WriteVerdict.STORED) for _ in batch.successes], [])


class LinkToHeldRows:
    """Every row is held by somebody, and whoever waits for one loses the connection."""

    worker_id = "worker-1"
    claim_cut_offs = 0

    def is_down(self) -> bool:
        return False

    def is_recovering(self) -> bool:
        return False

    def has_unknown_claims(self) -> bool:
        return False

    def seconds_until_retry(self) -> float:
        return 0.0

    def round(self, batch: Any, claim: Any) -> RoundResult:
        return RoundResult([SuccessOutcome(WriteVerdict.BUSY) for _ in batch.successes], [])

    def waiting_round(self, batch: Any) -> RoundResult:
        raise QueryUnavailableError("db.unavailable", "the connection is lost")

    def lost(self, error: Exception) -> None: ...


class LinkToSlowRows:
    """Cuts off every round with one slow outcome in it, until that one has had two rounds alone."""

    worker_id = "worker-1"
    claim_cut_offs = 0

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []

    def is_down(self) -> bool:
        return False

    def is_recovering(self) -> bool:
        return False

    def has_unknown_claims(self) -> bool:
        return False

    def seconds_until_retry(self) -> float:
        return 0.0

    def round(self, batch: Any, claim: Any) -> RoundResult:
        claim_numbers = [outcome.execution.job.lease.claim_number for outcome in batch.outcomes]
        if claim_numbers:
            self.rounds.append(claim_numbers)
        if SLOW in claim_numbers and batch.cut_offs < 2:
            batch.cut_off()
            raise QueryUnavailableError("db.statement_timeout", "the statement was cancelled")
        return RoundResult([SuccessOutcome(WriteVerdict.STORED) for _ in batch.successes], [])

    def lost(self, error: Exception) -> None: ...


def make_pump(link: Any) -> Pump:
    registry = JobRegistry()
    registry.register_function("jobs.one", lambda _context, _payload: None)
    return Pump(
        JobsConfig("worker-1"),
        registry,
        stop=StopToken(),
        book=LeaseBook(),
        link=link,
        sleep=Sleep(None, poll_interval_seconds=1.0),
        hooks=DeadLetterHooks(registry, ConnectionPool(open=False)),
        health=LoopHealth("worker"),
    )


def test_outcomes_go_before_claims_after_an_outage(start_execution: Callable[..., Execution]):
    link = LinkAfterAnOutage()
    pump = make_pump(link)
    ended = Outcome(start_execution(claim_number=1), JobCompletion.success())
    ended.execution.end()
    pump._waiting.add([ended])

    pump._step()
    pump._step()

    # Then the worker claims again.
    assert link.rounds == [(1, False), (0, True)]


def test_resting_outcomes_outlive_the_connection_that_waited_for_a_row(
    start_execution: Callable[..., Execution],
):
    pump = make_pump(LinkToHeldRows())
    resting, ended = (
        Outcome(start_execution(claim_number=number), JobCompletion.success()) for number in (1, 2)
    )
    for outcome in (resting, ended):
        outcome.execution.end()
    pump._waiting.put_busy([resting])
    pump._waiting.rest()
    pump._waiting.add([ended])

    pump._step()

    assert pump._waiting.find_missing([resting, ended]) == []
    assert len(pump._waiting) == 2


def test_outcomes_of_a_round_that_was_cut_off_are_stored_alone_and_the_slow_one_last(
    start_execution: Callable[..., Execution],
):
    link = LinkToSlowRows()
    pump = make_pump(link)
    ended = [
        Outcome(start_execution(claim_number=number), JobCompletion.success())
        for number in (SLOW, 2, 3)
    ]
    for outcome in ended:
        outcome.execution.end()
    pump._waiting.add(ended)

    for _ in range(20):
        if len(pump._waiting):
            pump._step()

    # Each was tried alone; the slow one comes again behind the others.
    assert link.rounds == [[SLOW, 2, 3], [SLOW], [2], [3], [SLOW], [SLOW]]


def test_outcome_that_waits_for_a_round_of_its_own_keeps_its_slot(
    start_execution: Callable[..., Execution],
):
    pump = make_pump(LinkToSlowRows())
    free = pump._claimable()
    slow = Outcome(start_execution(claim_number=SLOW), JobCompletion.success())
    slow.execution.end()
    pump._waiting.add([slow])

    pump._step()
    pump._step()

    assert pump._waiting.fresh == 0
    assert pump._claimable() == free - 1


def test_outcome_that_was_cut_off_alone_waits_behind_those_that_were_not(
    start_execution: Callable[..., Execution],
):
    link = LinkToSlowRows()
    pump = make_pump(link)
    slow, small = (
        Outcome(start_execution(claim_number=number), JobCompletion.success())
        for number in (SLOW, 2)
    )
    slow.execution.cut_offs = 2
    slow.execution.is_stored_alone = small.execution.is_stored_alone = True
    pump._waiting.add([slow, small])

    pump._step()
    pump._step()

    assert link.rounds == [[2], [SLOW]]
