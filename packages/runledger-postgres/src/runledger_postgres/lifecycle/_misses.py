"""Judging misses: entries that found no live lease, looked at once more with a new snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

from runledger_core import JobLease

from .._database import Database
from .._rows import Statement, column
from .._session import Bound, run
from ..errors import QueryError
from ._lease import IS_LIVE_LEASE, ROW_AND_ATTEMPT, lease_parameters
from ._verdict import WriteVerdict


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """The verdict on one miss, and for a repeat what was stored."""

    entry: int
    verdict: WriteVerdict = column(WriteVerdict)
    _: KW_ONLY
    retry_delay_ms: int | None = None
    next_run_at: datetime | None = None
    max_attempts: int | None = None
    checkpoint_json: str | None = None
    progress_done: int | None = None
    progress_total: int | None = None


# One statement cannot see a twin that was in flight when it began, so this is a second one. A
# repeat is the same when the attempt row of that claim says so and, for a success that is still
# the job's latest word, the output is equal as jsonb. A release writes no attempt row: its event
# tells whose claim it gave back.
JUDGE_MISSES: Final = Statement(
    f"""
    SELECT
        e.entry::int4 AS entry,
        CASE
            WHEN {IS_LIVE_LEASE} THEN 'BUSY'
            WHEN e.outcome IS NULL
                AND q.status = 'PENDING'
                AND q.claim_number = e.claim_number
                AND EXISTS (
                    SELECT
                    FROM runledger.job_events AS v
                    WHERE v.job_id = e.job_id
                        AND v.claim_number = e.claim_number
                        AND v.event_type = 'REQUEUED'
                        AND v.payload ->> 'kind' = 'RELEASE'
                        AND v.payload ->> 'worker_id' = e.worker_id
                    -- Not hashed: that would read all events for these few.
                    OFFSET 0
                ) THEN 'REPEATED'
            WHEN a.worker_id = e.worker_id
                AND a.outcome = e.outcome
                AND a.error_code IS NOT DISTINCT FROM e.error_code
                AND (
                    e.outcome <> 'SUCCEEDED'
                    OR NOT word.is_latest
                    OR q.output IS NOT DISTINCT FROM e.output
                ) THEN 'REPEATED'
            ELSE 'LEASE_OWNER_MISMATCH'
        END AS verdict,
        a.retry_delay_ms,
        a.finished_at + a.retry_delay_ms * interval '1 millisecond' AS next_run_at,
        q.max_attempts,
        d.checkpoint_snapshot::text AS checkpoint_json,
        CASE WHEN word.is_latest THEN q.progress_done END AS progress_done,
        CASE WHEN word.is_latest THEN q.progress_total END AS progress_total
    FROM unnest(
        %(job_ids)s::uuid[], %(claim_numbers)s::int8[], %(worker_ids)s::text[],
        %(outcomes)s::runledger.job_outcome[], %(error_codes)s::text[], %(outputs)s::jsonb[]
    ) WITH ORDINALITY AS e(job_id, claim_number, worker_id, outcome, error_code, output, entry)
    {ROW_AND_ATTEMPT}
    LEFT JOIN LATERAL (
        SELECT l.*
        FROM runledger.job_dead_letters AS l
        WHERE l.job_id = e.job_id AND l.run_number = a.run_number AND l.attempt = a.attempt
        LIMIT 1
    ) AS d ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(q.status = 'SUCCEEDED' AND q.claim_number = e.claim_number, false)
            AS is_latest
    ) AS word
    ORDER BY e.entry
    """,
    JudgedRow,
)


@dataclass(frozen=True, slots=True)
class Miss:
    """One entry to judge; an outcome of None stands for a release."""

    lease: JobLease
    _: KW_ONLY
    outcome: str | None
    error_code: str | None = None
    output_json: str | None = None


_Outcome = TypeVar("_Outcome")
Judge: TypeAlias = Callable[[Database, Sequence[Miss]], list[JudgedRow]]


def judge_misses(db: Database, misses: Sequence[Miss]) -> list[JudgedRow]:
    """Tell repeats, busy rows and lost leases apart, in input order."""
    if not misses:
        return []
    parameters = lease_parameters([miss.lease for miss in misses]) | {
        "outcomes": [miss.outcome for miss in misses],
        "error_codes": [miss.error_code for miss in misses],
        "outputs": [miss.output_json for miss in misses],
    }
    return run(db, Bound(JUDGE_MISSES, parameters))


def with_misses(
    known: Mapping[int, _Outcome],
    count: int,
    judge_missed: Callable[[list[int]], Sequence[_Outcome]],
) -> list[_Outcome]:
    """Return one outcome per entry of a batch, in input order.

    Args:
        known: Outcomes by index, of the entries that a row told of.
        count: Of all entries.
        judge_missed: Returns the outcomes of the others; not called if there are none.
    """
    missed = [index for index in range(count) if index not in known]
    found = dict(known)
    if missed:
        found.update(zip(missed, judge_missed(missed), strict=True))
    return [found[index] for index in range(count)]


def judge_later(db: Database, misses: Sequence[Miss]) -> list[JudgedRow]:
    """Judge misses of writes that are committed: if that fails, all are BUSY and come again."""
    try:
        return judge_misses(db, misses)
    except QueryError as error:
        if not error.is_transient:
            raise
        return [JudgedRow(index, WriteVerdict.BUSY) for index in range(1, len(misses) + 1)]
