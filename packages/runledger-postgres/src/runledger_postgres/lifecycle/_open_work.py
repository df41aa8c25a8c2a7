"""Is anything left to do: what a worker asks that shall end when nothing is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from runledger_core import JobType, WorkerId

from .._arguments import check_list
from .._database import Database
from .._rows import Statement
from .._session import Bound, run


@dataclass(frozen=True, slots=True)
class OpenWorkRow:
    """Whether there is work."""

    is_open: bool


# Each part ends at its first row: by idx_job_queue_ready, idx_job_queue_waiting,
# idx_job_queue_leased and idx_job_schedules_due.
FIND_OPEN_WORK: Final = Statement(
    """
    SELECT
        EXISTS (
            SELECT
            FROM unnest(%(job_types)s::text[]) AS t(job_type)
            CROSS JOIN LATERAL (
                SELECT
                FROM runledger.job_queue AS q
                WHERE q.job_type = t.job_type AND q.status = 'PENDING' AND q.is_ready
                LIMIT 1
            ) AS ready
        )
        OR EXISTS (
            SELECT
            FROM runledger.job_queue AS q
            WHERE q.status = 'PENDING'
                AND NOT q.is_ready
                AND q.next_run_at <= clock_timestamp()
                AND q.job_type = ANY (%(job_types)s::text[])
        )
        OR EXISTS (
            SELECT
            FROM runledger.job_queue AS q
            WHERE q.status = 'LEASED' AND q.worker_id = %(worker_id)s::text
        )
        OR EXISTS (
            SELECT
            FROM runledger.job_schedules AS s
            WHERE s.is_active AND greatest(s.next_fire_at, s.retry_at) <= clock_timestamp()
        ) AS is_open
    """,
    OpenWorkRow,
)


def has_open_work(db: Database, job_types: Collection[str], *, worker_id: str) -> bool:
    """Tell whether jobs are due, or leased by one worker, or schedules are due.

    Args:
        job_types: Types of the jobs that count; none leaves leases and schedules.
        worker_id: Whose leases count, as its Supervisor has it.

    Returns:
        False if nothing is left but what is due later, runs elsewhere or has another type.

    Raises:
        ValidationError: An `input.*` code.
        UnavailableError: `db.unavailable` and its like.

    Transaction: joins the caller's or opens one; takes no lock.
    """
    job_types = check_list(job_types, field="job_types")
    params = {
        "job_types": [JobType(job_type) for job_type in job_types],
        "worker_id": WorkerId(worker_id),
    }
    return run(db, Bound(FIND_OPEN_WORK, params))[0].is_open
