"""Claim: lease due jobs to a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import check_int, check_text

from .._arguments import check_list
from .._database import Database, open_connection
from .._rows import Statement
from .._session import Bound, run, run_all
from ..errors import QueryError
from ._claimed import CLAIMED_COLUMNS, ClaimedJob, ClaimedRow, decode_claim
from ._failure import fail_jobs
from ._index_walk import WALK_AS_BEFORE, WALK_IN_ORDER
from ._lease import require_lease_ttl
from ._ready import (
    FIND_DUE_JOBS,
    FLIP_LIMIT,
    IS_CLAIMABLE,
    LOOK_AT_BACKLOG,
    READY_DUE_JOBS,
    WANTED_TYPES,
    Backlog,
    FoundJobRow,
    ReadyMark,
    waiting_parameters,
    wanted_parameters,
)

MAX_CLAIM: Final = 1_000


# Candidates come per type, best first and without locks, are ordered together, and the best are
# locked where nobody else holds them. FOR NO KEY UPDATE rechecks the row that it got: a candidate
# that another worker took meanwhile drops out. SKIP LOCKED never waits, so it cannot deadlock.
# Arrays instead of joins, and a status that no partial index knows: the primary key is then the
# best way to a row for every plan, also for one made when the queue was empty.
_LOCKED: Final = f"""candidates AS MATERIALIZED (
        SELECT c.id
        FROM {WANTED_TYPES}
        CROSS JOIN LATERAL (
            SELECT q.id, ~q.priority AS rank, q.next_run_at
            FROM runledger.job_queue AS q
            WHERE {IS_CLAIMABLE}
            ORDER BY ~q.priority, q.next_run_at, q.id
            LIMIT %(window)s::int8
        ) AS c
        ORDER BY c.rank, c.next_run_at, c.id
        LIMIT %(window)s::int8
    ), locked AS MATERIALIZED (
        SELECT q.id
        FROM runledger.job_queue AS q
        WHERE q.id = ANY (ARRAY(SELECT c.id FROM candidates AS c))
            AND q.status::text = 'PENDING'
            AND q.is_ready
        ORDER BY ~q.priority, q.next_run_at, q.id
        LIMIT %(limit)s::int8
        FOR NO KEY UPDATE SKIP LOCKED
    )"""
CLAIM_JOBS: Final = Statement(
    f"""
    WITH {_LOCKED}, claimed AS (
        UPDATE runledger.job_queue AS q
        SET
            status = 'LEASED',
            attempt = q.attempt + 1,
            claim_number = q.claim_number + 1,
            worker_id = %(worker_id)s::text,
            leased_at = clock.at,
            last_heartbeat_at = clock.at,
            lease_expires_at = clock.at + %(lease_ttl_seconds)s::int8 * interval '1 second',
            started_at = coalesce(q.started_at, clock.at),
            stage = 'running',
            updated_at = clock.at
        FROM (SELECT clock_timestamp() AS at) AS clock
        WHERE q.id = ANY (ARRAY(SELECT l.id FROM locked AS l))
        RETURNING q.*
    )
    SELECT {CLAIMED_COLUMNS}
    FROM claimed AS q
    ORDER BY ~q.priority, q.next_run_at, q.id
    """,
    ClaimedRow,
)
FIND_CLAIMABLE_JOBS: Final = Statement(f"WITH {_LOCKED} SELECT l.id FROM locked AS l", FoundJobRow)


@dataclass(frozen=True, slots=True)
class _DefinedTypeRow:
    job_type: str


LIST_DEFINED_TYPES: Final = Statement(
    "SELECT d.job_type FROM runledger.job_definitions AS d ORDER BY d.job_type", _DefinedTypeRow
)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claim asks for.

    Attributes:
        worker_id: Owner of the leases.
        job_types: Types to look for.
        limit: Most jobs to lease.
        lease_ttl_seconds: Length of the leases.
        window: Candidates to look at, `limit` or more: others may hold some of them.
        marks: By type, where to begin; what sorts before is not found. A type
            without one is searched from its start.
        waiting_from: Where flip and look begin among waiting jobs; None for the start.
        left_out: Jobs that are neither readied nor claimed, nor seen by the look.
        flip_limit: Most jobs to ready.
        has_flip: Whether jobs that came due are readied first.
        has_look: Whether to look at what is left.
    """

    worker_id: str
    job_types: Sequence[str]
    _: KW_ONLY
    limit: int
    window: int
    lease_ttl_seconds: int
    marks: Mapping[str, ReadyMark] = field(default_factory=dict[str, ReadyMark])
    waiting_from: datetime | None = None
    left_out: Sequence[UUID] = ()
    flip_limit: int = FLIP_LIMIT
    has_flip: bool = True
    has_look: bool = True


