from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from psycopg_pool import ConnectionPool

from runledger_core import (
    UNSET,
    JobFailure,
    JobProgressUpdate,
    JobStage,
    JobStatus,
    RunledgerError,
)
from runledger_postgres._session import Bound, run_all
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    ClaimRequest,
    claim_jobs,
    complete_job_failure,
    release_job,
    run_worker_round,
    update_job_progress,
)
from runledger_postgres.lifecycle._claim import claim_statements
from runledger_test_support import make_due

pytestmark = pytest.mark.core

if TYPE_CHECKING:
    from conftest import Queue

ORDER = "ORDER BY priority DESC, next_run_at, id"


def test_claim_begins_an_attempt(queue: Queue):
    (job_id,) = queue.enqueue(payload={"n": 1}, priority=7, timeout_seconds=30, max_attempts=5)

    (claimed,) = queue.claim(worker_id="worker-1", lease_ttl_seconds=90)

    job = queue.job(job_id)
    assert (claimed.id, claimed.job_type, claimed.payload) == (job_id, "test.job", {"n": 1})
    assert (claimed.priority, claimed.timeout_seconds, claimed.max_attempts) == (7, 30, 5)
    assert (claimed.lease.run_number, claimed.lease.attempt, claimed.lease.claim_number) == (
        1,
        1,
        1,
    )
    assert claimed.checkpoint is UNSET
    assert (claimed.payload_json, claimed.checkpoint_json) == ('{"n": 1}', None)
    assert claimed.lease_expires_at == job.lease_expires_at
    assert (job.status, job.stage, job.worker_id) == (JobStatus.LEASED, "running", "worker-1")
    assert job.leased_at == job.last_heartbeat_at == job.started_at == job.updated_at
    assert job.lease_expires_at - job.leased_at == timedelta(seconds=90)
    assert queue.timeline(job_id) == ["ENQUEUED", "LEASED"]


def test_lease_counts_from_the_clock_and_not_from_the_transaction(queue: Queue):
    (job_id,) = queue.enqueue()
    connection = queue.database.connect()
    began_at = connection.execute("SELECT now()").fetchall()[0][0]

    queue.claim(db=connection)

    connection.commit()
    assert queue.job(job_id).leased_at > began_at


def test_later_attempt_keeps_the_start_of_the_run_and_gets_the_checkpoint(queue: Queue):
    lease = queue.started()
    update_job_progress(queue.pool, lease, JobProgressUpdate(checkpoint={"page": 3}))
    began_at = queue.job(lease.job_id).started_at
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    make_due(queue.pool, lease.job_id)

    (again,) = queue.claim()

    assert (again.checkpoint, again.checkpoint_json) == ({"page": 3}, '{"page": 3}')
    assert (again.lease.attempt, again.lease.claim_number) == (2, 2)
    assert queue.job(lease.job_id).started_at == began_at
    assert queue.job(lease.job_id).leased_at > began_at


@pytest.mark.parametrize("seed", range(6))
def test_claims_are_sorted_by_priority_then_due_then_id(queue: Queue, seed: int):
    chance = random.Random(seed)  # chooses rows
    queue.define("other.job", "third.job")
    for _ in range(60):
        queue.execute(
            "INSERT INTO runledger.job_queue (job_type, max_attempts, priority, next_run_at)"
            " VALUES (%s, 1, %s, '2026-01-01Z'::timestamptz + %s * interval '1 s')",
            chance.choice(["test.job", "other.job", "third.job"]),
            chance.choice([-1, 0, 0, 5]),
            chance.randrange(4),
        )
    expected = [row["id"] for row in queue.fetch(f"SELECT id FROM runledger.job_queue {ORDER}")]

    claimed = []
    while batch := queue.claim(
        chance.randrange(1, 9), job_types=["third.job", "test.job", "other.job"]
    ):
        claimed += [job.id for job in batch]

    assert claimed == expected


def test_only_given_types_are_claimed(queue: Queue):
    queue.define("other.job")
    queue.enqueue(2, "other.job", priority=100)
    wanted = queue.enqueue(1)

    claimed = queue.claim(10, job_types=["test.job", "unknown.job", "test.job"])

    assert [job.id for job in claimed] == wanted
    assert queue.value("SELECT count(*) FROM runledger.job_queue WHERE status = 'PENDING'") == 2


