"""A queue with a long history, filled by a few statements."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import psycopg

TYPES: Final = ("plans.work-0", "plans.work-1", "plans.work-2", "plans.work-3")
FOREIGN_TYPE: Final = "plans.foreign"
ORGANIZATION: Final = UUID("00000000-0000-7000-8000-0000000000aa")

# Tables whose rows grow with the work; a definition or a worker is one of a handful.
SMALL_TABLES: Final = frozenset({"job_definitions", "job_workers"})


class Statistics(StrEnum):
    """What the planner knows of the queue, and what pruning left of it."""

    FRESH = "fresh"
    NEVER = "never analyzed"
    WHEN_EMPTY = "analyzed when empty"
    WHEN_SMALL = "analyzed when small"
    PRUNED = "pruned"
    VACUUMED = "pruned and vacuumed"
    REFILLED = "analyzed when emptied, then refilled"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs of each kind.

    Attributes:
        terminal: Ended in the last 30 days, with their attempts.
        ready: Due, of the four types.
        future: Due in an hour or later, of the four types, before all others by priority.
        foreign: Due, of a type that the worker does not know, before the others by priority.
        due: Came due, but no worker has readied them yet.
        leased: Run by other workers.
    """

    _: KW_ONLY
    terminal: int = 0
    ready: int = 0
    future: int = 0
    foreign: int = 0
    due: int = 0
    leased: int = 0


# An id of the row's time, as runledger.uuidv7() makes it for now.
_ID: Final = """
    (
        lpad(to_hex((extract(epoch FROM created_at) * 1000)::int8), 12, '0') || '7'
        || lpad(to_hex(n %% 4096), 3, '0') || right(replace(gen_random_uuid()::text, '-', ''), 16)
    )::uuid
"""
_OWNER: Final = "CASE WHEN n %% 2 = 0 THEN %(organization)s::uuid END"
_KEY: Final = "CASE WHEN n %% 4 < 2 THEN kind || '-' || id END"

_INSERT_JOBS: Final = f"""
    WITH jobs AS (
        SELECT n, kind, created_at, {_ID} AS id
        FROM generate_series(1, %(rows)s::int8) AS n,
            LATERAL (
                SELECT
                    %(kind)s::text AS kind,
                    now() - %(age)s::interval * (1 - n::float8 / %(rows)s::float8) AS created_at
            ) AS made
    )
    INSERT INTO runledger.job_queue (
        id, job_type, organization_id, idempotency_key, enqueue_request, max_attempts, payload,
        created_at, updated_at, status, is_ready, priority, next_run_at, attempt, claim_number,
        stage, finished_at
    )
    SELECT
        id, coalesce(%(job_type)s::text, 'plans.work-' || n %% 4), {_OWNER}, {_KEY},
        CASE WHEN n %% 4 < 2 THEN '{{}}'::jsonb END, 8,
        jsonb_build_object('number', n, 'text', repeat('x', 60)), created_at, created_at,
"""

INSERT_TERMINAL: Final = f"""{_INSERT_JOBS}
        (CASE n %% 10 WHEN 0 THEN 'DEAD_LETTERED' WHEN 1 THEN 'CANCELED' ELSE 'SUCCEEDED' END)
            ::runledger.job_status,
        false, 100, created_at, 1, 1, 'completed', created_at
    FROM jobs
"""
INSERT_READY: Final = f"""{_INSERT_JOBS}
        'PENDING', true, %(priority)s::int4 + n %% 10, created_at, 0, 0, 'queued', NULL
    FROM jobs
"""
INSERT_WAITING: Final = f"""{_INSERT_JOBS}
        'PENDING', false, 1000, now() + %(delay)s::interval * (1 + n::float8 / %(rows)s::float8),
        0, 0, 'queued', NULL
    FROM jobs
"""
LEASE_TO_OTHERS: Final = """
    UPDATE runledger.job_queue
    SET status = 'LEASED', attempt = 1, claim_number = 1, worker_id = 'other',
        leased_at = now(), last_heartbeat_at = now(), lease_expires_at = now() + interval '1 day'
    WHERE id = ANY (
        ARRAY(SELECT id FROM runledger.job_queue WHERE is_ready AND job_type <> %s LIMIT %s)
    )
"""
# Of jobs that have ended and have no history yet: what their ends left behind. Attempts come last.
_ENDED: Final = """
    FROM runledger.job_queue AS q
    WHERE q.finished_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM runledger.job_attempts AS a WHERE a.job_id = q.id)
"""
INSERT_HISTORY: Final = (
    f"""
    INSERT INTO runledger.job_events (
        job_id, claim_number, run_number, attempt, event_type, occurred_at
    )
    SELECT q.id, 1, 1, 1, q.status::text::runledger.job_event_type, q.finished_at
    {_ENDED} AND q.status <> 'SUCCEEDED'
    """,
    f"""
    INSERT INTO runledger.job_logs (
        job_id, claim_number, run_number, attempt, level, message, occurred_at
    )
    SELECT q.id, 1, 1, 1, 'INFO', 'done', q.finished_at
    {_ENDED}
    """,
    f"""
    INSERT INTO runledger.job_dead_letters (
        job_id, job_type, organization_id, run_number, attempt, error_code, error_message,
        payload_snapshot, failed_at
    )
    SELECT
        q.id, q.job_type, q.organization_id, 1, 1, 'plans.failed', 'failed', q.payload,
        q.finished_at
    {_ENDED} AND q.status = 'DEAD_LETTERED'
    """,
    f"""
    INSERT INTO runledger.job_attempts (
        job_id, claim_number, run_number, attempt, outcome, leased_at, finished_at, worker_id
    )
    SELECT
        q.id, 1, 1, 1,
        (CASE q.status WHEN 'DEAD_LETTERED' THEN 'TERMINAL' ELSE q.status::text END)
            ::runledger.job_outcome,
        q.finished_at - interval '1 second', q.finished_at, 'worker'
    {_ENDED}
    """,
)
# What a retention of one day deletes.
PRUNE: Final = (
    """
    DELETE FROM runledger.job_queue
    WHERE finished_at < now() - interval '1 day'
    """,
    "DELETE FROM runledger.job_attempts WHERE finished_at < now() - interval '1 day'",
    "DELETE FROM runledger.job_events WHERE occurred_at < now() - interval '1 day'",
    "DELETE FROM runledger.job_logs WHERE occurred_at < now() - interval '1 day'",
    "DELETE FROM runledger.job_dead_letters WHERE failed_at < now() - interval '1 day'",
)
FORGET_SIZES: Final = "UPDATE pg_class SET reltuples = -1 WHERE relname = ANY (%s)"
TABLES: Final = ("job_queue", "job_attempts", "job_events", "job_logs", "job_dead_letters")


