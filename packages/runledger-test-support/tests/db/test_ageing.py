from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import scalar_row

from runledger_core import NotFoundError
from runledger_test_support.ageing import (
    age_job,
    age_lease,
    age_worker,
    expire_lease,
    make_due,
    make_schedule_due,
    postpone,
)
from runledger_test_support.databases import TemporaryDatabase

Conn = psycopg.Connection[tuple[object, ...]]

INSERT_LEASED = """
INSERT INTO runledger.job_queue
    (job_type, max_attempts, status, worker_id, lease_expires_at, last_heartbeat_at, leased_at,
    started_at, claim_number)
VALUES ('t', 3, 'LEASED', 'w', now() + interval '60 s', now(), now(), now(), 1)
RETURNING id
"""
INSERT_FUTURE = """
INSERT INTO runledger.job_queue (job_type, max_attempts, next_run_at, is_ready)
VALUES ('t', 3, now() + interval '1 hour', false)
RETURNING id
"""


@pytest.fixture
def conn(runledger_database: TemporaryDatabase) -> Conn:
    return runledger_database.connect()


def insert(conn: Conn, statement: str) -> UUID:
    job_id = conn.cursor(row_factory=scalar_row).execute(statement.encode()).fetchone()
    assert isinstance(job_id, UUID)
    return job_id


def holds(conn: Conn, condition: str, table: str = "job_queue") -> bool:
    row = conn.execute(f"SELECT bool_and({condition}) FROM runledger.{table}".encode()).fetchone()
    assert row is not None
    return row[0] is True


def test_lease_is_aged(conn: Conn) -> None:
    job_id = insert(conn, INSERT_LEASED)

    age_lease(conn, job_id, 50)

    assert holds(conn, "lease_expires_at = now() + interval '10 s'")
    assert holds(conn, "last_heartbeat_at = now() - interval '50 s'")


def test_lease_expires(conn: Conn) -> None:
    job_id = insert(conn, INSERT_LEASED)

    expire_lease(conn, job_id)

    assert holds(conn, "lease_expires_at < clock_timestamp() AND status = 'LEASED'")


def test_future_job_becomes_due(conn: Conn) -> None:
    job_id = insert(conn, INSERT_FUTURE)

    make_due(conn, job_id)

    assert holds(conn, "is_ready AND next_run_at < clock_timestamp()")


def test_due_job_is_postponed(conn: Conn) -> None:
    job_id = insert(conn, INSERT_FUTURE)
    make_due(conn, job_id)

    postpone(conn, job_id, 30)

    assert holds(conn, "NOT is_ready AND next_run_at > now() + interval '29 s'")


def test_job_is_aged_with_its_history(conn: Conn) -> None:
    job_id = insert(conn, INSERT_LEASED)
    conn.execute(
        "INSERT INTO runledger.job_logs (job_id, level, message, occurred_at)"
        " VALUES (%s, 'INFO', 'hello', now())",
        [job_id],
    )

    age_job(conn, job_id, 86_400)

    assert holds(conn, "created_at = now() - interval '24 hours'")
    assert holds(conn, "started_at = now() - interval '24 hours'")
    assert holds(conn, "lease_expires_at = now() + interval '60 s'")
    assert holds(conn, "occurred_at = now() - interval '24 hours'", "job_logs")


def test_schedule_becomes_due(conn: Conn) -> None:
    conn.execute(
        "INSERT INTO runledger.job_schedules (name, job_type, cron_expr, next_fire_at, retry_at)"
        " VALUES ('s', 't', '@hourly', now() + interval '1 hour', now())"
    )

    make_schedule_due(conn, "s", 120)

    assert holds(
        conn,
        "next_fire_at BETWEEN now() - interval '121 s' AND clock_timestamp() - interval '119 s'"
        " AND retry_at IS NULL",
        "job_schedules",
    )


def test_worker_is_aged(conn: Conn) -> None:
    conn.execute(
        "INSERT INTO runledger.job_workers"
        " (worker_id, host, pid, version, job_types, concurrency, state, last_seen_at)"
        " VALUES ('w', 'h', 1, '0', '{}', 1, 'RUNNING', now())"
    )

    age_worker(conn, "w", 10)

    assert holds(conn, "last_seen_at = now() - interval '10 s'", "job_workers")


@pytest.mark.parametrize(
    "move",
    [
        lambda conn: age_lease(conn, uuid4(), 1),
        lambda conn: expire_lease(conn, uuid4()),
        lambda conn: make_due(conn, uuid4()),
        lambda conn: postpone(conn, uuid4(), 1),
        lambda conn: age_job(conn, uuid4(), 1),
        lambda conn: make_schedule_due(conn, "none"),
        lambda conn: age_worker(conn, "none", 1),
    ],
)
def test_missing_row_is_an_error(conn: Conn, move) -> None:
    with pytest.raises(NotFoundError) as refused:
        move(conn)

    assert refused.value.code == "test_support.row_not_found"


def test_pool_moves_in_a_transaction_of_its_own(
    runledger_pool, runledger_database: TemporaryDatabase
) -> None:
    with runledger_database.connect() as conn:
        job_id = insert(conn, INSERT_FUTURE)

    make_due(runledger_pool, job_id)

    assert holds(runledger_database.connect(), "is_ready")
