"""Counts a soak: what was acknowledged, what the tables say, what the handlers did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from .ledger import read_facts

LIST_JOBS = """
SELECT id::text, payload ->> 'token', (payload ->> 'failures')::int, status::text, attempt
FROM runledger.job_queue
"""
LIST_ATTEMPTS = """
SELECT job_id::text, claim_number, outcome::text, worker_id, extract(epoch FROM finished_at)::float8
FROM runledger.job_attempts
ORDER BY job_id, claim_number
"""

# What a handler leaves behind, by the outcome that its worker then stores.
TRACES = {"SUCCEEDED": "ended", "RETRYABLE": "failed"}


@dataclass(frozen=True)
class Job:
    """A row of the queue."""

    id: str
    token: str
    failures: int
    status: str
    attempt: int


@dataclass(frozen=True)
class Attempt:
    """A row of the attempts."""

    outcome: str
    worker: str
    finished_at: float


@dataclass(frozen=True)
class Execution:
    """A handler that was entered; `traces` are its later facts and when they were."""

    job: str
    claim: int
    by: str
    began_at: float
    traces: dict[str, float] = field(default_factory=dict)

    def explains(self, claim: int, attempt: Attempt) -> bool:
        """Whether it is what the attempt is about, and was over before that was stored."""
        over_at = self.traces.get(TRACES[attempt.outcome])
        return (self.claim, self.by) == (claim, attempt.worker) and (
            over_at is not None and over_at <= attempt.finished_at
        )


@dataclass
class Account:
    """The result: figures, and what must not be there, by kind."""

    jobs: int = 0
    executions: int = 0
    unknown: int = 0
    vanished: int = 0
    duplicates: int = 0
    offences: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


class Referee:
    """Judges one soak.

    Args:
        database: Where the tables are.
        folder: Where the ledgers are.
        durable_from: What was acknowledged before this time may have vanished; 0 if nothing may.
    """

    def __init__(
        self, database: psycopg.Connection, folder: Path, *, durable_from: float = 0.0
    ) -> None:
        self._durable_from = durable_from
        self._account = Account()
        self._acknowledged: dict[str, tuple[str, float]] = {}
        self._unknown: set[str] = set()
        self._executions: dict[str, list[Execution]] = defaultdict(list)
        self._read_ledgers(read_facts(folder))
        self._jobs = [Job(*row) for row in database.execute(LIST_JOBS)]
        self._attempts: dict[str, dict[int, Attempt]] = defaultdict(dict)
        for job, claim, *attempt in database.execute(LIST_ATTEMPTS):
            self._attempts[job][claim] = Attempt(*attempt)

    def judge(self, *, only_connections_broke: bool) -> Account:
        """Count everything.

        Args:
            only_connections_broke: Then no attempt was anybody's fault, so none may be used up.
        """
        account = self._account
        account.jobs, account.unknown = len(self._jobs), len(self._unknown)
        self._judge_enqueues()
        for job in self._jobs:
            self._judge_job(job)
            self._judge_executions(job)
            if only_connections_broke and job.attempt != 1 + job.failures:
                self._offence("burnt", job.id, f"{job.attempt} attempts, {job.failures} failures")
        known = {job.id for job in self._jobs}
        for job in self._executions.keys() - known:
            if not self._may_have_vanished(*(run.began_at for run in self._executions[job])):
                self._offence("unexpected", job, "was executed and is in no table")
        return account

    def _read_ledgers(self, facts: Iterable[dict[str, Any]]) -> None:
        running: dict[tuple[str, int, str], Execution] = {}
        for fact in facts:
            match fact["fact"]:
                case "acknowledged":
                    jobs = {token: (job, fact["at"]) for token, job in fact["jobs"].items()}
                    self._acknowledged |= jobs
                case "unknown":
                    self._unknown |= set(fact["tokens"])
                case "began":
                    self._account.executions += 1
                    run = Execution(fact["job"], fact["claim"], fact["by"], fact["at"])
                    running[run.job, run.claim, run.by] = run
                    self._executions[run.job].append(run)
                case trace:
                    run = running[fact["job"], fact["claim"], fact["by"]]
                    # A claim that came again has two; the first of them may have been stored.
                    run.traces.setdefault(trace, fact["at"])

    def _judge_enqueues(self) -> None:
        stored = Counter(job.token for job in self._jobs)
        by_id = {job.id for job in self._jobs}
        for token, (job, at) in self._acknowledged.items():
            if job in by_id:
                continue
            if self._may_have_vanished(at):
                self._account.vanished += 1
            else:
                self._offence("lost", job, f"{token} was acknowledged and is in no table")
        for job in self._jobs:
            acknowledged = self._acknowledged.get(job.token)
            if acknowledged is None and job.token not in self._unknown:
                self._offence("unexpected", job.id, f"{job.token} was enqueued by nobody")
            if acknowledged is not None and acknowledged[0] != job.id:
                self._offence("unexpected", job.id, f"{job.token} was acknowledged as another")
            if stored[job.token] > 1:
                self._offence(
                    "unexpected", job.id, f"{job.token} is there {stored[job.token]} times"
                )

    def _judge_job(self, job: Job) -> None:
        if job.status != "SUCCEEDED":
            self._offence("lost", job.id, f"is {job.status}")
        if not any("ended" in run.traces for run in self._executions[job.id]):
            self._offence("lost", job.id, "never ran to its end")
        outcomes = [attempt.outcome for attempt in self._attempts[job.id].values()]
        if len(outcomes) != job.attempt:
            self._offence("unexpected", job.id, f"{len(outcomes)} ended attempts of {job.attempt}")
        if outcomes[-1:] != ["SUCCEEDED"] or set(outcomes[:-1]) - {"RETRYABLE", "LEASE_EXPIRED"}:
            self._offence("unexpected", job.id, f"its attempts ended {outcomes}")

    def _judge_executions(self, job: Job) -> None:
        runs, attempts = self._executions[job.id], self._attempts[job.id]
        for claim, attempt in attempts.items():
            if attempt.outcome in TRACES and not any(run.explains(claim, attempt) for run in runs):
                self._offence("unexpected", job.id, f"claim {claim} did not do {attempt}: {runs}")
        # The number of a claim that vanished comes again.
        entered = Counter(run.claim for run in runs if not self._may_have_vanished(run.began_at))
        for run in runs:
            attempt = attempts.get(run.claim)
            is_known = attempt is not None and attempt.worker == run.by
            if attempt is None or not is_known or attempt.outcome not in TRACES:
                self._account.duplicates += 1
            if self._may_have_vanished(run.began_at):
                continue
            if entered[run.claim] > 1:
                self._offence("twice", job.id, f"claim {run.claim} was entered more than once")
            # A second run needs a lost lease; a run of no attempt came after the end.
            if not is_known:
                self._offence("unexpected", job.id, f"claim {run.claim} ran and is no attempt")

    def _may_have_vanished(self, *times: float) -> bool:
        return min(times) < self._durable_from

    def _offence(self, kind: str, job: str, text: str) -> None:
        self._account.offences[kind].append(f"{job}: {text}")
