"""Workers that say they live: for eyes only, no claim and no recovery depends on these rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from runledger_core import (
    JobType,
    ValidationError,
    WorkerId,
    check_choice,
    check_int,
    check_text,
    codes,
    sanitize_text,
)
from runledger_core.limits import INT32_MAX

from ._arguments import check_kind, check_list
from ._database import Database
from ._rows import Statement, column
from ._session import Bound, run

_HOST_BYTES: Final = 255
_VERSION_BYTES: Final = 100
_DAY: Final = timedelta(days=1)
_MAX_LISTED: Final = 1_000


class WorkerState(StrEnum):
    """What a worker says of itself."""

    RUNNING = "RUNNING"
    """It claims jobs."""
    DRAINING = "DRAINING"
    """It ends the jobs it has and claims no more."""
    UNHEALTHY = "UNHEALTHY"
    """It claims no more until somebody looks: too many handlers are stuck."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself at every beat.

    Attributes:
        worker_id: Its name, unique among live workers.
        host: Its machine; cut to 255 bytes.
        pid: Its process.
        version: Of its runtime; cut to 100 bytes.
        job_types: The types it runs.
        concurrency: Jobs it runs at once.
        state: What it does.
    """

    worker_id: str
    host: str
    _: KW_ONLY
    pid: int
    version: str
    job_types: Sequence[str]
    concurrency: int
    state: WorkerState = WorkerState.RUNNING

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: An `input.*` code that names the field.
        """
        store = object.__setattr__
        store(self, "worker_id", WorkerId(self.worker_id))
        store(self, "host", sanitize_text(self.host, max_bytes=_HOST_BYTES))
        store(self, "version", sanitize_text(self.version, max_bytes=_VERSION_BYTES))
        job_types = check_list(self.job_types, field="job_types")
        store(self, "job_types", tuple(JobType(job_type) for job_type in job_types))
        check_int(self.pid, field="pid", minimum=0, maximum=INT32_MAX)
        check_int(self.concurrency, field="concurrency", minimum=0, maximum=INT32_MAX)
        store(self, "state", check_choice(self.state, field="state", choices=WorkerState))


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as it was last seen, by the database's clock."""

    worker_id: str
    host: str
    _: KW_ONLY
    pid: int
    version: str
    job_types: list[str]
    concurrency: int
    state: WorkerState = column(WorkerState)
    started_at: datetime
    last_seen_at: datetime
    seconds_since_seen: float


@dataclass(frozen=True, slots=True)
class TouchedWorkerRow:
    """A worker whose row was written or deleted."""

    worker_id: str


# The same name on another process is another worker, which started now.
RECORD_WORKER: Final = Statement(
    """
    INSERT INTO runledger.job_workers AS w (
        worker_id, host, pid, version, job_types, concurrency, state, started_at, last_seen_at
    )
    VALUES (
        %(worker_id)s::text, %(host)s::text, %(pid)s::int4, %(version)s::text,
        %(job_types)s::text[], %(concurrency)s::int4, %(state)s::text,
        clock_timestamp(), clock_timestamp()
    )
    ON CONFLICT (worker_id) DO UPDATE
    SET
        host = excluded.host,
        pid = excluded.pid,
        version = excluded.version,
        job_types = excluded.job_types,
        concurrency = excluded.concurrency,
        state = excluded.state,
        started_at = CASE
            WHEN (w.host, w.pid) = (excluded.host, excluded.pid) THEN w.started_at
            ELSE excluded.started_at
        END,
        last_seen_at = excluded.last_seen_at
    RETURNING w.worker_id
    """,
    TouchedWorkerRow,
)

REMOVE_WORKER: Final = Statement(
    """
    DELETE FROM runledger.job_workers AS w
    WHERE w.worker_id = %(worker_id)s::text
    RETURNING w.worker_id
    """,
    TouchedWorkerRow,
)

PRUNE_WORKERS: Final = Statement(
    """
    DELETE FROM runledger.job_workers AS w
    WHERE w.last_seen_at < clock_timestamp() - %(older_than)s::interval
    RETURNING w.worker_id
    """,
    TouchedWorkerRow,
)

LIST_WORKERS: Final = Statement(
    """
    SELECT
        w.worker_id, w.host, w.pid, w.version, w.job_types, w.concurrency, w.state, w.started_at,
        w.last_seen_at,
        greatest(extract(epoch FROM clock_timestamp() - w.last_seen_at), 0)::float8
            AS seconds_since_seen
    FROM runledger.job_workers AS w
    ORDER BY w.last_seen_at DESC, w.worker_id
    LIMIT %(limit)s::int8
    """,
    WorkerRecord,
)


def record_worker(
    db: Database, report: WorkerReport, *, lock_timeout_ms: int | None = None
) -> None:
    """Show a worker as alive now, in the state that it reports.

    Args:
        lock_timeout_ms: Longest wait for the worker's row, in milliseconds; None for as long as
            the server lets it.

    Raises:
        UnavailableError: `db.lock_timeout`; nothing is changed.

    Transaction: joins the caller's, inside a savepoint if the wait is bounded, or opens one.
    """
    check_kind(report, WorkerReport, field="report")
    parameters = {
        "worker_id": report.worker_id,
        "host": report.host,
        "pid": report.pid,
        "version": report.version,
        "job_types": list(report.job_types),
        "concurrency": report.concurrency,
        "state": report.state,
    }
    run(db, Bound(RECORD_WORKER, parameters), lock_timeout_ms=lock_timeout_ms)


def remove_worker(db: Database, worker_id: str) -> bool:
    """Forget a worker that stopped.

    Returns:
        Whether it was known.

    Transaction: joins the caller's or opens one.
    """
    check_text(worker_id, field="worker_id")
    return bool(run(db, Bound(REMOVE_WORKER, {"worker_id": worker_id})))


def prune_workers(db: Database, *, older_than: timedelta = _DAY) -> list[str]:
    """Forget workers that have not been seen for long: they died without a goodbye.

    Args:
        older_than: Least time since a worker was seen, by the database's clock; above zero.

    Returns:
        The ids of the workers forgotten, in no order.

    Raises:
        ValidationError: `input.out_of_range` if `older_than` is zero or negative, or
            `input.wrong_type`.

    Transaction: joins the caller's or opens one.
    """
    if check_kind(older_than, timedelta, field="older_than") <= timedelta(0):
        raise ValidationError(
            codes.INPUT_OUT_OF_RANGE, "older_than must be above zero", field="older_than"
        )
    rows = run(db, Bound(PRUNE_WORKERS, {"older_than": older_than}))
    return [row.worker_id for row in rows]


def list_workers(db: Database, *, limit: int = _MAX_LISTED) -> list[WorkerRecord]:
    """Return the known workers, last seen first.

    A worker that stopped cleanly is gone; one that died stays until it is pruned, with a growing
    `seconds_since_seen`. Workers belong to no organization.

    Args:
        limit: Most workers, 1 to 1,000.

    Raises:
        ValidationError: `input.out_of_range`.

    Transaction: joins the caller's or opens one.
    """
    check_int(limit, field="limit", minimum=1, maximum=_MAX_LISTED)
    return run(db, Bound(LIST_WORKERS, {"limit": limit}))
