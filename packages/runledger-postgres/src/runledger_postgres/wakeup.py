"""Marks and notifications: who sleeps says so in a lock, who writes wakes only sleepers.

While asleep a worker holds one shared advisory lock per job type on a direct connection. A writer
that made jobs of a type due tries that lock exclusively: if it gets it, nobody sleeps; if not, it
notifies, once per transaction and type. Both live in memory only. Notifications are hints: polling
finds the same work, later.
"""

from __future__ import annotations

from typing import Final

# "RL" and "wa" in ASCII; the second key of the lock is hashtext(job_type).
SLEEP_MARK_CLASS: Final = 1_380_743_009
WAKE_CHANNEL: Final = "runledger_wake"
CANCEL_CHANNEL: Final = "runledger_cancel"

# All of them, or none: a worker with some marks would sleep through jobs of the other types. It
# never waits for one, since anybody may hold such a lock for long.
TAKE_MARKS: Final = """
    SELECT CASE WHEN tried.are_held THEN true ELSE pg_advisory_unlock_all()::text IS NULL END
    FROM (
        SELECT bool_and(pg_try_advisory_lock_shared(1380743009, hashtext(t))) AS are_held
        FROM unnest(%(job_types)s::text[]) AS t
    ) AS tried
"""
DROP_MARKS: Final = "SELECT pg_advisory_unlock_all()::text"

# Expects a CTE `made_due(job_type, is_ready)`. Counting makes PostgreSQL evaluate every call; a CTE
# that nobody reads would not run. Now and then two writers take each other's try for a sleeper.
COUNT_WOKEN: Final = """
    SELECT count(CASE
        WHEN pg_try_advisory_lock(1380743009, hashtext(due.job_type))
            THEN pg_advisory_unlock(1380743009, hashtext(due.job_type))::text
        ELSE pg_notify('runledger_wake', due.job_type)::text
    END)
    FROM (SELECT DISTINCT m.job_type FROM made_due AS m WHERE m.is_ready) AS due
"""
