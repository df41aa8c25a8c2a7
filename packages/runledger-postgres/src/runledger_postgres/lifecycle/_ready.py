"""What is ready: the flip before a claim, and the look at what the claim left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from .._rows import Statement

FLIP_LIMIT: Final = 1_000

# A row whose counters are at their ends, or that somebody gave numbers below their beginning,
# cannot be claimed once more: it would fail the whole claim, and its neighbours with it. For q.
_IS_COUNTABLE: Final = (
    "(q.attempt < 2147483647 AND q.claim_number BETWEEN 0 AND 9223372036854775806)"
)

# The types of a claim, each once, and where to begin: the arguments are `wanted_parameters`.
WANTED_TYPES: Final = """unnest(
            %(job_types)s::text[], %(mark_ranks)s::int8[], %(mark_next_run_ats)s::timestamptz[],
            %(mark_ids)s::uuid[]
        ) AS wanted(job_type, rank, next_run_at, id)"""

# A ready row of a wanted type, aliased q. The row comparison is one bound of the index that gives
# the order; as three conditions with OR it would filter what the walk has read.
IS_CLAIMABLE: Final = f"""q.job_type = wanted.job_type
                AND q.status = 'PENDING'
                AND q.is_ready
                AND q.id <> ALL (%(left_out)s::uuid[])
                AND {_IS_COUNTABLE}
                AND (~q.priority, q.next_run_at, q.id)
                    >= (wanted.rank, wanted.next_run_at, wanted.id)"""


@dataclass(frozen=True, slots=True, order=True)
class ReadyMark:
    """A place in the order in which ready jobs of one type are claimed.

    Attributes:
        rank: The bitwise complement of the priority, so that the largest comes first.
        id: Of a job, or of none.
    """

    rank: int
    next_run_at: datetime
    _: KW_ONLY
    id: UUID


# Its rank is below that of every int4: nothing sorts before it, whatever else it holds.
START: Final = ReadyMark(-(2**31) - 1, datetime.min.replace(tzinfo=UTC), id=UUID(int=0))
_WAITING_START: Final = "-infinity"


@dataclass(frozen=True, slots=True)
class ReadiedRow:
    """How many waiting jobs became ready."""

    readied: int


# The flip: rows whose time came leave the waiting index for the ready one, oldest first. It runs
# before the claim, which would not see what a CTE of its own changes. It never waits, so the clock
# may be the statement's, which bounds the index scan; a volatile one would walk all that waits.
# It begins at its mark, not behind it: many rows may be due at the same instant.
_DUE: Final = """due AS MATERIALIZED (
        SELECT q.id
        FROM runledger.job_queue AS q
        WHERE q.status = 'PENDING'
            AND NOT q.is_ready
            AND q.id <> ALL (%(left_out)s::uuid[])
            AND q.next_run_at >= %(waiting_from)s::text::timestamptz
            AND q.next_run_at <= statement_timestamp()
        ORDER BY q.next_run_at
        LIMIT %(limit)s::int8
        FOR NO KEY UPDATE SKIP LOCKED
    )"""
READY_DUE_JOBS: Final = Statement(
    f"""
    WITH {_DUE}, readied AS (
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
class FoundJobRow:
    """A job that a flip or a claim would take."""

    id: UUID


FIND_DUE_JOBS: Final = Statement(f"WITH {_DUE} SELECT d.id FROM due AS d", FoundJobRow)


@dataclass(frozen=True, slots=True)
class Walk:
    """What it cost to find the first live entry of an index.

    Attributes:
        seconds: Of the server's time, without the way to it and back.
        entries: Read from the index, dead ones included.
    """

    seconds: float
    entries: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a claim left: the best ready job of each of its types, and the next waiting job of any.

    Ready jobs that others hold are among them. What sorts before a mark of the claim is not seen.
    """

    began_at: datetime
    _: KW_ONLY
    ready_types: Sequence[str]
    ready_ranks: Sequence[int]
    ready_next_run_ats: Sequence[datetime]
    ready_ids: Sequence[UUID]
    ready_read_before: int
    ready_read_after: int
    ready_found_at: datetime
    waiting_read_before: int
    waiting_read_after: int
    next_due_at: datetime | None
    looked_at: datetime

    @property
    def has_ready(self) -> bool:
        """Whether ready jobs are left, claimable or held by others."""
        return bool(self.ready_types)

    @property
    def best(self) -> dict[str, ReadyMark]:
        """The place of the best ready job of each type that has one."""
        places = zip(self.ready_ranks, self.ready_next_run_ats, self.ready_ids, strict=True)
        return {
            job_type: ReadyMark(rank, next_run_at, id=job_id)
            for job_type, (rank, next_run_at, job_id) in zip(self.ready_types, places, strict=True)
        }

    @property
    def due_in_seconds(self) -> float | None:
        """Until the next waiting job is due, negative if it already is; None if none waits."""
        if self.next_due_at is None:
            return None
        return (self.next_due_at - self.looked_at).total_seconds()

    @property
    def ready_walk(self) -> Walk:
        """What the ready jobs cost to look at."""
        seconds = (self.ready_found_at - self.began_at).total_seconds()
        return Walk(seconds, self.ready_read_after - self.ready_read_before)

    @property
    def waiting_walk(self) -> Walk:
        """What the waiting jobs cost to look at."""
        seconds = (self.looked_at - self.ready_found_at).total_seconds()
        return Walk(seconds, self.waiting_read_after - self.waiting_read_before)


# Entries that this transaction has read from an index; an index that somebody renamed costs only
# the marks.
_READY_READ: Final = """coalesce(pg_stat_get_xact_tuples_returned(
            to_regclass('runledger.idx_job_queue_ready')), 0)"""
_WAITING_READ: Final = """coalesce(pg_stat_get_xact_tuples_returned(
            to_regclass('runledger.idx_job_queue_waiting')), 0)"""

# Tells "the queue is empty" from "others hold its head", a worker how long it may sleep, and what
# it costs to get past entries of the indexes that are dead and cannot be removed yet.
# A select list is evaluated in its order and a sub-select at its first use: the clock and the
# counters stand before and after what they measure. Without track_counts the counters stand still.
LOOK_AT_BACKLOG: Final = Statement(
    f"""
    WITH ready AS MATERIALIZED (
        SELECT wanted.job_type, best.rank, best.next_run_at, best.id
        FROM {WANTED_TYPES}
        CROSS JOIN LATERAL (
            SELECT ~q.priority AS rank, q.next_run_at, q.id
            FROM runledger.job_queue AS q
            WHERE {IS_CLAIMABLE}
            ORDER BY ~q.priority, q.next_run_at, q.id
            LIMIT 1
        ) AS best
    )
    SELECT
        clock_timestamp() AS began_at,
        {_READY_READ} AS ready_read_before,
        ARRAY(SELECT r.job_type FROM ready AS r) AS ready_types,
        ARRAY(SELECT r.rank FROM ready AS r) AS ready_ranks,
        ARRAY(SELECT r.next_run_at FROM ready AS r) AS ready_next_run_ats,
        ARRAY(SELECT r.id FROM ready AS r) AS ready_ids,
        {_READY_READ} AS ready_read_after,
        clock_timestamp() AS ready_found_at,
        {_WAITING_READ} AS waiting_read_before,
        (
            SELECT q.next_run_at
            FROM runledger.job_queue AS q
            WHERE q.status = 'PENDING'
                AND NOT q.is_ready
                AND q.id <> ALL (%(left_out)s::uuid[])
                AND q.next_run_at >= %(waiting_from)s::text::timestamptz
            -- Not by min(): on a misjudged table PostgreSQL 15 then walks all that waits.
            ORDER BY q.next_run_at
            LIMIT 1
        ) AS next_due_at,
        {_WAITING_READ} AS waiting_read_after,
        clock_timestamp() AS looked_at
    """,
    Backlog,
)


def wanted_parameters(
    job_types: Sequence[str], marks: Mapping[str, ReadyMark]
) -> dict[str, object]:
    """Return the parameters of WANTED_TYPES; a type without a mark begins at the start."""
    types = list(dict.fromkeys(job_types))
    places = [marks.get(job_type, START) for job_type in types]
    return {
        "job_types": types,
        "mark_ranks": [place.rank for place in places],
        "mark_next_run_ats": [place.next_run_at for place in places],
        "mark_ids": [place.id for place in places],
    }


def waiting_parameters(waiting_from: datetime | None) -> dict[str, object]:
    """Return the parameter of a walk of what waits, as text: Python has no least instant."""
    text = _WAITING_START if waiting_from is None else waiting_from.isoformat()
    return {"waiting_from": text}
