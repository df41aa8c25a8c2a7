from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobFailure, JobLease, RunledgerError, Scope
from runledger_postgres.lifecycle import (
    FailureEntry,
    HeartbeatVerdict,
    OperatorVerdict,
    SuccessEntry,
    cancel_jobs,
    claim_jobs,
    complete_job_success,
    complete_jobs,
    fail_jobs,
    heartbeat_jobs,
    reap_expired_leases,
    release_jobs,
    requeue_jobs,
)
from runledger_test_support import Interleaving, Session, Step, expire_lease, permute

if TYPE_CHECKING:
    from conftest import Queue

ADMIN = Scope.ADMIN
BUSY_SERVER = JobFailure.retryable("smtp.busy", "try later")
DONE, INVALID_STATE = OperatorVerdict.DONE, OperatorVerdict.INVALID_STATE
BUSY = "BUSY"


def verdicts(outcomes: Sequence[Any]) -> list[str]:
    return [str(getattr(outcome, "verdict", outcome)) for outcome in outcomes]


OF_THE_ENGINE: dict[str, Callable[[Any, Sequence[JobLease]], Sequence[Any]]] = {
    "heartbeat": lambda db, leases: heartbeat_jobs(db, leases, lease_ttl_seconds=60),
    "complete": lambda db, leases: complete_jobs(
        db, [SuccessEntry(lease, JobCompletion(1)) for lease in leases]
    ),
    "fail": lambda db, leases: fail_jobs(
        db, [FailureEntry(lease, BUSY_SERVER, retry_delay_ms=60_000) for lease in leases]
    ),
    "release": lambda db, leases: release_jobs(db, leases, reason="test"),
}
OF_OPERATORS: dict[str, Callable[[Any, Sequence[UUID]], list[OperatorVerdict]]] = {
    "cancel": lambda db, ids: cancel_jobs(db, ids, scope=ADMIN),
    "requeue": lambda db, ids: requeue_jobs(db, ids, scope=ADMIN),
}


@pytest.mark.parametrize("write", OF_OPERATORS)
def test_operators_batches_in_opposite_order_do_not_deadlock(queue: Queue, background, write):
    ids = queue.enqueue(5)
    if write == "requeue":
        cancel_jobs(queue.pool, ids, scope=ADMIN)

    with queue.held(ids[2]) as host:
        # Both are in the middle of their rows when the host lets go of the one between them.
        forward = background.submit(OF_OPERATORS[write], queue.pool, ids)
        queue.until_waiting(1)
        backward = background.submit(OF_OPERATORS[write], queue.pool, ids[::-1])
        queue.until_waiting(2)
        host.rollback()
        results = [forward.result(), backward.result()]

    assert results == [[DONE] * 5, [INVALID_STATE] * 5]


@pytest.mark.parametrize("write", OF_THE_ENGINE)
def test_engines_batch_beside_a_waiting_cancel_gets_the_rows_that_it_does_not_hold(
    queue: Queue, background, write
):
    queue.enqueue(5)
    leases = sorted(queue.leases(5), key=lambda lease: lease.job_id)
    ids = [lease.job_id for lease in leases]

    with queue.held(ids[2]) as host:
        cancel = background.submit(cancel_jobs, queue.pool, ids[:3], scope=ADMIN)
        queue.until_waiting()
        found = verdicts(OF_THE_ENGINE[write](queue.pool, leases[::-1]))
        host.rollback()
        canceled = cancel.result()

    stored = "RENEWED" if write == "heartbeat" else "STORED"
    assert found == [stored, stored, BUSY, BUSY, BUSY]
    assert canceled == [DONE] * 3


@pytest.mark.parametrize("second", OF_THE_ENGINE)
@pytest.mark.parametrize("first", OF_THE_ENGINE)
def test_engines_batches_in_opposite_order_neither_wait_nor_deadlock(queue: Queue, first, second):
    queue.enqueue(5)
    leases = queue.leases(5)
    one, other = queue.database.connect(), queue.database.connect()

    took = verdicts(OF_THE_ENGINE[first](one, leases))
    passed_over = verdicts(OF_THE_ENGINE[second](other, leases[::-1]))
    other.commit()
    one.commit()

    assert set(took) <= {"STORED", "RENEWED"}
    assert passed_over == [BUSY] * 5