def test_types_from_a_generator_are_claimed(queue: Queue):
    wanted = queue.enqueue(1)

    claimed = queue.claim(10, job_types=(name for name in ["other.job", "test.job"]))

    assert [job.id for job in claimed] == wanted


def test_no_types_means_every_defined_one_even_if_disabled(queue: Queue):
    queue.define("other.job", "off.job", "gone.job")
    for job_type in ("test.job", "other.job", "off.job", "gone.job"):
        queue.enqueue(1, job_type)
    queue.execute(
        "UPDATE runledger.job_definitions SET is_enabled = false WHERE job_type = 'off.job'"
    )
    queue.execute("DELETE FROM runledger.job_definitions WHERE job_type = 'gone.job'")

    claimed = queue.claim(10, job_types=None)

    assert {job.job_type for job in claimed} == {"test.job", "other.job", "off.job"}


def test_empty_list_of_types_claims_nothing_and_runs_no_sql():
    closed = ConnectionPool("host=nowhere.invalid", open=False)

    assert claim_jobs(closed, worker_id="w", limit=1, lease_ttl_seconds=1, job_types=[]) == []


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"lease_ttl_seconds": 0}, "job.invalid_lease_duration", "lease_ttl_seconds"),
        ({"lease_ttl_seconds": -1}, "job.invalid_lease_duration", "lease_ttl_seconds"),
        ({"lease_ttl_seconds": 2**31}, "job.invalid_lease_duration", "lease_ttl_seconds"),
        ({"lease_ttl_seconds": 1.5}, "input.wrong_type", "lease_ttl_seconds"),
        ({"lease_ttl_seconds": True}, "input.wrong_type", "lease_ttl_seconds"),
        ({"limit": 0}, "input.out_of_range", "limit"),
        ({"limit": 1_001}, "input.out_of_range", "limit"),
        ({"limit": "1"}, "input.wrong_type", "limit"),
        ({"worker_id": " "}, "input.blank", "worker_id"),
        ({"worker_id": "w" * 201}, "input.too_long", "worker_id"),
        ({"worker_id": "w\0"}, "input.invalid_characters", "worker_id"),
        ({"job_types": "test.job"}, "input.wrong_type", "job_types"),
        ({"job_types": ["test.job", ""]}, "input.blank", "job_types[1]"),
    ],
)
def test_arguments_are_refused_before_sql(arguments, code, field):
    closed = ConnectionPool("host=nowhere.invalid", open=False)
    good = {"worker_id": "w", "limit": 1, "lease_ttl_seconds": 60, "job_types": ["test.job"]}

    with pytest.raises(RunledgerError) as refused:
        claim_jobs(closed, **(good | arguments))

    assert (refused.value.code, refused.value.field) == (code, field)


def test_worker_id_may_have_200_characters(queue: Queue):
    lease = queue.started()
    release_job(queue.pool, lease, reason="test")
    worker_id = "ä" * 200

    (claimed,) = queue.claim(worker_id=worker_id)

    assert claimed.lease.worker_id == queue.job(claimed.id).worker_id == worker_id


def test_foreign_future_and_ended_rows_cost_a_claim_nothing(queue: Queue):
    for status, job_type, is_ready, due in (
        ("PENDING", "foreign.job", "true", "-1 day"),
        ("PENDING", "test.job", "false", "1 day"),
        ("CANCELED", "test.job", "false", "-1 day"),
    ):
        queue.execute(
            "INSERT INTO runledger.job_queue"
            " (job_type, max_attempts, priority, status, is_ready, next_run_at, finished_at)"
            f" SELECT '{job_type}', 3, 1000, '{status}', {is_ready}, now() + interval '{due}',"
            f" CASE '{status}' WHEN 'CANCELED' THEN now() END FROM generate_series(1, 10000)"
        )
    wanted = queue.enqueue(3)
    queue.execute("ANALYZE runledger.job_queue")
    request = ClaimRequest("w", ["test.job"], limit=3, window=3, lease_ttl_seconds=60)

    _setting, *walks = claim_statements(request)
    flip, claim, backlog = [blocks_read(queue, bound) for bound in walks]

    assert flip < 10
    assert claim < 150
    assert backlog < 20
    assert [job.id for job in queue.claim(10)] == wanted
    queue.execute("DELETE FROM runledger.job_queue WHERE status = 'CANCELED'")


