from __future__ import annotations

import time
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


class LinkAfterAnOutage:
    """Stores everything, and remembers what each round was asked to do."""

    worker_id = "worker-1"

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
    pump._outcomes = [ended]

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
    pump._settling.busy = [resting]
    pump._settling.rest_until = time.monotonic() + 60
    pump._outcomes = [ended]

    pump._step()

    held = [*pump._outcomes, *pump._settling.busy]
    assert sorted(outcome.execution.job.lease.claim_number for outcome in held) == [1, 2]
