"""Many threads that do to some runs, at once and at random, everything that can be done to one."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from _workflows import (
    COUNT_OPEN,
    JOB_TYPE,
    OPEN_GATES,
    Plan,
    add_steps,
    complete_gate,
    enqueue,
    random_plan,
    random_steps,
)

from runledger_core import JobCompletion, JobFailure, RunledgerError, Scope
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    FailureEntry,
    SuccessEntry,
    WriteVerdict,
    cancel_jobs,
    cancel_workflow_run,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    heartbeat_jobs,
    reap_expired_leases,
    run_worker_round,
    verify_workflow_runs,
)

# What a call may answer when somebody else was there first, or holds a row for long.
ANSWERS = {
    "db.lock_timeout",
    "job.lease_owner_mismatch",
    "workflow.append_terminal_run",
    "workflow.append_window_not_open",
    "workflow.external_step_conflicting_completion_retry",
    "workflow.external_step_not_waiting",
    "workflow.release_conflict",
}
SOME_JOBS = """
SELECT id FROM runledger.job_queue WHERE status IN ('PENDING', 'LEASED') ORDER BY random() LIMIT 5
"""
SOME_RUN = """
SELECT id FROM runledger.workflow_runs WHERE status IN ('RUNNING', 'WAITING_FOR_EXTERNAL')
ORDER BY random() LIMIT 1
"""
SOME_GATE = f"{OPEN_GATES} ORDER BY random() LIMIT 1"
EXPIRE_SOME_LEASE = """
UPDATE runledger.job_queue SET lease_expires_at = clock_timestamp()
WHERE id = (SELECT id FROM runledger.job_queue WHERE status = 'LEASED' ORDER BY random() LIMIT 1)
    AND status = 'LEASED'