def blocks_read(queue: Queue, bound: Bound[Any]) -> int:
    connection = queue.database.connect()
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {bound.statement.sql}"
    ((plan,),) = connection.execute(explain.encode(), bound.params).fetchall()[0]
    connection.rollback()
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


def test_retry_goes_behind_its_equals(queue: Queue):
    poison = queue.enqueue(8)
    for lease in queue.leases(8):
        complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)
        make_due(queue.pool, lease.job_id)
    good = queue.enqueue(50)
    queue.execute(
        "UPDATE runledger.job_queue SET next_run_at = next_run_at - interval '1 hour'"
        " WHERE id = ANY (%s)",
        good,
    )

    claimed = [job.id for job in queue.claim(1000)]

    assert claimed == good + poison


def test_workers_at_once_claim_disjoint_sets_and_leave_nothing(queue: Queue, background):
    jobs = queue.enqueue(400)

    def drain(number: int) -> list:
        mine = []
        while batch := queue.claim(7, worker_id=f"worker-{number}"):
            mine += [job.id for job in batch]
        return mine

    shares = list(background.map(drain, range(6)))

    claimed = [job_id for share in shares for job_id in share]
    assert sorted(claimed) == sorted(jobs)


@pytest.mark.parametrize(("held", "found"), [(3, 5), (5, 5), (8, 2), (10, 0)])
def test_claim_looks_twice_as_far_behind_rows_that_others_hold(queue: Queue, held, found):
    jobs = queue.enqueue(20)

    with queue.held(*jobs[:held]):
        claimed = queue.claim(5)

    assert [job.id for job in claimed] == jobs[held : held + found]


def test_claims_of_both_looks_come_best_first(queue: Queue):
    jobs = [queue.enqueue(priority=priority)[0] for priority in (5, 4, 3, 2, 1)]

    with queue.held(jobs[0]):
        claimed = queue.claim(3)

    assert [job.id for job in claimed] == jobs[1:4]


def test_future_job_waits_until_it_is_due(queue: Queue):
    (job_id,) = queue.enqueue(
        next_run_at=datetime.now(UTC) + timedelta(hours=1), stage=JobStage.SCHEDULED
    )
    assert queue.claim() == []

    queue.execute("UPDATE runledger.job_queue SET next_run_at = now() - interval '1 s'")

    assert [job.id for job in queue.claim()] == [job_id]


def test_due_jobs_become_ready_oldest_first_a_thousand_at_a_time(queue: Queue):
    queue.execute(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, is_ready, next_run_at)"
        " SELECT 'test.job', 3, false, now() - n * interval '1 s' FROM generate_series(1, 1500) n"
    )

    (oldest,) = queue.claim(1)

    in_order = queue.fetch("SELECT id, is_ready FROM runledger.job_queue ORDER BY next_run_at")
    assert oldest.id == in_order[0]["id"]
    assert [row["is_ready"] for row in in_order] == [*[True] * 1_000, *[False] * 500]


def test_locked_future_job_does_not_block_the_others(queue: Queue):
    jobs = queue.enqueue(3)
    queue.execute("UPDATE runledger.job_queue SET is_ready = false")

    with queue.held(jobs[0]):
        claimed = queue.claim(3)

    assert [job.id for job in claimed] == jobs[1:]
    assert [job.id for job in queue.claim(3)] == jobs[:1]


@pytest.mark.parametrize("due", ["infinity", "-infinity"])
@pytest.mark.parametrize("is_ready", [True, False])
def test_infinite_due_time_does_not_stop_the_others(queue: Queue, due, is_ready):
    queue.execute(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, next_run_at, is_ready)"
        " VALUES ('test.job', 3, %s, %s)",
        due,
        is_ready,
    )
    (job_id,) = queue.enqueue()

    assert job_id in [job.id for job in queue.claim(5)]
    assert queue.claim(5) == []