def define(connection: psycopg.Connection[Any]) -> None:
    """Define the types in a migrated database, and keep the server from taking statistics.

    Args:
        connection: In autocommit mode, here and below.
    """
    for table in TABLES:
        connection.execute(f"ALTER TABLE runledger.{table} SET (autovacuum_enabled = false)")
    for job_type in (*TYPES, FOREIGN_TYPE):
        connection.execute(
            "INSERT INTO runledger.job_definitions (job_type) VALUES (%s)", [job_type]
        )
    maintain(connection, "ANALYZE")


def bring_about(
    connection: psycopg.Connection[Any], statistics: Statistics, sizes: Sizes, *, few: Sizes
) -> None:
    """Bring a database into that state of its statistics.

    Args:
        connection: To a clone: of the defined one for WHEN_SMALL, else of the filled one; for
            FRESH, PRUNED, VACUUMED and REFILLED analyzed since.
        few: What was there when statistics were taken of a small queue.
    """
    match statistics:
        case Statistics.NEVER:
            # As of a table that is new.
            connection.execute(FORGET_SIZES, [list(TABLES)])
        case Statistics.WHEN_SMALL:
            fill(connection, few)
            maintain(connection, "VACUUM ANALYZE")
            fill(connection, sizes)
        case Statistics.REFILLED:
            # The last row keeps the pages of all: statistics tell of one row in many pages.
            for table in TABLES:
                connection.execute(
                    f"""
                    DELETE FROM runledger.{table}
                    WHERE ctid <> (SELECT max(ctid) FROM runledger.{table})
                    """.encode()
                )
            maintain(connection, "VACUUM ANALYZE")
            fill(connection, sizes)
        case Statistics.WHEN_EMPTY | Statistics.FRESH | Statistics.PRUNED | Statistics.VACUUMED:
            pass
    # Statistics rarely see a lease: the queue is calm while they are taken.
    connection.execute(LEASE_TO_OTHERS, [FOREIGN_TYPE, sizes.leased])
    if statistics in {Statistics.PRUNED, Statistics.VACUUMED}:
        for statement in PRUNE:
            connection.execute(statement)
    if statistics is Statistics.VACUUMED:
        maintain(connection, "VACUUM")


def fill(connection: psycopg.Connection[Any], sizes: Sizes) -> None:
    """Add the jobs and their history."""
    common: dict[str, object] = {"organization": ORGANIZATION, "job_type": None}
    foreign = {"kind": "foreign", "age": "1 hour", "job_type": FOREIGN_TYPE, "priority": 500}
    for statement, rows, parameters in (
        (INSERT_TERMINAL, sizes.terminal, {"kind": "terminal", "age": "30 days"}),
        (INSERT_READY, sizes.ready, {"kind": "ready", "age": "1 hour", "priority": 100}),
        (INSERT_READY, sizes.foreign, foreign),
        (INSERT_WAITING, sizes.future, {"kind": "future", "age": "1 hour", "delay": "1 hour"}),
        (INSERT_WAITING, sizes.due, {"kind": "due", "age": "1 minute", "delay": "-1 second"}),
    ):
        if rows:
            connection.execute(statement.encode(), common | parameters | {"rows": rows})
    # The planner knows nothing of these rows yet, and would compare each with each.
    connection.execute("SET enable_nestloop = off")
    for statement in INSERT_HISTORY:
        connection.execute(statement)
    connection.execute("RESET enable_nestloop")


def maintain(connection: psycopg.Connection[Any], command: str) -> None:
    """Run VACUUM or ANALYZE on every table that grows."""
    for table in TABLES:
        connection.execute(f"{command} runledger.{table}".encode())
