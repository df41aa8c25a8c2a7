"""Notifications to those who wait for runs to end; sent only while somebody waits."""

from __future__ import annotations

from typing import Final

# "RLwr" in ASCII: the mark that the waiters of a process hold, shared, on their connection.
WAITERS_MARK: Final = 1_380_743_026
RUN_ENDED_CHANNEL: Final = "runledger_workflow_run_terminal"
MOST_TOLD: Final = 50

# Expects a CTE `ended_runs(id)`. The first 50 ids are told (a payload ends at 8,000 bytes); who
# waits for another looks at all runs when so many are told. Counting makes PostgreSQL evaluate the
# call.
COUNT_WAITERS_WOKEN: Final = """
    SELECT count(CASE
        WHEN pg_try_advisory_lock(1380743026)
            THEN pg_advisory_unlock(1380743026)::text
        ELSE pg_notify('runledger_workflow_run_terminal', told.ids)::text
    END)
    FROM (
        SELECT string_agg(first_ones.id::text, ',') AS ids
        FROM (SELECT e.id FROM ended_runs AS e LIMIT 50) AS first_ones
    ) AS told
    WHERE told.ids IS NOT NULL
"""
