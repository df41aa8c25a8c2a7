from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import CancelReason
from runledger_postgres import WorkerState
from runledger_postgres.lifecycle import HeartbeatVerdict
from runledger_runtime.engine import EngineConnections
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution
from runledger_runtime.worker._lease_keeper import LeaseKeeper

TTL = 30


class AnsweredKeeper(LeaseKeeper):
    """Beats once and gets this verdict."""

    def __init__(self, verdict: HeartbeatVerdict) -> None:
        super().__init__(
            LeaseBook(),
            EngineConnections(ConnectionPool(open=False)),
            worker_id="worker-1",
            job_types=["jobs.one"],
            concurrency=1,
            lease_ttl_seconds=TTL,
            state=lambda: WorkerState.RUNNING,
        )
        self.verdict = verdict
        self.asked_at = 0.0

    def _renew(self, executions: Sequence[Execution]) -> list[HeartbeatVerdict]:
        self.asked_at = time.monotonic()
        return [self.verdict for _ in executions]


def test_lease_counts_from_before_the_question(start_execution: Callable[..., Execution]):
    execution = start_execution()
    keeper = AnsweredKeeper(HeartbeatVerdict.RENEWED)

    is_any_busy = keeper._beat([execution])

    # The server's clock was read at some time after that.
    assert execution.lease_ends_at - TTL <= keeper.asked_at
    assert not is_any_busy


def test_busy_beat_comes_again_and_tells_the_handler_nothing(
    start_execution: Callable[..., Execution],
):
    execution = start_execution()
    before = execution.lease_ends_at

    is_any_busy = AnsweredKeeper(HeartbeatVerdict.BUSY)._beat([execution])

    assert is_any_busy
    assert not execution.cancelled.is_set()
    assert execution.lease_ends_at == before


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (HeartbeatVerdict.LOST, CancelReason.LEASE_LOST),
        (HeartbeatVerdict.CANCELED, CancelReason.CANCELED),
    ],
)
def test_handler_is_told_why_its_lease_is_gone(
    start_execution: Callable[..., Execution], verdict, reason
):
    execution = start_execution()

    AnsweredKeeper(verdict)._beat([execution])

    assert execution.cancel_reason is reason


def test_ended_attempt_is_told_nothing(start_execution: Callable[..., Execution]):
    execution = start_execution()
    execution.end()

    AnsweredKeeper(HeartbeatVerdict.LOST)._beat([execution])

    assert not execution.cancelled.is_set()