"""
EXPIRE_LEASES = """
UPDATE runledger.job_queue SET lease_expires_at = clock_timestamp() WHERE status = 'LEASED'
"""
MAKE_WAITING_DUE = """
UPDATE runledger.job_queue SET next_run_at = clock_timestamp(), is_ready = true
WHERE status = 'PENDING' AND NOT is_ready
"""


@dataclass
class Crowd:
    """What the members share: the runs with their steps, and what was done and answered."""

    open_runs: int
    plans: dict[UUID, Plan] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str) -> None:
        with self.lock:
            self.done[what] += 1


class Member:
    """One of them, with a connection and leases of its own."""

    def __init__(self, crowd: Crowd, db: psycopg.Connection[Any], number: int, seed: int) -> None:
        self.crowd, self.db = crowd, db
        self.name, self.chance = f"member-{number}", random.Random(seed + number)
        self.held: list[ClaimedJob] = []
        self.actions: list[tuple[Callable[[], object], int]] = [
            (self.claim, 20),
            (self.round, 40),
            (self.succeed, 12),
            (self.fail, 3),
            (self.beat, 3),
            (self.join, 3),
            (self.lose, 3),
            (self.complete, 8),
            (self.append, 6),
            (self.cancel_some, 2),
            (self.cancel_run, 1),
            (self.begin, 3),
            (self.verify, 2),
        ]

    def act_until(self, deadline: float) -> None:
        """Do one thing after the other; stop at an answer that there must not be."""
        weights = [weight for _, weight in self.actions]
        while time.monotonic() < deadline:
            ((action, _),) = self.chance.choices(self.actions, weights)
            try:
                action()
            except RunledgerError as error:
                with self.crowd.lock:
                    self.crowd.answers[error.code] += 1
                if error.code not in ANSWERS:
                    return
            else:
                self.crowd.note(action.__name__)

    def begin(self) -> None:
        if self.value(COUNT_OPEN) < self.crowd.open_runs:
            plan = random_plan(self.chance, steps=60)
            with self.crowd.lock:
                self.crowd.plans[enqueue(self.db, plan)] = plan

    def claim(self) -> None:
        limit = min(self.chance.randint(1, 10), 20 - len(self.held))
        if limit > 0:
            self.hold(claim_jobs(self.db, worker_id=self.name, limit=limit, lease_ttl_seconds=60))

    def round(self) -> None:
        """Store some outcomes and claim; what was busy stays."""
        jobs = self.take(10)
        bad = [job for job in jobs if self.chance.random() < 0.1]
        good = [job for job in jobs if job not in bad]
        result = run_worker_round(
            self.db,
            successes=[SuccessEntry(job.lease, JobCompletion()) for job in good],
            failures=[FailureEntry(job.lease, self.failure(), retry_delay_ms=1) for job in bad],
            claim=ClaimRequest(self.name, [JOB_TYPE], limit=5, window=10, lease_ttl_seconds=60),
            in_workflows=True,
        )
        outcomes = zip([*good, *bad], [*result.successes, *result.failures], strict=True)
        busy = [job for job, outcome in outcomes if outcome.verdict is WriteVerdict.BUSY]
        self.hold([*busy, *result.claimed])
        for _ in busy:
            self.crowd.note("busy")

    def succeed(self) -> None:
        for job in self.take(1):
            complete_job_success(self.db, job.lease, lock_timeout_ms=self.patience())

    def fail(self) -> None:
        for job in self.take(1):
            complete_job_failure(self.db, job.lease, self.failure(), retry_delay_ms=1)

    def join(self) -> None:
        """End a job in a transaction of the caller's, who then may think better of it."""
        for job in self.take(1):
            with self.db.transaction(force_rollback=self.chance.random() < 0.5):
                complete_job_success(self.db, job.lease, lock_timeout_ms=self.patience())

    def beat(self) -> None:
        heartbeat_jobs(self.db, [job.lease for job in self.held], lease_ttl_seconds=60)

    def lose(self) -> None:
        self.db.execute(EXPIRE_SOME_LEASE)
        reap_expired_leases(self.db, limit=10, retry_delay_ms=1)

    def complete(self) -> None:
        if gate := self.db.execute(SOME_GATE).fetchone():
            complete_gate(self.db, *gate)

    def append(self) -> None:
        gate = self.db.execute(SOME_GATE).fetchone()
        if gate is None:
            return
        run_id, key, _ = gate
        with self.crowd.lock:
            # One who is enqueueing it holds the lock until it is known.
            plan = self.crowd.plans[run_id]
            known = [step.step_key for step in plan.steps]
        if len(known) > 100:
            return
        added = random_steps(self.chance, self.chance.randint(1, 5), known)
        add_steps(self.db, run_id, key, added, name=f"{self.name} {self.chance.random()}")
        with self.crowd.lock:
            plan.steps += added

    def cancel_some(self) -> None:
        cancel_jobs(self.db, self.column(SOME_JOBS), scope=Scope.ADMIN)

    def cancel_run(self) -> None:
        for run_id in self.column(SOME_RUN):
            cancel_workflow_run(self.db, run_id, scope=Scope.ADMIN)

    def verify(self) -> None:
        """Look at a run amid all that the others do."""
        runs = self.column(SOME_RUN)
        assert verify_workflow_runs(self.db, run_ids=runs, scope=Scope.ADMIN) == []

    def hold(self, jobs: Sequence[ClaimedJob]) -> None:
        # A lease that was lost unnoticed gives way to the next one of the same job.
        self.held = list({job.id: job for job in (*self.held, *jobs)}.values())

    def take(self, most: int) -> list[ClaimedJob]:
        self.chance.shuffle(self.held)
        taken, self.held = self.held[:most], self.held[most:]
        return taken

    def failure(self) -> JobFailure:
        make = self.chance.choice([JobFailure.terminal, JobFailure.retryable])
        return make("test.failed", "no")

    def patience(self) -> int:
        return self.chance.choice([1, 100, 5_000])

    def value(self, sql: Any) -> Any:
        return self.column(sql)[0]

    def column(self, sql: Any) -> list[Any]:
        return [row[0] for row in self.db.execute(sql)]


def run_to_the_end(db: psycopg.Connection[Any]) -> None:
    """Drive what is left, alone; fail if something does not move on."""
    idle = 0
    while (row := db.execute(COUNT_OPEN).fetchone()) and row[0]:
        db.execute(EXPIRE_LEASES)
        reaped = reap_expired_leases(db, limit=1_000, retry_delay_ms=1).reaped
        db.execute(MAKE_WAITING_DUE)
        jobs = claim_jobs(db, worker_id="last", limit=1_000, lease_ttl_seconds=60)
        entries = [SuccessEntry(job.lease, JobCompletion()) for job in jobs]
        run_worker_round(db, successes=entries, in_workflows=True)
        gates = db.execute(OPEN_GATES).fetchall()
        for gate in gates:
            complete_gate(db, *gate)
        idle = 0 if reaped or jobs or gates else idle + 1
        assert idle < 3, f"{row[0]} runs are stranded"
