"""Runs that live at random through storage, compared after each write with their edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from random import Random
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobFailure, JobLease, RunledgerError, Scope
from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowExternalCompletion,
    WorkflowRunEnqueue,
    WorkflowStepEnqueue,
    WorkflowStepsAppend,
    WorkflowStepStatus,
)
from runledger_postgres.lifecycle import (
    ClaimedJob,
    ClaimRequest,
    FailureEntry,
    OperatorVerdict,
    SuccessEntry,
    cancel_job,
    cancel_jobs,
    cancel_workflow_run,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    reap_expired_leases,
    release_job,
    run_worker_round,
    verify_workflow_runs,
)
from runledger_postgres.workflows import append_workflow_steps, complete_external_workflow_step
from runledger_test_support import expire_lease

from .conftest import JOB_TYPE, Workflows, broken_invariants
from .graphs import Run, step

# More are not appended.
MOST_STEPS = 80
EMPTY = """
TRUNCATE runledger.workflow_runs, runledger.workflow_steps, runledger.workflow_step_dependencies,
    runledger.workflow_run_mutations,
    runledger.job_queue, runledger.job_attempts, runledger.job_events, runledger.job_dead_letters
    CASCADE
"""
STEPS = "SELECT workflow_run_id, step_key, status::text FROM runledger.workflow_steps"
RUNS = "SELECT id, status::text FROM runledger.workflow_runs"
JOBS = (
    "SELECT job_id, workflow_run_id, step_key FROM runledger.workflow_steps WHERE job_id = ANY (%s)"
)
JOB = "SELECT job_id FROM runledger.workflow_steps WHERE workflow_run_id = %s AND step_key = %s"

SUCCEEDED, FAILED = WorkflowStepStatus.SUCCEEDED, WorkflowStepStatus.FAILED
CANCELED, ENQUEUED = WorkflowStepStatus.CANCELED, WorkflowStepStatus.ENQUEUED
WAITING = WorkflowStepStatus.WAITING_FOR_EXTERNAL


@dataclass(frozen=True)
class Held:
    """A job that the worker has, and the step that made it."""

    job: ClaimedJob
    run_id: UUID
    key: str

    @property
    def lease(self) -> JobLease:
        return self.job.lease

    def outcome_of(self, failure: JobFailure | None) -> WorkflowStepStatus | None:
        """Return how the step ends with a failure, or a lost lease; None if it is tried again."""
        is_last = self.lease.attempt >= self.job.max_attempts
        is_final = failure is not None and failure.kind == "TERMINAL"
        return FAILED if is_last or is_final else None


class Life:
    """Some runs at once, and a worker that does at random what workers do."""

    def __init__(self, workflows: Workflows, chance: Random, failing: float) -> None:
        self.workflows, self.chance, self.failing = workflows, chance, failing
        self.pool = workflows.pool
        self.runs: dict[UUID, Run] = {}
        self.held: dict[UUID, Held] = {}
        self.connection = workflows.look
        self.connection.execute(EMPTY)

    def begin(self, steps: list[WorkflowStepEnqueue]) -> None:
        run_id = self.workflows.enqueue(WorkflowRunEnqueue("test.workflow", steps=steps))
        self.runs[run_id] = Run(steps)

    def run_to_the_end(self) -> None:
        idle = 0
        while not all(run.status().is_terminal for run in self.runs.values()):
            self.act()
            self.compare()
            # A retry is due a millisecond later; what is never claimed was never released.
            idle = 0 if self.held or self.open_gates() else idle + 1
            assert idle < 500, "steps that should have been released are not"
        self.verify()

    def act(self) -> None:
        """Do one thing."""
        actions: list[tuple[Callable[[], None], int]] = [(self.claim, 3)]
        if self.held:
            actions += [(self.round, 8), (self.succeed, 3), (self.fail, 2), (self.lose, 1)]
            actions += [(self.give_back, 1), (self.roll_back, 1)]
        if self.chance.random() < self.failing:
            actions += [(self.cancel_one, 4), (self.cancel_some, 2), (self.cancel_run, 1)]
        if self.open_gates():
            actions += [(self.complete_gate, 2), (self.append, 1)]
        (action,) = self.chance.choices(
            [action for action, _ in actions], [weight for _, weight in actions]
        )
        action()

    def compare(self) -> None:
        """Compare what is stored with what follows from the edges."""
        stored: dict[UUID, dict[str, str]] = {run_id: {} for run_id in self.runs}
        for run_id, key, status in self.connection.execute(STEPS):
            stored[run_id][key] = status
        assert stored == {run_id: run.statuses() for run_id, run in self.runs.items()}
        assert dict(self.connection.execute(RUNS).fetchall()) == {
            run_id: run.status() for run_id, run in self.runs.items()
        }
        if self.chance.random() < 0.1:
            self.verify()

    def verify(self) -> None:
        assert broken_invariants(self.connection) == []
        assert verify_workflow_runs(self.pool, scope=Scope.ADMIN) == []

    def claim(self) -> None:
        limit = self.chance.randint(1, 12)
        self.hold(claim_jobs(self.pool, worker_id="worker", limit=limit, lease_ttl_seconds=60))

    def round(self) -> None:
        """Store several outcomes, of whatever runs, and claim; now and then do so twice."""
        held = self.some_held(20)
        bad = [one for one in held if self.chance.random() < self.failing]
        good = [one for one in held if one not in bad]
        successes = [SuccessEntry(one.lease, JobCompletion()) for one in good]
        failures = [FailureEntry(one.lease, self.failure(), retry_delay_ms=1) for one in bad]
        claim = ClaimRequest("worker", [JOB_TYPE], limit=8, window=8, lease_ttl_seconds=60)
        result = run_worker_round(
            self.connection,
            successes=successes,
            failures=failures,
            claim=claim if self.chance.random() < 0.7 else None,
            in_workflows=True,
        )
        assert {outcome.verdict for outcome in (*result.successes, *result.failures)} == {"STORED"}
        for one in good:
            self.let_go(one, SUCCEEDED)
        for one, entry in zip(bad, failures, strict=True):
            self.let_go(one, one.outcome_of(entry.failure))
        self.hold(result.claimed)
        if self.chance.random() < 0.2:
            # As after a commit whose acknowledgement was lost.
            again = run_worker_round(
                self.connection, successes=successes, failures=failures, in_workflows=True
            )
            verdicts = {outcome.verdict for outcome in (*again.successes, *again.failures)}
            assert verdicts == {"REPEATED"}

    def succeed(self) -> None:
        (held,) = self.some_held(1)
        assert complete_job_success(self.pool, held.lease).verdict == "STORED"
        self.let_go(held, SUCCEEDED)
        if self.chance.random() < 0.2:
            assert complete_job_success(self.pool, held.lease).verdict == "REPEATED"

    def fail(self) -> None:
        (held,) = self.some_held(1)
        failure = self.failure()
        for verdict in self.once_or_twice("STORED", "REPEATED"):
            outcome = complete_job_failure(self.pool, held.lease, failure, retry_delay_ms=1)
            assert outcome.verdict == verdict
        self.let_go(held, held.outcome_of(failure))

    def roll_back(self) -> None:
        """End a job in a transaction that is lost before its commit."""
        (held,) = self.some_held(1)
        with self.pool.connection() as connection, connection.transaction(force_rollback=True):
            complete_job_success(connection, held.lease)

    def lose(self) -> None:
        """Let leases run out; what their owner says afterwards is refused."""
        lost = self.some_held(3)
        for held in lost:
            expire_lease(self.connection, held.job.id)
        result = reap_expired_leases(self.pool, limit=100, retry_delay_ms=1)
        assert {job.lease for job in result.reaped} == {held.lease for held in lost}
        for held in lost:
            self.let_go(held, held.outcome_of(None))
            self.say_late(held)

    def give_back(self) -> None:
        (held,) = self.some_held(1)
        release_job(self.pool, held.lease, reason="test")
        self.let_go(held, None)

    def cancel_one(self) -> None:
        for run_id, key, job_id in self.some_jobs(1):
            cancel_job(self.pool, job_id, scope=Scope.ADMIN)
            self.canceled(run_id, key, job_id)

    def cancel_some(self) -> None:
        found = self.some_jobs(5)
        verdicts = cancel_jobs(self.pool, [job_id for *_, job_id in found], scope=Scope.ADMIN)
        assert set(verdicts) <= {OperatorVerdict.DONE}
        for one in found:
            self.canceled(*one)

    def cancel_run(self) -> None:
        run_id, run = self.chance.choice(list(self.runs.items()))
        is_open = not run.status().is_terminal
        outcome = cancel_workflow_run(self.pool, run_id, scope=Scope.ADMIN)
        assert outcome.is_canceled_now == is_open
        if is_open:
            run.cancel()
        for held in [held for held in self.held.values() if held.run_id == run_id]:
            del self.held[held.job.id]
            self.say_late(held)

    def complete_gate(self) -> None:
        run_id, key = self.chance.choice(self.open_gates())
        ends = [SUCCEEDED, FAILED, CANCELED]
        (end,) = self.chance.choices(ends, [1.0, self.failing, self.failing])
        completion = WorkflowExternalCompletion(end)
        for _ in self.once_or_twice("", ""):
            complete_external_workflow_step(self.pool, run_id, key, completion, scope=Scope.ADMIN)
        self.runs[run_id].outcomes[key] = end

    def append(self) -> None:
        """Add steps that wait for others of the run, whatever state those are in."""
        run_id, window = self.chance.choice(self.open_gates())
        run = self.runs[run_id]
        if len(run.steps) > MOST_STEPS:
            return
        keys = [one.step_key for one in run.steps]
        added = []
        for place in range(len(keys), len(keys) + self.chance.randint(1, 6)):
            needed = self.chance.sample(keys, self.chance.randint(0, min(3, len(keys))))
            modes = {key: self.chance.choice(list(WorkflowDependencyReleaseMode)) for key in needed}
            added.append(step(str(place), modes, self.chance.randint(0, 3)))
            keys.append(str(place))
        request = WorkflowStepsAppend(
            run_id, f"append-{len(keys)}", append_window_step_key=window, steps=added
        )
        for disposition in self.once_or_twice("APPENDED", "ALREADY_APPLIED"):
            done = append_workflow_steps(self.pool, request, scope=Scope.ADMIN)
            assert done.disposition == disposition
        run.steps += added

    def canceled(self, run_id: UUID, key: str, job_id: UUID) -> None:
        self.runs[run_id].outcomes[key] = CANCELED
        if (held := self.held.pop(job_id, None)) is not None:
            self.say_late(held)

    def say_late(self, held: Held) -> None:
        with pytest.raises(RunledgerError) as refused:
            complete_job_success(self.pool, held.lease)
        assert refused.value.code == "job.lease_owner_mismatch"

    def hold(self, jobs: Iterable[ClaimedJob]) -> None:
        claimed = {job.id: job for job in jobs}
        for job_id, run_id, key in self.connection.execute(JOBS, [list(claimed)]):
            assert claimed[job_id].workflow_run_id == run_id
            self.held[job_id] = Held(claimed[job_id], run_id, key)
        assert claimed.keys() <= self.held.keys()

    def let_go(self, held: Held, outcome: WorkflowStepStatus | None) -> None:
        """Note how a job's attempt ended; None if another one follows."""
        del self.held[held.job.id]
        if outcome is not None:
            self.runs[held.run_id].outcomes[held.key] = outcome

    def failure(self) -> JobFailure:
        make = JobFailure.terminal if self.chance.random() < 0.5 else JobFailure.retryable
        return make("test.failed", "no")

    def some_held(self, most: int) -> list[Held]:
        held = list(self.held.values())
        return self.chance.sample(held, self.chance.randint(1, min(most, len(held))))

    def open_gates(self) -> list[tuple[UUID, str]]:
        return [(run_id, key) for run_id, run in self.runs.items() for key in run.keys(WAITING)]

    def some_jobs(self, most: int) -> list[tuple[UUID, str, UUID]]:
        """Return steps whose jobs have not ended, waiting or running: run, key, job."""
        steps = [(run_id, key) for run_id, run in self.runs.items() for key in run.keys(ENQUEUED)]
        chosen = self.chance.sample(steps, min(most, len(steps)))
        return [(run_id, key, self.workflows.value(JOB, run_id, key)) for run_id, key in chosen]

    def once_or_twice(self, first: str, second: str) -> Collection[str]:
        return [first, second] if self.chance.random() < 0.2 else [first]