def test_claim_in_the_callers_transaction_is_undone_by_his_rollback(queue: Queue):
    queue.enqueue(3)
    before = queue.image()
    connection = queue.database.connect()

    claimed = queue.claim(2, db=connection)

    assert len(claimed) == 2
    assert queue.value("SELECT count(*) FROM runledger.job_queue WHERE status = 'LEASED'") == 0
    connection.rollback()
    assert queue.image() == before
    assert len(queue.claim(5)) == 3


def test_failing_write_of_one_row_undoes_the_whole_claim(queue: Queue):
    jobs = queue.enqueue(3)
    queue.execute(FAIL_WHEN.format(event="UPDATE", condition=f"NEW.id = '{jobs[1]}'"))
    before = queue.image()

    with pytest.raises(QueryError):
        queue.claim(3)

    assert queue.image() == before


FAIL_WHEN = """
    CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'refused by the test'; END $$;
    CREATE TRIGGER fail BEFORE {event} ON runledger.job_queue
        FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION public.fail();
"""


def is_unreadable(body: str) -> bool:
    """Whether this Python cannot read the JSON; from 3.13 on it reads deeper than before."""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return True
    return False


UNDECODABLE = {
    name: body
    for name, body in {
        "number of 5,000 digits": "1" + "0" * 5_000,
        "3,000 levels": "[" * 3_000 + "]" * 3_000,
    }.items()
    if is_unreadable(body)
}


@pytest.mark.parametrize("body", UNDECODABLE.values(), ids=UNDECODABLE)
@pytest.mark.parametrize("column", ["payload", "checkpoint"])
@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "pool"])
def test_row_that_python_cannot_read_is_dead_lettered_alone(queue: Queue, column, body, is_joined):
    before, poison, after = queue.enqueue(3)
    queue.execute(f"UPDATE runledger.job_queue SET {column} = %s WHERE id = %s", body, poison)
    connection = queue.database.connect() if is_joined else None

    claimed = queue.claim(3, db=connection)

    if connection is not None:
        connection.commit()
    assert [job.id for job in claimed] == [before, after]
    assert queue.fetch(
        "SELECT status::text, last_error_code, worker_id FROM runledger.job_queue WHERE id = %s",
        poison,
    ) == [{"status": "DEAD_LETTERED", "last_error_code": "job.undecodable_row", "worker_id": None}]
    assert queue.timeline(poison) == ["ENQUEUED", "LEASED", "FAILED", "DEAD_LETTERED"]
    assert queue.value(
        f"SELECT {column}_snapshot = %s::jsonb FROM runledger.job_dead_letters", json_text(body)
    )


def json_text(body: str) -> str:
    return body if body.startswith("[") else json.dumps(body).strip('"')


@pytest.mark.parametrize("committing", ["pool", "autocommit connection", "SQLAlchemy AUTOCOMMIT"])
def test_neighbours_are_returned_even_if_the_unreadable_row_cannot_be_stored(
    queue: Queue, committing: str
):
    good, poison = queue.enqueue(2)
    queue.execute("UPDATE runledger.job_queue SET payload = %s WHERE id = %s", "9" * 5_000, poison)
    queue.execute(FAIL_WHEN.format(event="UPDATE", condition="NEW.status = 'DEAD_LETTERED'"))

    with committing_database(queue, committing) as db:
        claimed = queue.claim(2, db=db)

    assert [job.id for job in claimed] == [good]
    assert (
        queue.value("SELECT status::text FROM runledger.job_queue WHERE id = %s", poison)
        == "LEASED"
    )


@contextmanager
def committing_database(queue: Queue, kind: str) -> Iterator[Any]:
    match kind:
        case "pool":
            yield queue.pool
        case "autocommit connection":
            yield queue.database.connect(autocommit=True)
        case _:
            engine = sqlalchemy.create_engine(
                "postgresql+psycopg://",
                creator=queue.database.connect,
                isolation_level="AUTOCOMMIT",
                poolclass=sqlalchemy.NullPool,
            )
            with engine.connect() as connection:
                yield connection