@pytest.mark.parametrize("write", [*OF_THE_ENGINE, "reap", "claim", "claim of a due row"])
def test_engine_passes_over_a_held_row_without_waiting(queue: Queue, background, write):
    queue.enqueue()
    leases = [] if write.startswith("claim") else [queue.lease()]
    if write == "reap":
        expire_lease(queue.pool, leases[0].job_id)
    queue.execute("UPDATE runledger.job_queue SET is_ready = %s", write == "claim")
    passing_over = {
        "reap": lambda: reap_expired_leases(queue.pool, limit=1, retry_delay_ms=1).reaped,
        "claim": queue.claim,
        "claim of a due row": queue.claim,
    }.get(write) or (lambda: verdicts(OF_THE_ENGINE[write](queue.pool, leases)))

    with queue.held(queue.value("SELECT id FROM runledger.job_queue")):
        passing = background.submit(passing_over)
        is_waiting = not wait([passing], timeout=5).done

    assert not is_waiting
    assert passing.result() == ([BUSY] if write in OF_THE_ENGINE else [])


@pytest.mark.parametrize("write", OF_THE_ENGINE)
def test_batches_that_share_a_row_each_get_the_rest(queue: Queue, write):
    queue.enqueue(5)
    leases = queue.leases(5)
    one, other = queue.database.connect(), queue.database.connect()

    first = verdicts(OF_THE_ENGINE[write](one, leases[2::-1]))
    second = verdicts(OF_THE_ENGINE[write](other, leases[:1:-1]))
    other.commit()
    one.commit()

    stored = "RENEWED" if write == "heartbeat" else "STORED"
    assert first == [stored] * 3
    assert second == [stored, stored, BUSY]


# Who is subject to it waits after his statement's snapshot was taken and before he locks a row.
GATE = """
    CREATE FUNCTION public.wait_at_gate() RETURNS bool LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN true; END $$;
    CREATE ROLE {role} LOGIN PASSWORD '{role}';
    GRANT USAGE ON SCHEMA runledger TO {role};
    GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA runledger TO {role};
    ALTER TABLE runledger.job_queue ENABLE ROW LEVEL SECURITY;
    CREATE POLICY gate ON runledger.job_queue
        USING (CASE WHEN status = 'PENDING' THEN public.wait_at_gate() ELSE true END);
"""


def test_job_that_another_worker_claimed_since_the_snapshot_is_not_claimed_again(
    queue: Queue, background
):
    (job_id,) = queue.enqueue()
    role = f"late_{secrets.token_hex(6)}"
    queue.execute(GATE.format(role=role))
    gate = queue.database.connect()
    gate.execute("SELECT pg_advisory_xact_lock(7)")
    late = queue.database.connect(autocommit=True, user=role, password=role)

    waiting = background.submit(queue.claim, worker_id="late", db=late)
    queue.until_waiting()
    claimed = [job.id for job in queue.claim()]
    gate.rollback()
    claimed_late = [job.id for job in waiting.result()]
    late.close()
    queue.execute(f"DROP OWNED BY {role}")
    queue.execute(f"DROP ROLE {role}")

    assert (claimed, claimed_late) == ([job_id], [])


def test_reapers_at_once_end_each_lease_once(queue: Queue):
    queue.enqueue(10)
    for lease in queue.leases(10):
        expire_lease(queue.pool, lease.job_id)
    one, other = queue.database.connect(), queue.database.connect()

    first = reap_expired_leases(one, limit=6, retry_delay_ms=60_000)
    second = reap_expired_leases(other, limit=6, retry_delay_ms=60_000)
    other.commit()
    one.commit()

    ended = [job.lease.job_id for job in (*first.reaped, *second.reaped)]
    assert (len(first.reaped), len(second.reaped)) == (6, 4)
    assert len(set(ended)) == 10


