from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from runledger_core import (
    UNSET,
    JobCompletion,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    JobStatus,
    Scope,
)
from runledger_postgres import _session
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    ClaimRequest,
    FailureDisposition,
    FailureEntry,
    RoundResult,
    SuccessEntry,
    WriteVerdict,
    _misses,
    cancel_job,
    complete_job_success,
    fail_jobs,
    find_claims,
    run_waiting_round,
    run_worker_round,
    update_job_progress,
)
from runledger_test_support import expire_lease, postpone

if TYPE_CHECKING:
    from conftest import Queue

STORED, REPEATED, BUSY = WriteVerdict.STORED, WriteVerdict.REPEATED, WriteVerdict.BUSY
MISMATCH, INVALID = WriteVerdict.LEASE_OWNER_MISMATCH, WriteVerdict.INVALID_PROGRESS
BUSY_SERVER = JobFailure.retryable("smtp.busy", "try later")


@pytest.fixture
def engine(queue: Queue) -> Iterator[psycopg.Connection]:
    """A connection as the engine has it."""
    connection = queue.database.connect(autocommit=True)
    yield connection
    assert connection.closed or connection.info.transaction_status.name == "IDLE"


def request(limit: int = 10, *, window: int | None = None, worker_id: str = "worker-1"):
    return ClaimRequest(
        worker_id, ["test.job"], limit=limit, window=window or limit, lease_ttl_seconds=60
    )


def success(lease: JobLease, output=None) -> SuccessEntry:
    return SuccessEntry(lease, JobCompletion(output))


def failure(lease: JobLease) -> FailureEntry:
    return FailureEntry(lease, BUSY_SERVER, retry_delay_ms=60_000)


def test_round_stores_outcomes_and_claims_what_is_next(queue: Queue, engine):
    queue.enqueue(2)
    done, failed = queue.leases(2)
    next_one, _ = queue.enqueue(2)

    result = run_worker_round(
        engine, successes=[success(done)], failures=[failure(failed)], claim=request(1)
    )

    assert [outcome.verdict for outcome in result.successes] == [STORED]
    assert [outcome.disposition for outcome in result.failures] == [
        FailureDisposition.RETRY_SCHEDULED
    ]
    assert [job.id for job in result.claimed] == [next_one]
    assert result.has_ready is True
    assert result.due_in_seconds is not None
    assert 55 < result.due_in_seconds <= 60
    assert queue.job(done.job_id).status is JobStatus.SUCCEEDED
    assert queue.job(failed.job_id).status is JobStatus.PENDING


@pytest.mark.parametrize("in_workflows", [False, True])
@pytest.mark.parametrize("outcomes", ["S", "H", "HS", "F", "SF", "HSF", ""])
def test_claim_of_a_round_goes_its_way_whatever_was_stored_before(
    queue: Queue, engine, outcomes, in_workflows
):
    queue.execute("CREATE TABLE seen (status text NOT NULL, bitmapscan text NOT NULL)")
    queue.execute(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen"
        " VALUES (NEW.status, current_setting('enable_bitmapscan')); RETURN NEW; END $$"
    )
    queue.enqueue(len(outcomes))
    leases = dict(zip(outcomes, queue.leases(len(outcomes)) if outcomes else [], strict=True))
    queue.execute(
        "CREATE TRIGGER see BEFORE UPDATE ON runledger.job_queue"
        " FOR EACH ROW EXECUTE FUNCTION see()"
    )
    queue.enqueue()
    with queue.database.connect() as holder:
        if "H" in leases:
            hold = "SELECT FROM runledger.job_queue WHERE id = %s FOR UPDATE"
            holder.execute(hold, [leases["H"].job_id])

        result = run_worker_round(
            engine,
            successes=[success(lease) for name, lease in leases.items() if name != "F"],
            failures=[failure(lease) for name, lease in leases.items() if name == "F"],
            claim=request(1),
            in_workflows=in_workflows,
        )

    assert [outcome.verdict for outcome in result.successes] == [
        BUSY if name == "H" else STORED for name in outcomes if name != "F"
    ]
    seen = {row["status"]: row["bitmapscan"] for row in queue.fetch("TABLE seen")}
    assert seen["LEASED"] == "off"
    # A statement between the successes and the claim is planned as the host has it.
    assert seen.get("PENDING", "on") == "on"
    assert engine.execute("SHOW enable_bitmapscan").fetchone() == ("on",)


def test_round_without_anything_to_do_runs_no_sql():
    assert run_worker_round(None) == RoundResult([], [])  # pyright: ignore[reportArgumentType]  # never used
    assert run_waiting_round(None, wait_ms=50) == RoundResult([], [])  # pyright: ignore[reportArgumentType]  # never used


def test_empty_queue_says_how_long_to_sleep(queue: Queue, engine):
    empty = run_worker_round(engine, claim=request())

    assert (empty.claimed, empty.has_ready, empty.due_in_seconds) == ([], False, None)

    (job_id,) = queue.enqueue()
    postpone(queue.pool, job_id, 30)
    result = run_worker_round(engine, claim=request())

    assert (result.claimed, result.has_ready) == ([], False)
    assert result.due_in_seconds is not None
    assert 25 < result.due_in_seconds <= 30


def test_each_outcome_is_judged_by_itself(queue: Queue, engine):
    queue.enqueue(7)
    done, held, held_too, expired, repeated, invalid, failed = queue.leases(7)
    expire_lease(queue.pool, expired.job_id)
    complete_job_success(queue.pool, repeated, JobCompletion(1))
    update_job_progress(queue.pool, invalid, JobProgressUpdate(total=1))

    with queue.held(held.job_id, held_too.job_id):
        result = run_worker_round(
            engine,
            successes=[
                success(expired),
                success(done),
                success(held),
                success(repeated, 1),
                SuccessEntry(invalid, JobCompletion(progress_done=2)),
            ],
            failures=[failure(held_too), failure(failed)],
        )

    assert [outcome.verdict for outcome in result.successes] == [
        MISMATCH, STORED, BUSY, REPEATED, INVALID,
    ]  # fmt: skip
    assert [outcome.verdict for outcome in result.failures] == [BUSY, STORED]