def test_failure_after_a_joined_claim_reaches_the_caller_who_undoes_it(queue: Queue):
    poison = queue.enqueue(2)[1]
    queue.execute("UPDATE runledger.job_queue SET payload = %s WHERE id = %s", "9" * 5_000, poison)
    queue.execute(FAIL_WHEN.format(event="UPDATE", condition="NEW.status = 'DEAD_LETTERED'"))
    connection = queue.database.connect(autocommit=True)

    with pytest.raises(QueryError), connection.transaction():
        queue.claim(2, db=connection)

    assert queue.value("SELECT count(*) FROM runledger.job_queue WHERE status = 'LEASED'") == 0


@pytest.mark.parametrize(
    "counters",
    [
        "attempt = 2147483647, max_attempts = 2147483647",
        "claim_number = 9223372036854775807",
        "claim_number = -1",
    ],
)
def test_row_whose_counter_is_at_its_end_does_not_stop_its_neighbours(queue: Queue, counters: str):
    before, spent, after = queue.enqueue(3)
    queue.execute(f"UPDATE runledger.job_queue SET {counters} WHERE id = %s", spent)

    assert [job.id for job in queue.claim(1)] == [before]
    assert [job.id for job in queue.claim(3)] == [after]
    # Its counters break the invariants: no history leads to them.
    queue.execute("DELETE FROM runledger.job_queue WHERE id = %s", spent)


@pytest.mark.parametrize("counter", ["attempt = 2147483647", "claim_number = 9223372036854775807"])
def test_row_whose_counter_is_at_its_end_counts_as_no_backlog(queue: Queue, counter: str):
    queue.enqueue()
    queue.execute(f"UPDATE runledger.job_queue SET {counter}")

    result = run_worker_round(
        queue.database.connect(autocommit=True),
        claim=ClaimRequest("w", ["test.job"], limit=1, window=1, lease_ttl_seconds=60),
    )

    assert (result.claimed, result.has_ready, result.due_in_seconds) == ([], False, None)
    queue.execute("DELETE FROM runledger.job_queue")


def test_claim_leaves_the_planners_settings_of_the_callers_transaction(queue: Queue):
    settings = {
        "enable_indexscan": "off",
        "jit": "on",
        "enable_bitmapscan": "off",
        "enable_seqscan": "off",
        "plan_cache_mode": "force_custom_plan",
    }
    queue.enqueue()
    with queue.database.connect() as connection:
        for name, value in settings.items():
            connection.execute(f"SET LOCAL {name} = {value}".encode())

        assert len(claim_jobs(connection, worker_id="w", limit=1, lease_ttl_seconds=9)) == 1

        for name, value in settings.items():
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,)
        connection.rollback()
        assert connection.execute("SHOW enable_bitmapscan").fetchone() == ("on",)
        assert len(claim_jobs(connection, worker_id="w", limit=1, lease_ttl_seconds=9)) == 1
        assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)


def test_claim_goes_its_way_whatever_the_planners_settings_are(queue: Queue):
    request = ClaimRequest("w", ["test.job"], limit=1, window=1, lease_ttl_seconds=9)
    with queue.database.connect() as connection:
        for setting in ("enable_indexscan = off", "jit = on", "jit_above_cost = 0"):
            connection.execute(f"SET LOCAL {setting}".encode())

        run_all(connection, claim_statements(request))

        shown = [
            connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("enable_indexscan", "jit")
        ]
        assert shown == [("on",), ("off",)]


def test_claim_that_was_planned_on_an_empty_queue_reads_no_table_as_a_whole(queue: Queue):
    with queue.database.connect_directly(autocommit=True) as connection:
        # Prepared by psycopg at the sixth time, and planned then.
        for _ in range(8):
            claim_jobs(connection, worker_id="w", limit=1, lease_ttl_seconds=9)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        prepared = connection.execute(
            "SELECT name, cardinality(parameter_types), statement FROM pg_prepared_statements"
            " WHERE statement LIKE '%%runledger.job_queue%%'"
        ).fetchall()

        plans = {
            statement: connection.execute(
                f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * parameters)})".encode()
            ).fetchall()
            for name, parameters, statement in prepared
        }

    assert len(plans) == 3, "flip, claim and look"
    assert "Seq Scan on job_queue" not in str(list(plans.values()))
