"""Executions without a database, and a clock that stands still."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import UNSET, JobLease
from runledger_postgres.lifecycle import ClaimedJob
from runledger_runtime.worker._execution import Execution


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: for rests and polls of milliseconds."""
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)


@pytest.fixture
def start_execution() -> Callable[..., Execution]:
    """Make an execution of one job; nothing runs it."""
    pool = ConnectionPool(open=False)

    def start(number: int = 1, *, claim_number: int = 1, timeout_seconds: int = 60) -> Execution:
        job = ClaimedJob(
            JobLease(
                UUID(int=number), 1, attempt=1, claim_number=claim_number, worker_id="worker-1"
            ),
            "jobs.one",
            organization_id=None,
            workflow_run_id=None,
            max_attempts=3,
            priority=0,
            timeout_seconds=timeout_seconds,
            lease_expires_at=datetime.now(UTC),
            payload={},
            checkpoint=UNSET,
            payload_json="{}",
        )
        return Execution(job, pool, lease_ends_at=time.monotonic())

    return start
