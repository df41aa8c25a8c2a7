"""Find claims: the leases of a worker that it does not know of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from runledger_core import JobLease

from .._arguments import check_kinds
from .._rows import Statement
from .._session import Bound, run
from ._claimed import CLAIMED_COLUMNS, ClaimedJob, ClaimedRow, UndecodableJob, decode_claim

FIND_CLAIMS: Final = Statement(
    f"""
    SELECT {CLAIMED_COLUMNS}
    FROM runledger.job_queue AS q
    WHERE q.status = 'LEASED'
        AND q.worker_id = %(worker_id)s::text
        AND q.lease_expires_at > clock_timestamp()
    ORDER BY ~q.priority, q.next_run_at, q.id
    """,
    ClaimedRow,
)


def find_claims(
    connection: psycopg.Connection[Any], *, worker_id: str, known: Sequence[JobLease]
) -> tuple[list[ClaimedJob], list[UndecodableJob]]:
    """Return live leases of a worker that it does not know of, after an unknown commit.

    Returns:
        The claimed jobs, best first, and those that cannot be decoded as failures to store.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    known = check_kinds(known, JobLease, field="known")
    held = {(lease.job_id, lease.claim_number) for lease in known}
    rows = run(connection, Bound(FIND_CLAIMS, {"worker_id": worker_id}))
    return decode_claim([row for row in rows if (row.id, row.claim_number) not in held])