def test_refused_round_stores_and_claims_nothing(queue: Queue, engine):
    done = queue.started()
    queue.enqueue()
    queue.execute("ALTER TABLE runledger.job_attempts ADD CHECK (outcome <> 'SUCCEEDED')")
    before = queue.image()

    with pytest.raises(QueryError) as refused:
        run_worker_round(engine, successes=[success(done)], claim=request())

    assert refused.value.code == "db.business_rule_violation"
    assert queue.image() == before


def test_row_that_python_cannot_read_comes_back_as_a_failure_beside_its_neighbours(
    queue: Queue, engine
):
    before, poison, after = queue.enqueue(3)
    queue.execute("UPDATE runledger.job_queue SET payload = %s WHERE id = %s", "9" * 5_000, poison)

    result = run_worker_round(engine, claim=request())

    assert [job.id for job in result.claimed] == [before, after]
    assert [entry.lease.job_id for entry in result.undecodable] == [poison]
    (unread,) = result.undecodable
    assert (unread.job.lease, unread.job.job_type) == (unread.lease, result.claimed[0].job_type)
    assert (unread.job.payload, unread.job.checkpoint) == (None, UNSET)
    assert fail_jobs(engine, result.undecodable)[0].disposition is FailureDisposition.DEAD_LETTERED
    assert queue.value("SELECT error_code FROM runledger.job_dead_letters") == "job.undecodable_row"


def test_claims_come_best_first(queue: Queue, engine):
    jobs = {priority: queue.enqueue(priority=priority)[0] for priority in (1, 5, 3)}

    claimed = run_worker_round(engine, claim=request()).claimed

    assert [job.id for job in claimed] == [jobs[5], jobs[3], jobs[1]]


def test_window_is_the_requests(queue: Queue, engine):
    jobs = queue.enqueue(4)

    with queue.held(*jobs[:2]):
        narrow = run_worker_round(engine, claim=request(2))
        wide = run_worker_round(engine, claim=request(2, window=4))

    assert (narrow.claimed, narrow.has_ready) == ([], True)
    assert [job.id for job in wide.claimed] == jobs[2:]


def test_loss_of_the_connection_after_the_commit_hides_nothing_that_was_stored(
    queue: Queue, engine, monkeypatch
):
    queue.enqueue(2)
    done, lost = queue.leases(2)
    expire_lease(queue.pool, lost.job_id)
    (next_one,) = queue.enqueue()

    def run_after_the_link_died(db, bound):
        queue.execute("SELECT pg_terminate_backend(%s, 10000)", db.info.backend_pid)
        return _session.run(db, bound)

    monkeypatch.setattr(_misses, "run", run_after_the_link_died)
    result = run_worker_round(engine, successes=[success(done), success(lost)], claim=request())

    assert [outcome.verdict for outcome in result.successes] == [STORED, BUSY]
    assert [job.id for job in result.claimed] == [next_one]


def test_waiting_round_gets_the_row_when_its_holder_ends(queue: Queue, engine, background):
    queue.enqueue(2)
    first, second = queue.leases(2)

    with queue.held(first.job_id, second.job_id) as host:
        waiting = background.submit(
            run_waiting_round,
            engine,
            successes=[success(first)],
            failures=[failure(second)],
            wait_ms=20_000,
        )
        queue.until_waiting()
        host.commit()
        result = waiting.result()

    assert [outcome.verdict for outcome in (*result.successes, *result.failures)] == [
        STORED,
        STORED,
    ]


def test_waiting_round_that_gets_nothing_leaves_all_busy(queue: Queue, engine):
    queue.enqueue(3)
    first, second, third = queue.leases(3)
    before = queue.image()

    with queue.held(first.job_id):
        result = run_waiting_round(
            engine,
            successes=[success(first), success(second)],
            failures=[failure(third)],
            wait_ms=1,
        )

    assert [outcome.verdict for outcome in (*result.successes, *result.failures)] == [BUSY] * 3
    assert queue.image() == before
    assert engine.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_waiting_round_learns_that_the_job_was_canceled(queue: Queue, engine, background):
    lease = queue.started()
    host = queue.database.connect()
    cancel_job(host, lease.job_id, scope=Scope.ADMIN)

    waiting = background.submit(
        run_waiting_round, engine, successes=[success(lease)], wait_ms=20_000
    )
    queue.until_waiting()
    host.commit()

    assert [outcome.verdict for outcome in waiting.result().successes] == [MISMATCH]


def test_claims_that_nobody_knows_of_are_found_once(queue: Queue, engine):
    queue.enqueue(6, payload=1)
    known, unknown, expired, poison, ended, known_too = queue.leases(6)
    expire_lease(queue.pool, expired.job_id)
    complete_job_success(queue.pool, ended)
    queue.execute(
        "UPDATE runledger.job_queue SET payload = %s WHERE id = %s", "9" * 5_000, poison.job_id
    )
    queue.enqueue(1)
    queue.claim(1, worker_id="worker-2")
    before = queue.image()

    claimed, undecodable = find_claims(engine, worker_id="worker-1", known=[known, known_too])

    assert [(job.lease, job.payload) for job in claimed] == [(unknown, 1)]
    assert [entry.lease for entry in undecodable] == [poison]
    assert queue.image() == before
