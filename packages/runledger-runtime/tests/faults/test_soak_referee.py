"""The referee sees every kind of offence; a soak proves nothing otherwise."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from soak.ledger import Ledger
from soak.programs import JOB_TYPE
from soak.referee import Account, Referee

from runledger_core import JobDefinitionSpec, JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, upsert_job_definition
from runledger_postgres.lifecycle import (
    ClaimedJob,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    reap_expired_leases,
)
from runledger_test_support.ageing import expire_lease, make_due


class Match:
    """Jobs that are run by hand, written down as the programs do."""

    def __init__(self, database: psycopg.Connection, folder: Path) -> None:
        self.database = database
        self.ledger = Ledger(folder / "by-hand.ledger")
        self._folder = folder
        upsert_job_definition(database, JobDefinitionSpec(JOB_TYPE, max_attempts=9))

    def enqueue(self, token: str) -> str:
        payload = {"token": token, "milliseconds": 0, "failures": 0}
        job = str(enqueue_job(self.database, JobEnqueue(JOB_TYPE, payload)).id)
        self.ledger.write("acknowledged", jobs={token: job})
        return job

    def claim(self, worker: str) -> ClaimedJob:
        (job,) = claim_jobs(self.database, worker_id=worker, limit=1, lease_ttl_seconds=60)
        self.write("began", job)
        return job

    def write(self, fact: str, job: ClaimedJob) -> None:
        lease = job.lease
        run = {"job": str(lease.job_id), "claim": lease.claim_number, "by": lease.worker_id}
        self.ledger.write(fact, **run)

    def run(self, worker: str = "a") -> ClaimedJob:
        job = self.claim(worker)
        self.write("ended", job)
        complete_job_success(self.database, job.lease)
        return job

    def lose_lease(self, job: ClaimedJob) -> None:
        expire_lease(self.database, job.id)
        assert reap_expired_leases(self.database, limit=9, retry_delay_ms=1).reaped
        make_due(self.database, job.id)

    def judge(self, **options: Any) -> Account:
        referee = Referee(self.database, self._folder, durable_from=options.get("durable_from", 0))
        return referee.judge(only_connections_broke=options.get("only_connections_broke", False))


@pytest.fixture
def match(runledger_database: Any, tmp_path: Path) -> Match:
    match = Match(runledger_database.connect(autocommit=True), tmp_path)
    match.enqueue("well")
    match.run()
    return match


def test_job_that_ran_again_after_a_lost_lease_is_a_duplicate_and_no_offence(match: Match) -> None:
    match.enqueue("one")
    match.lose_lease(match.claim("a"))
    match.run("b")

    account = match.judge()

    assert account.offences == {}
    assert (account.jobs, account.executions, account.duplicates) == (2, 3, 1)


def test_lost_lease_burns_an_attempt_if_only_connections_broke(match: Match) -> None:
    match.enqueue("one")
    match.lose_lease(match.claim("a"))
    match.run("b")

    assert list(match.judge(only_connections_broke=True).offences) == ["burnt"]


def test_deleted_job_is_lost(match: Match) -> None:
    job = match.enqueue("one")
    match.database.execute("DELETE FROM runledger.job_queue WHERE id = %s", [job])

    assert list(match.judge().offences) == ["lost"]


def test_job_that_vanished_before_the_last_restart_is_counted(match: Match) -> None:
    job = match.enqueue("one")
    match.database.execute("DELETE FROM runledger.job_queue WHERE id = %s", [job])

    account = match.judge(durable_from=2**40)

    assert account.offences == {}
    assert account.vanished == 1


def test_waiting_job_is_lost(match: Match) -> None:
    match.enqueue("one")

    assert "lost" in match.judge().offences


def test_success_without_a_run_to_the_end_is_lost(match: Match) -> None:
    match.enqueue("one")
    complete_job_success(match.database, match.claim("a").lease)

    assert "lost" in match.judge().offences


def test_job_that_nobody_enqueued_is_unexpected(match: Match) -> None:
    payload = {"token": "stranger", "failures": 0}
    enqueue_job(match.database, JobEnqueue(JOB_TYPE, payload))
    match.run()

    assert list(match.judge().offences) == ["unexpected"]


def test_job_that_was_stored_twice_is_unexpected(match: Match) -> None:
    match.enqueue("one")
    match.enqueue("one")
    match.run()
    match.run()

    assert "unexpected" in match.judge().offences


def test_run_after_the_end_is_unexpected(match: Match) -> None:
    match.enqueue("one")
    job = match.run()
    match.ledger.write("began", job=str(job.id), claim=2, by="b")

    assert list(match.judge().offences) == ["unexpected"]


def test_claim_that_was_entered_twice_is_an_offence(match: Match) -> None:
    match.enqueue("one")
    job = match.run()
    match.write("began", job)

    assert list(match.judge().offences) == ["twice"]


def test_second_success_is_unexpected(match: Match) -> None:
    match.enqueue("one")
    job = match.run("a")
    match.database.execute(
        "INSERT INTO runledger.job_attempts"
        " (job_id, claim_number, run_number, attempt, outcome, leased_at, finished_at, worker_id)"
        " VALUES (%s, 2, 1, 2, 'SUCCEEDED', now(), now(), 'b')",
        [job.id],
    )

    assert "unexpected" in match.judge().offences


def test_failure_that_no_handler_reported_is_unexpected(match: Match) -> None:
    match.enqueue("one")
    job = match.claim("a")
    failure = JobFailure.retryable("test.failed", "not by the handler")
    complete_job_failure(match.database, job.lease, failure, retry_delay_ms=1)
    make_due(match.database, job.id)
    match.run("a")

    assert list(match.judge().offences) == ["unexpected"]


def test_claim_that_vanished_may_come_again(match: Match) -> None:
    match.enqueue("one")
    before = match.claim("a")
    match.database.execute(
        "UPDATE runledger.job_queue SET status = 'PENDING', attempt = 0, claim_number = 0,"
        " worker_id = NULL, lease_expires_at = NULL WHERE id = %s",
        [before.id],
    )
    restarted_at = time.time()
    after = match.run("b")

    account = match.judge(durable_from=restarted_at)

    assert before.lease.claim_number == after.lease.claim_number
    assert account.offences == {}
    assert account.duplicates == 1


def test_outcome_stored_before_the_handler_was_over_is_unexpected(match: Match) -> None:
    match.enqueue("one")
    job = match.claim("a")
    complete_job_success(match.database, job.lease)
    match.write("ended", job)

    assert list(match.judge().offences) == ["unexpected"]