def claim_jobs(
    db: Database,
    *,
    worker_id: str,
    limit: int,
    lease_ttl_seconds: int,
    job_types: Sequence[str] | None = None,
) -> list[ClaimedJob]:
    """Lease due jobs to a worker; the attempt begins here.

    Args:
        worker_id: Name of the lease's owner, unique among live workers, at most 200 characters.
        limit: Most jobs to lease, 1 to 1,000.
        lease_ttl_seconds: Lease length in seconds from the database clock, 1 or more.
        job_types: Only these types; None for every defined type. An empty list claims nothing and
            runs no SQL.

    Returns:
        At most `limit` jobs, highest priority first, then oldest due; empty if none is due. A row
        that Python cannot decode is dead-lettered with `job.undecodable_row` and not returned.

    Raises:
        ValidationError: `job.invalid_lease_duration`, or an `input.*` code naming the argument.
        UnavailableError: `db.unavailable` or `db.outcome_unknown` if the connection is lost.

    Transaction: joins the caller's or opens one; rows locked by others are skipped.
    """
    owner = check_text(worker_id, field="worker_id", max_characters=200)
    limit = check_int(limit, field="limit", minimum=1, maximum=MAX_CLAIM)
    ttl = require_lease_ttl(lease_ttl_seconds)
    types = None if job_types is None else _checked_types(job_types)
    if types is not None and not types:
        return []
    is_committing = _is_committing(db)
    if types is None:
        types = _defined_types(db)
        if not types:
            return []
    rows: list[ClaimedRow] = []
    # Others may hold some of what was found: look once more, twice as far, for the rest.
    for window in (limit, 2 * limit):
        request = ClaimRequest(
            owner, types, limit=limit - len(rows), window=window, lease_ttl_seconds=ttl
        )
        backlog: Backlog | None = None
        with _unless_leased(rows, is_committing=is_committing):
            statements = [*claim_statements(request), Bound(WALK_AS_BEFORE)]
            found, backlog = claim_results(request, run_all(db, statements)[:-1])
            rows = _best_first([*rows, *found])
        if len(rows) == limit or backlog is None or not backlog.has_ready:
            break
    claimed, undecodable = decode_claim(rows)
    if undecodable:
        with _unless_leased(rows, is_committing=is_committing):
            fail_jobs(db, undecodable)
    return claimed


def claim_statements(request: ClaimRequest, *, walks_in_order: bool = False) -> list[Bound[Any]]:
    """Return the flip, the claim and the look at what is left, for one pipeline.

    Args:
        walks_in_order: Whether a statement before them sees to it that the transaction walks
            indexes in their order. Else the first does; `WALK_AS_BEFORE` ends it.
    """
    ready, waiting = _ready_parameters(request), _waiting_parameters(request)
    bounds: list[Bound[Any]] = [] if walks_in_order else [Bound(WALK_IN_ORDER)]
    if request.has_flip:
        # A statement before the claim, which sees what it changed.
        bounds.append(Bound(READY_DUE_JOBS, waiting | {"limit": request.flip_limit}))
    lease = {"worker_id": request.worker_id, "lease_ttl_seconds": request.lease_ttl_seconds}
    bounds.append(Bound(CLAIM_JOBS, ready | _bounds(request) | lease))
    if request.has_look:
        bounds.append(Bound(LOOK_AT_BACKLOG, ready | waiting))
    return bounds


def claim_results(
    request: ClaimRequest, results: Sequence[list[Any]]
) -> tuple[list[ClaimedRow], Backlog | None]:
    """Return what `claim_statements` claimed and, if it looked, what it left."""
    if not request.has_look:
        return results[-1], None
    rows, (backlog,) = results[-2:]
    return rows, backlog


def find_claimable_jobs(db: Database, request: ClaimRequest) -> list[UUID]:
    """Return the jobs that a claim would lease, without the flip and the lease.

    Transaction: joins the caller's or opens one; rows locked by others are skipped.
    """
    found = Bound(FIND_CLAIMABLE_JOBS, _ready_parameters(request) | _bounds(request))
    return [row.id for row in run_all(db, [Bound(WALK_IN_ORDER), found, Bound(WALK_AS_BEFORE)])[1]]


def find_due_jobs(db: Database, request: ClaimRequest) -> list[UUID]:
    """Return the jobs that a claim would ready first, without doing so.

    Transaction: joins the caller's or opens one; rows locked by others are skipped.
    """
    found = Bound(FIND_DUE_JOBS, _waiting_parameters(request) | {"limit": request.flip_limit})
    return [row.id for row in run(db, found)]


def _ready_parameters(request: ClaimRequest) -> dict[str, object]:
    left_out = {"left_out": list(request.left_out)}
    return wanted_parameters(request.job_types, request.marks) | left_out


def _waiting_parameters(request: ClaimRequest) -> dict[str, object]:
    return waiting_parameters(request.waiting_from) | {"left_out": list(request.left_out)}


def _bounds(request: ClaimRequest) -> dict[str, object]:
    return {"limit": request.limit, "window": request.window}


def _is_committing(db: Database) -> bool:
    # Asked before the first statement: afterwards a lost connection no longer tells.
    if isinstance(db, ConnectionPool):
        return True
    with open_connection(db) as opened:
        return opened.owned


def _unless_leased(
    rows: Sequence[ClaimedRow], *, is_committing: bool
) -> AbstractContextManager[object]:
    # Leases that we have committed must reach the caller. What fails after them comes again: by
    # the next claim, or by the reaper.
    return suppress(QueryError) if rows and is_committing else nullcontext()


def _best_first(rows: Sequence[ClaimedRow]) -> list[ClaimedRow]:
    return sorted(rows, key=lambda row: (-row.priority, row.next_run_at, row.id))


def _checked_types(job_types: Sequence[str]) -> list[str]:
    return [
        check_text(job_type, field=f"job_types[{index}]", max_characters=200)
        for index, job_type in enumerate(check_list(job_types, field="job_types"))
    ]


def _defined_types(db: Database) -> list[str]:
    return [row.job_type for row in run(db, Bound(LIST_DEFINED_TYPES))]
