"""Random lives of jobs, compared after each write with a model that fits on a page."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from runledger_core import (
    JobCompletion,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    RunledgerError,
    Scope,
)
from runledger_postgres.lifecycle import (
    cancel_job,
    complete_job_failure,
    complete_job_success,
    heartbeat_job,
    reap_expired_leases,
    release_job,
    requeue_job,
    update_job_progress,
)
from runledger_test_support import expire_lease

if TYPE_CHECKING:
    from conftest import Queue

EXAMPLES = 300 if os.environ.get("RUNLEDGER_TEST_SIZE") == "full" else 60
MAX_ATTEMPTS = 2
ADMIN = Scope.ADMIN
MISMATCH = "job.lease_owner_mismatch"


@dataclass
class ModelJob:
    priority: int
    turn: int
    status: str = "PENDING"
    is_ready: bool = True
    run_number: int = 1
    attempt: int = 0
    claim_number: int = 0
    worker_id: str | None = None
    is_live: bool = False
    is_started: bool = False
    output: object = None
    # What each ended claim was: its owner, and how it ended.
    ended: dict[int, tuple[str, object]] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        return {
            "status": self.status, "is_ready": self.is_ready, "run_number": self.run_number,
            "attempt": self.attempt, "claim_number": self.claim_number, "worker_id": self.worker_id,
        }  # fmt: skip

    def is_held(self, lease: JobLease) -> bool:
        return (
            self.status == "LEASED"
            and self.is_live
            and (self.claim_number, self.worker_id) == (lease.claim_number, lease.worker_id)
        )

    def end(self, status: str, outcome: object, *, is_ready: bool = False) -> None:
        assert self.worker_id is not None
        self.ended[self.claim_number] = (self.worker_id, outcome)
        self.status, self.is_ready = status, is_ready
        self.worker_id, self.is_live = None, False


class JobLives(RuleBasedStateMachine):
    queue: Queue

    jobs = Bundle("jobs")
    leases = Bundle("leases")

    @initialize()
    def empty(self) -> None:
        for table in ("job_queue", "job_attempts", "job_events", "job_dead_letters"):
            self.queue.execute(f"DELETE FROM runledger.{table}")
        self.model: dict[Any, ModelJob] = {}
        self.turn = 0

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    def answer(self, write, *arguments, **options) -> object:
        try:
            return write(self.queue.pool, *arguments, **options)
        except RunledgerError as error:
            return error.code

    @rule(target=jobs, priority=st.sampled_from([0, 0, 1]))
    def enqueue(self, priority: int):
        (job_id,) = self.queue.enqueue(priority=priority, max_attempts=MAX_ATTEMPTS)
        self.model[job_id] = ModelJob(priority, self.next_turn())
        return job_id

    @rule(
        target=leases, limit=st.integers(1, 3), worker_id=st.sampled_from(["worker-1", "worker-2"])
    )
    def claim(self, limit: int, worker_id: str):
        ready = [job_id for job_id, job in self.model.items() if job.is_ready]
        ready.sort(key=lambda job_id: (-self.model[job_id].priority, self.model[job_id].turn))

        claimed = [job.lease for job in self.queue.claim(limit, worker_id=worker_id)]

        assert [lease.job_id for lease in claimed] == ready[:limit]
        for lease in claimed:
            job = self.model[lease.job_id]
            job.status, job.is_ready, job.is_started = "LEASED", False, False
            job.worker_id, job.is_live = worker_id, True
            job.attempt += 1
            job.claim_number += 1
            assert lease == JobLease(
                lease.job_id, job.run_number, attempt=job.attempt, claim_number=job.claim_number,
                worker_id=worker_id,
            )  # fmt: skip
        return multiple(*claimed)

    @rule(lease=leases)
    def heartbeat(self, lease: JobLease) -> None:
        answer = self.answer(heartbeat_job, lease, lease_ttl_seconds=60)

        assert answer == (None if self.model[lease.job_id].is_held(lease) else MISMATCH)

    @rule(lease=leases)
    def progress(self, lease: JobLease) -> None:
        answer = self.answer(update_job_progress, lease, JobProgressUpdate(done=1))

        job = self.model[lease.job_id]
        assert (answer == MISMATCH) is not job.is_held(lease)
        job.is_started = job.is_started or job.is_held(lease)

    @rule(lease=leases, output=st.integers(1, 2))
    def complete(self, lease: JobLease, output: int) -> None:
        answer = self.answer(complete_job_success, lease, JobCompletion(output))

        job = self.model[lease.job_id]
        if job.is_held(lease):
            job.end("SUCCEEDED", "SUCCEEDED")
            job.output = output
            expected = "STORED"
        elif job.ended.get(lease.claim_number) == (lease.worker_id, "SUCCEEDED"):
            is_latest = (job.status, job.claim_number) == ("SUCCEEDED", lease.claim_number)
            expected = MISMATCH if is_latest and job.output != output else "REPEATED"
        else:
            expected = MISMATCH
        assert getattr(answer, "verdict", answer) == expected

    @rule(lease=leases, is_terminal=st.booleans())
    def fail(self, lease: JobLease, is_terminal: bool) -> None:
        failure = JobFailure.terminal("t", "") if is_terminal else JobFailure.retryable("r", "")
        answer = self.answer(complete_job_failure, lease, failure, retry_delay_ms=3_600_000)

        job = self.model[lease.job_id]
        outcome = "t" if is_terminal else "r"
        if job.is_held(lease):
            is_dead = is_terminal or job.attempt >= MAX_ATTEMPTS
            job.end("DEAD_LETTERED" if is_dead else "PENDING", outcome)
            expected = "STORED"
        elif job.ended.get(lease.claim_number) == (lease.worker_id, outcome):
            expected = "REPEATED"
        else:
            expected = MISMATCH
        assert getattr(answer, "verdict", answer) == expected

    @rule(lease=leases)
    def release(self, lease: JobLease) -> None:
        answer = self.answer(release_job, lease, reason="test")

        job = self.model[lease.job_id]
        expected = None
        if job.is_held(lease) and job.is_started:
            expected = "job.unstarted_claim_release_not_applicable"
        elif job.is_held(lease):
            job.end("PENDING", "released", is_ready=True)
            job.attempt -= 1
            job.turn = self.next_turn()
        elif (
            job.status != "PENDING"
            or job.claim_number != lease.claim_number
            or (job.ended[lease.claim_number] != (lease.worker_id, "released"))
        ):
            expected = MISMATCH
        assert answer == expected

    @rule(job_id=jobs)
    def expire(self, job_id) -> None:
        job = self.model[job_id]
        if job.status == "LEASED":
            expire_lease(self.queue.pool, job_id)
            job.is_live = False

    @rule()
    def reap(self) -> None:
        result = reap_expired_leases(self.queue.pool, limit=100, retry_delay_ms=3_600_000)

        expired = {i for i, job in self.model.items() if job.status == "LEASED" and not job.is_live}
        assert {job.lease.job_id for job in result.reaped} == expired
        for job_id in expired:
            job = self.model[job_id]
            is_dead = job.attempt >= MAX_ATTEMPTS
            job.end("DEAD_LETTERED" if is_dead else "PENDING", "reaped")

    @rule(job_id=jobs)
    def time_passes(self, job_id) -> None:
        job = self.model[job_id]
        if job.status == "PENDING" and not job.is_ready:
            self.queue.execute(
                "UPDATE runledger.job_queue SET next_run_at = clock_timestamp() WHERE id = %s",
                job_id,
            )
            # The next claim finds it due.
            self.queue.execute(
                "UPDATE runledger.job_queue SET is_ready = true WHERE id = %s", job_id
            )
            job.is_ready, job.turn = True, self.next_turn()

    @rule(job_id=jobs)
    def cancel(self, job_id) -> None:
        answer = self.answer(cancel_job, job_id, scope=ADMIN)

        job = self.model[job_id]
        if job.status == "LEASED":
            job.end("CANCELED", "canceled")
        elif job.status == "PENDING":
            job.status, job.is_ready = "CANCELED", False
        else:
            assert answer == "job.invalid_state_transition"

    @rule(job_id=jobs)
    def requeue(self, job_id) -> None:
        answer = self.answer(requeue_job, job_id, scope=ADMIN)

        job = self.model[job_id]
        if job.status in {"PENDING", "LEASED"}:
            assert answer == "job.invalid_state_transition"
        else:
            job.status, job.is_ready, job.attempt = "PENDING", True, 0
            job.run_number += 1
            job.turn = self.next_turn()

    @invariant()
    def database_equals_the_model(self) -> None:
        rows = self.queue.fetch(
            "SELECT id, status::text, status = 'PENDING' AND is_ready AS is_ready, run_number,"
            " attempt, claim_number, worker_id FROM runledger.job_queue"
        )
        assert {row.pop("id"): row for row in rows} == {
            job_id: job.shown() for job_id, job in self.model.items()
        }
        assert self.queue.consistency_errors() == {}


@pytest.mark.soak
def test_database_equals_a_model_after_every_write(queue: Queue):
    class Lives(JobLives):
        pass

    Lives.queue = queue
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
