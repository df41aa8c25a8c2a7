"""The fence of owner writes, shared by every statement that a lease's owner may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runledger_core import ErrorCategory, JobLease, check_int
from runledger_core.limits import INT32_MAX, INT64_MAX

from .._arguments import check_kinds
from ..errors import QueryError, refusal
from ..workflows import IS_RUN_LOCKED

# Where in the arrays of a batch the row `q` is; OFFSET has it found once a row.
ENTRY_OF_ROW: Final = """(
        SELECT array_position(%(job_ids)s::uuid[], q.id) AS entry OFFSET 0
    ) AS e"""

# The rows of a batch that their owner holds, locked in id order. Taken from `e` and `q`.
# The ids are an array, not a join, here and in the write: after a table was emptied and filled
# again, statistics may still say "one row", and a join would walk the whole primary key. The status
# is compared as text, which keeps the planner off the partial index of leases for the same reason.
_LEASED: Final = f"""
    FROM runledger.job_queue AS q
    CROSS JOIN LATERAL {ENTRY_OF_ROW}
    WHERE q.id = ANY (%(job_ids)s::uuid[])
        AND q.status::text = 'LEASED'
        AND q.claim_number = (%(claim_numbers)s::int8[])[e.entry]
        AND q.worker_id = (%(worker_ids)s::text[])[e.entry]
        AND q.lease_expires_at > clock_timestamp()
"""
LEASED_ENTRIES: Final = f"{_LEASED} ORDER BY q.id"
# Those that may end: a workflow's job only with its run, which an earlier statement has locked.
ENDING_ENTRIES: Final = f"{_LEASED} AND {IS_RUN_LOCKED} ORDER BY q.id"

# The job's row `q` and the ended attempt `a` of each miss `e`, where there are such. A limit, so
# that each is looked up by its key, whatever the planner thinks of the tables.
ROW_AND_ATTEMPT: Final = """
    LEFT JOIN LATERAL (
        SELECT j.* FROM runledger.job_queue AS j WHERE j.id = e.job_id LIMIT 1
    ) AS q ON true
    LEFT JOIN LATERAL (
        SELECT t.*
        FROM runledger.job_attempts AS t
        WHERE t.job_id = e.job_id AND t.claim_number = e.claim_number
        LIMIT 1
    ) AS a ON true
"""

# Of an entry `e` that a write missed, and its row: the lease is live, so somebody held the row.
IS_LIVE_LEASE: Final = """(
    q.status = 'LEASED'
    AND q.claim_number = e.claim_number
    AND q.worker_id = e.worker_id
    AND q.lease_expires_at > clock_timestamp()
)"""

# A batch of the engine never waits: a row held by somebody else is BUSY and comes again.
SKIP_LOCKED: Final = "FOR NO KEY UPDATE OF q SKIP LOCKED"
WAIT_FOR_LOCK: Final = "FOR NO KEY UPDATE OF q"

# Follows the CTE `locked`, which may have waited: the count has read all of it before the clock is
# read. `at` is the one instant of everything that the write stores.
CLOCK_AFTER_LOCKS: Final = """clock AS MATERIALIZED (
        SELECT clock_timestamp() AS at, count(*) AS locked_rows FROM locked
    )"""

# Whether a lease is live is decided by that clock, on the version of the row that the lock got. Of
# these rows nobody else can change one, so what the write stores besides is taken from here; but
# only for the ids that it returns, since a trigger of the host may have kept it from a row.
LIVE_ENTRIES: Final = f"""{CLOCK_AFTER_LOCKS}, live AS MATERIALIZED (
        SELECT l.*, c.at
        FROM locked AS l
        CROSS JOIN clock AS c
        WHERE l.lease_expires_at > c.at
    )"""


def lease_parameters(leases: Sequence[JobLease]) -> dict[str, object]:
    """Return the arrays that every owner write starts with."""
    return {
        "job_ids": [lease.job_id for lease in leases],
        "claim_numbers": [lease.claim_number for lease in leases],
        "worker_ids": [lease.worker_id for lease in leases],
    }


def lease_owner_mismatch() -> QueryError:
    """Return the refusal of a write by who is not, or no longer, the live lease's owner."""
    return refusal(
        ErrorCategory.FORBIDDEN,
        "job.lease_owner_mismatch",
        "the job is not leased by this worker and claim",
    )


def checked_leases(leases: object) -> list[JobLease]:
    """Return a batch's leases as a list, each of another job.

    Raises:
        ValidationError: `input.wrong_type`, or `input.duplicate_entry`.
    """
    found = check_kinds(leases, JobLease, field="leases")
    require_distinct(found)
    return found


def require_distinct(leases: Sequence[JobLease]) -> None:
    """Refuse a batch that names one job twice: a row is written once per statement.

    Raises:
        ValidationError: `input.duplicate_entry` with the index of the second.
    """
    seen: set[object] = set()
    for index, lease in enumerate(leases):
        if lease.job_id in seen:
            raise refusal(
                ErrorCategory.VALIDATION,
                "input.duplicate_entry",
                "a batch names the same job twice",
                field="leases",
                entry_index=index,
            )
        seen.add(lease.job_id)


def require_lease_ttl(lease_ttl_seconds: int) -> int:
    """Return the length of a lease in seconds, if it can be one.

    Raises:
        ValidationError: `job.invalid_lease_duration`, or `input.wrong_type`.
    """
    return _require_positive(
        lease_ttl_seconds,
        field="lease_ttl_seconds",
        code="job.invalid_lease_duration",
        client_message="a lease lasts 1 second or more",
    )


def require_retry_delay(retry_delay_ms: int) -> int:
    """Return the delay of a retry in milliseconds, if it can be one.

    Raises:
        ValidationError: `job.invalid_retry_delay`, or `input.wrong_type`.
    """
    return _require_positive(
        retry_delay_ms,
        field="retry_delay_ms",
        code="job.invalid_retry_delay",
        client_message="a retry needs a delay of 1 ms or more",
    )


def _require_positive(value: int, *, field: str, code: str, client_message: str) -> int:
    number = check_int(value, field=field, minimum=-INT64_MAX, maximum=INT64_MAX)
    if not 1 <= number <= INT32_MAX:
        raise refusal(ErrorCategory.VALIDATION, code, client_message, field=field)
    return number
