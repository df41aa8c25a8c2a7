"""What is ready: the flip before a claim, and the look at what the claim left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .._rows import Statement

FLIP_LIMIT: Final = 1_000

# A row whose counters are at their ends cannot be claimed once more: the overflow would fail the
# whole claim, and its neighbours with it. For a row aliased q.
IS_COUNTABLE: Final = "(q.attempt < 2147483647 AND q.claim_number < 9223372036854775807)"


@dataclass(frozen=True, slots=True)
class ReadiedRow:
    """How many waiting jobs became ready."""

    readied: int


# The flip: rows whose time came leave the waiting index for the ready one, oldest first. It runs
# before the claim, which would not see what a CTE of its own changes. It never waits, so the clock
# may be the statement's, which bounds the index scan; a volatile one would walk all that waits.
READY_DUE_JOBS: Final = Statement(
    """
    WITH due AS MATERIALIZED (
        SELECT q.id
        FROM runledger.job_queue AS q
        WHERE q.status = 'PENDING' AND NOT q.is_ready AND q.next_run_at <= statement_timestamp()
        ORDER BY q.next_run_at
        LIMIT %(limit)s::int8
        FOR NO KEY UPDATE SKIP LOCKED
    ), readied AS (
        UPDATE runledger.job_queue AS q
        SET is_ready = true
        WHERE q.id = ANY (ARRAY(SELECT d.id FROM due AS d))
        RETURNING q.id
    )
    SELECT count(*) AS readied FROM readied
    """,
    ReadiedRow,
)


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """What a claim left: ready jobs of its types, and when the next waiting row of any is due."""

    has_ready: bool
    due_in_seconds: float | None


# Tells "the queue is empty" from "others hold its head", and a worker how long it may sleep.
LOOK_AT_BACKLOG: Final = Statement(
    f"""
    SELECT
        EXISTS (
            SELECT
            FROM unnest(%(job_types)s::text[]) AS wanted(job_type)
            CROSS JOIN LATERAL (
                SELECT q.id
                FROM runledger.job_queue AS q
                WHERE q.job_type = wanted.job_type AND q.status = 'PENDING' AND q.is_ready
                    AND {IS_COUNTABLE}
                -- Any one would do; without the order the planner may walk the table for it.
                ORDER BY ~q.priority, q.next_run_at, q.id
                LIMIT 1
            ) AS best
        ) AS has_ready,
        -- Before 17 an infinite instant cannot be subtracted from, and it never comes anyway.
        CASE
            WHEN isfinite(waiting.next_due_at)
                THEN extract(epoch FROM waiting.next_due_at - clock_timestamp())::float8
        END AS due_in_seconds
    FROM (
        SELECT min(q.next_run_at) AS next_due_at
        FROM runledger.job_queue AS q
        WHERE q.status = 'PENDING' AND NOT q.is_ready
    ) AS waiting
    """,
    BacklogRow,
)
