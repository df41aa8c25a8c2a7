"""Locks of runs: whoever changes a run's steps holds its row, taken by a statement of its own.

A statement that waits for a row goes on with its old snapshot, so what depends on the lock is read
by a later one. That one learns from a setting of the transaction which runs are locked. Where all
statements share one snapshot none is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from runledger_core import Scope

from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import IS_READ_COMMITTED, Bound


@dataclass(frozen=True, slots=True)
class LockedRunsRow:
    """The runs that are locked, and whether they were not to be because of the isolation."""

    run_ids: str
    is_unsupported: bool


_REMEMBERED: Final = """
    set_config('runledger.locked_runs', coalesce(string_agg(l.id::text, ','), ''), true)
"""


# The rows come by an array, and the queue's in a query of their own: a join, or the partial index
# of workflows' jobs, might be walked as a whole.
def _lock_runs_of_jobs(waiting: LiteralString) -> LiteralString:
    return f"""
    WITH wanted AS MATERIALIZED (
        SELECT j.workflow_run_id AS id
        FROM (
            SELECT q.workflow_run_id
            FROM runledger.job_queue AS q
            WHERE q.id = ANY (%(job_ids)s::uuid[]) AND {IN_SCOPE}
            OFFSET 0
        ) AS j
        WHERE j.workflow_run_id IS NOT NULL
    )
    SELECT
        {_REMEMBERED} AS run_ids,
        EXISTS (SELECT FROM wanted) AND NOT {IS_READ_COMMITTED} AS is_unsupported
    FROM (
        SELECT w.id
        FROM runledger.workflow_runs AS w
        WHERE w.id = ANY (ARRAY(SELECT n.id FROM wanted AS n)) AND {IS_READ_COMMITTED}
        ORDER BY w.id
        FOR NO KEY UPDATE {waiting}
    ) AS l
    """


LOCK_RUNS_OF_JOBS: Final = Statement(_lock_runs_of_jobs(""), LockedRunsRow)
TRY_RUNS_OF_JOBS: Final = Statement(_lock_runs_of_jobs("SKIP LOCKED"), LockedRunsRow)

# The runs of the leases that expired first. One that others hold does not count, or a wide run in
# the hands of a host would keep the reaper from all others.
TRY_RUNS_OF_EXPIRED_LEASES: Final = Statement(
    f"""
    SELECT {_REMEMBERED} AS run_ids, false AS is_unsupported
    FROM (
        SELECT w.id
        FROM (
            SELECT q.workflow_run_id AS id
            FROM runledger.job_queue AS q
            WHERE q.status = 'LEASED'
                AND q.lease_expires_at <= clock_timestamp()
                AND (%(job_id)s::uuid IS NULL OR q.id = %(job_id)s::uuid)
            GROUP BY q.workflow_run_id
            ORDER BY min(q.lease_expires_at), q.workflow_run_id
        ) AS e
        CROSS JOIN LATERAL (
            SELECT r.id
            FROM runledger.workflow_runs AS r
            WHERE r.id = e.id AND {IS_READ_COMMITTED}
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS w
        LIMIT %(limit)s::int8
    ) AS l
    """,
    LockedRunsRow,
)

# Of a job `q`: whether it is no workflow's, or its run is locked by us, or is gone: which is seen
# only now, behind the wait for a lock. A value and no EXISTS, which a plan may turn into a read of
# all runs.
IS_RUN_LOCKED: Final = """(
            q.workflow_run_id IS NULL
            OR q.workflow_run_id IN (
                SELECT unnest(string_to_array(
                    current_setting('runledger.locked_runs', true), ','
                ))::uuid
            )
            OR (
                SELECT w.id FROM runledger.workflow_runs AS w WHERE w.id = q.workflow_run_id
            ) IS NULL
        )"""


def lock_runs_of_jobs(
    job_ids: Sequence[UUID], *, waits: bool, scope: Scope = Scope.ADMIN
) -> Bound[LockedRunsRow]:
    """Return the statement that locks the runs of jobs, by id, before anything else is locked.

    Args:
        waits: Wait for runs that others hold, instead of leaving them out.
        scope: Whose jobs they may be; runs of others are not touched.
    """
    statement = LOCK_RUNS_OF_JOBS if waits else TRY_RUNS_OF_JOBS
    return Bound(statement, {"job_ids": list(job_ids)} | scope_parameters(scope))
