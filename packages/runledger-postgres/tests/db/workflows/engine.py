"""A worker that tests drive by hand, one round after the other, and what it sends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from runledger_core import JobCompletion, JobFailure
from runledger_postgres._rows import EngineCursor
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    FailureEntry,
    RoundResult,
    SuccessEntry,
    run_waiting_round,
    run_worker_round,
)
from runledger_postgres.wakeup import SLEEP_MARK_CLASS, WAKE_CHANNEL
from runledger_test_support import TemporaryDatabase

from .conftest import JOB_TYPE, Workflows


def success(job: ClaimedJob, output: Any = None) -> SuccessEntry:
    """Return the entry of a job that succeeded."""
    return SuccessEntry(job.lease, JobCompletion(output))


def dead_letter(job: ClaimedJob) -> FailureEntry:
    """Return the entry of a job that will not be tried again."""
    return FailureEntry(job.lease, JobFailure.terminal("test.failed", "no"))


def retry(job: ClaimedJob) -> FailureEntry:
    """Return the entry of a job that fails and is due again in a minute."""
    failure = JobFailure.retryable("test.busy", "try later")
    return FailureEntry(job.lease, failure, retry_delay_ms=60_000)


class Engine:
    """A worker's own connection."""

    def __init__(self, database: TemporaryDatabase, worker_id: str = "worker-1") -> None:
        self.connection = database.connect(autocommit=True)
        self.worker_id = worker_id

    def round(
        self,
        successes: Sequence[SuccessEntry] = (),
        failures: Sequence[FailureEntry] = (),
        *,
        claim: int = 0,
    ) -> RoundResult:
        """Store outcomes and claim so many jobs."""
        request = ClaimRequest(
            self.worker_id, [JOB_TYPE], limit=claim, window=2 * claim, lease_ttl_seconds=600
        )
        return run_worker_round(
            self.connection,
            successes=successes,
            failures=failures,
            claim=request if claim else None,
            in_workflows=bool(successes or failures),
        )

    def waiting_round(
        self,
        successes: Sequence[SuccessEntry] = (),
        failures: Sequence[FailureEntry] = (),
        *,
        wait_ms: int = 20_000,
    ) -> RoundResult:
        """Store outcomes that were all BUSY."""
        return run_waiting_round(
            self.connection,
            successes=successes,
            failures=failures,
            wait_ms=wait_ms,
            in_workflows=True,
        )

    def claim(self, limit: int = 100) -> list[ClaimedJob]:
        """Claim what is due, best first."""
        return self.round(claim=limit).claimed

    def run_to_the_end(self, *, at_once: int = 500) -> None:
        """Let every job succeed, so many at once."""
        jobs = self.claim(at_once)
        while jobs:
            jobs = self.round([success(job) for job in jobs], claim=at_once).claimed


def until_waiting(workflows: Workflows, count: int = 1) -> None:
    """Return as soon as so many sessions wait for a lock."""
    waiting = """
        SELECT count(*) >= %s FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    deadline = time.monotonic() + 20
    while not workflows.value(waiting, count):
        assert time.monotonic() < deadline, "nobody waits"


@contextmanager
def held(workflows: Workflows, run_id: UUID) -> Iterator[psycopg.Connection[Any]]:
    """Let a host's transaction hold the row of a run for a block."""
    with closing(workflows.database.connect()) as connection:
        connection.execute("SELECT FROM runledger.workflow_runs WHERE id = %s FOR UPDATE", [run_id])
        yield connection
        connection.rollback()


def keep_writes(event: str, condition: str) -> str:
    """Return statements after which a trigger of the host keeps some writes from their rows.

    Args:
        event: Such as `UPDATE ON runledger.workflow_steps`.
        condition: On `OLD` or `NEW`.
    """
    return f"""
    CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER keep BEFORE {event} FOR EACH ROW WHEN ({condition})
        EXECUTE FUNCTION public.keep();
    """


class Listener:
    """Hears what is notified; with a mark, as who sleeps or waits has one."""

    def __init__(self, workflows: Workflows, channel: str, *, mark: str | None = None) -> None:
        self.channel = channel
        self.look = workflows.look
        self.connection = workflows.database.connect_directly(autocommit=True)
        self.connection.execute(f"LISTEN {channel}".encode())
        if mark is not None:
            self.connection.execute(f"SELECT pg_advisory_lock_shared({mark})".encode())

    def told(self) -> list[str]:
        """Return what was notified since the last call."""
        # Notifications come in the order of commits: this one is the last.
        self.look.execute(f"NOTIFY {self.channel}, 'end'".encode())
        heard: list[str] = []
        for notification in self.connection.notifies(timeout=20):
            if notification.payload == "end":
                return heard
            heard.append(notification.payload)
        raise TimeoutError


def sleeper(workflows: Workflows) -> Listener:
    """Sleep as a worker."""
    mark = f"{SLEEP_MARK_CLASS}, hashtext('{JOB_TYPE}')"
    return Listener(workflows, WAKE_CHANNEL, mark=mark)


@contextmanager
def counted_statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note the first words of every statement that the engine sends in the block."""
    sent: list[str] = []
    execute = EngineCursor.execute

    def noted(cursor: EngineCursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        sent.append(" ".join(str(query).split()[:3]))
        return execute(cursor, query, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EngineCursor, "execute", noted)
        yield sent