def test_host_that_cancels_one_job_costs_a_worker_no_other_lease(queue: Queue):
    queue.enqueue(100)
    leases = queue.leases(100)
    host = queue.database.connect()
    cancel_jobs(host, [leases[7].job_id], scope=ADMIN)

    beats = heartbeat_jobs(queue.pool, leases, lease_ttl_seconds=60)
    host.commit()

    assert Counter(beats) == {HeartbeatVerdict.RENEWED: 99, HeartbeatVerdict.BUSY: 1}
    assert heartbeat_jobs(queue.pool, [leases[7]], lease_ttl_seconds=60) == ["CANCELED"]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ((1, 1), [{"STORED", "REPEATED"}]),
        ((1, 2), [{"STORED", "job.lease_owner_mismatch"}]),
    ],
)
def test_twin_in_flight_is_judged_by_what_the_other_committed(queue: Queue, outputs, expected):
    def complete(db: Any, lease: JobLease, output: int) -> str:
        try:
            return str(complete_job_success(db, lease, JobCompletion(output)).verdict)
        except RunledgerError as error:
            return error.code

    def sessions() -> list[Session]:
        queue.execute("DELETE FROM runledger.job_queue")
        queue.execute("DELETE FROM runledger.job_attempts")
        lease = queue.started()
        return [
            Session(
                str(number),
                queue.database.connect,
                steps=[
                    Step("write", lambda context, o=output: complete(context.connection, lease, o)),
                    Step("end", lambda context: context.connection.commit()),
                ],
            )
            for number, output in enumerate(outputs)
        ]

    def check(run: Interleaving) -> None:
        assert {run.outcome(name, "write").value for name in "01"} in expected
        assert queue.consistency_errors() == {}

    played = permute(sessions, check)

    assert any(outcome.was_blocked for run in played for outcome in run.outcomes)


THREADS, ROUNDS, JOBS = 20, 60, 12


def write_at_random(
    connection: Any, chance: random.Random, ids: list[UUID], leases: list[JobLease]
) -> tuple[str, int]:
    """Do one write on some jobs or leases; return its name and how many rows it changed."""
    some_ids = chance.sample(ids, 6)
    recent = leases[-40:]
    chance.shuffle(recent)
    known = list({lease.job_id: lease for lease in recent[:8]}.values())
    match chance.choice(["claim", "reap", "expire", *OF_OPERATORS, *OF_THE_ENGINE]):
        case "claim":
            claimed = claim_jobs(
                connection,
                worker_id=f"worker-{chance.randrange(THREADS)}",
                limit=4,
                lease_ttl_seconds=60,
                job_types=["test.job"],
            )
            leases.extend(job.lease for job in claimed)
            return "claim", len(claimed)
        case "reap":
            result = reap_expired_leases(connection, limit=5, retry_delay_ms=1)
            assert result.deferred == []
            return "reap", len(result.reaped)
        case "expire":
            connection.execute(
                "UPDATE runledger.job_queue SET lease_expires_at = clock_timestamp()"
                " WHERE id = %s AND status = 'LEASED'",
                [some_ids[0]],
            )
            return "expire", 1
        case name if name in OF_OPERATORS:
            return name, OF_OPERATORS[name](connection, some_ids).count(DONE)
        case name:
            return name, verdicts(OF_THE_ENGINE[name](connection, known)).count("STORED")


def test_storm_of_mixed_batches_deadlocks_nobody_and_loses_nothing(
    queue: Queue, runledger_connection_budget
):
    ids = queue.enqueue(JOBS, max_attempts=1_000)
    leases: list[JobLease] = []

    def storm(seed: int) -> Counter[str]:
        chance = random.Random(seed)  # chooses writes
        counts: Counter[str] = Counter()
        with queue.database.connect(autocommit=True) as connection:
            for _ in range(ROUNDS):
                name, changed = write_at_random(connection, chance, ids, leases)
                counts[name] += changed
        return counts

    with (
        runledger_connection_budget.acquire(THREADS),
        ThreadPoolExecutor(THREADS) as threads,
    ):
        total = sum(threads.map(storm, range(THREADS)), Counter[str]())

    outcomes = {
        row["outcome"]: row["count"]
        for row in queue.fetch(
            "SELECT outcome::text, count(*) FROM runledger.job_attempts GROUP BY outcome"
        )
    }
    events = {
        row["kind"]: row["count"]
        for row in queue.fetch(
            "SELECT coalesce(payload->>'kind', event_type::text) AS kind, count(*)"
            " FROM runledger.job_events GROUP BY 1"
        )
    }
    assert total["claim"] == queue.value("SELECT sum(claim_number) FROM runledger.job_queue")
    assert total["complete"] == outcomes.get("SUCCEEDED", 0)
    assert total["fail"] == outcomes.get("RETRYABLE", 0)
    assert total["reap"] == outcomes.get("LEASE_EXPIRED", 0)
    assert total["cancel"] == events.get("CANCELED", 0)
    assert total["requeue"] == events.get("REQUEUE", 0)
    assert total["release"] == events.get("RELEASE", 0)
