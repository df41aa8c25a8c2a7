from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
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


@pytest.fixture
def pump() -> Pump:
    registry = JobRegistry()
    link: Any = LinkToHeldRows()
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


def test_resting_outcomes_outlive_the_connection_that_waited_for_a_row(
    pump: Pump, start_execution: Callable[..., Execution]
):
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
