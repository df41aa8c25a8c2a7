"""Canceling jobs: the write that cancels of jobs and of runs share."""

from __future__ import annotations

from typing import Final, LiteralString

from ..wakeup import CANCEL_CHANNEL
from ._lease import CLOCK_AFTER_LOCKS

# How many notifications were sent. The cancel channel carries ids of running jobs, 200 to a
# notification (its limit is 8,000 bytes).
COUNT_NOTIFIED: Final = f"""
    SELECT count(pg_notify('{CANCEL_CHANNEL}', r.ids)::text) FROM running AS r
"""

# The history of jobs that were canceled: a trigger of the host may have kept the write from one. IS
# TRUE makes of IN a look into a hash table; a join may be planned as a walk of all for each.
_HISTORY: Final = """written AS MATERIALIZED (
        SELECT l.*, c.at
        FROM locked AS l
        CROSS JOIN clock AS c
        WHERE (l.id IN (SELECT d.id FROM canceled AS d)) IS TRUE
    ), attempts AS (
        INSERT INTO runledger.job_attempts (
            job_id, claim_number, run_number, attempt, worker_id, outcome, leased_at, finished_at
        )
        SELECT l.id, l.claim_number, l.run_number, l.attempt, l.worker_id, 'CANCELED',
            l.leased_at, l.at
        FROM written AS l
        WHERE l.is_running
    ), events AS (
        INSERT INTO runledger.job_events (
            job_id, claim_number, run_number, attempt, event_type, payload, occurred_at
        )
        SELECT l.id, l.claim_number, l.run_number, nullif(l.attempt, 0), 'CANCELED',
            jsonb_build_object('reason', coalesce(%(reason)s::text, 'CANCELED')), l.at
        FROM written AS l
    ), running AS (
        SELECT string_agg(n.id::text, ',') AS ids
        FROM (
            SELECT l.id, (row_number() OVER (ORDER BY l.id) - 1) / 200 AS chunk
            FROM written AS l
            WHERE l.is_running
        ) AS n
        GROUP BY n.chunk
    )"""


def cancel_open_jobs(which: LiteralString, *, errors: LiteralString = "") -> LiteralString:
    """Return the CTEs that cancel jobs which have not ended, WITH included.

    `written` holds the jobs that were canceled, `clock` the instant, and `running` what
    COUNT_NOTIFIED tells. They take the parameter `reason`.

    Args:
        which: Condition on a job `q`.
        errors: Assignments to its columns of errors, each followed by a comma.
    """
    return f"""
    WITH locked AS MATERIALIZED (
        SELECT
            q.id, q.claim_number, q.run_number, q.attempt, q.status = 'LEASED' AS is_running,
            q.worker_id, q.leased_at
        FROM runledger.job_queue AS q
        WHERE {which}
            AND q.status IN ('PENDING', 'LEASED')
        ORDER BY q.id
        FOR NO KEY UPDATE
    ), {CLOCK_AFTER_LOCKS}, canceled AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'CANCELED',
            is_ready = false,
            finished_at = c.at,
            lease_expires_at = NULL,
            last_heartbeat_at = NULL,
            leased_at = NULL,
            worker_id = NULL,
            output = NULL,
            status_reason = coalesce(%(reason)s::text, 'CANCELED'),
            {errors}
            updated_at = c.at
        FROM clock AS c
        WHERE q.id = ANY (ARRAY(SELECT l.id FROM locked AS l))
        RETURNING q.id
    ), {_HISTORY}"""
