"""The cutover to stored enqueue requests: once every keyed row has one, constraints say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .._rows import NoRow, Statement
from .._session import Bound, Transaction
from ._errors import LegacyIdempotencySnapshotsMissingError


@dataclass(frozen=True, slots=True)
class CutoverRow:
    """Whether both constraints are validated."""

    is_finished: bool


READ_CUTOVER: Final = Statement(
    """
    SELECT count(*) = 2 AS is_finished
    FROM pg_catalog.pg_constraint AS c
    WHERE c.convalidated
        AND (c.conrelid, c.conname) IN (
            (to_regclass('runledger.job_queue'), 'ck_job_queue_idempotency_enqueue_request'),
            (to_regclass('runledger.workflow_runs'), 'ck_workflow_runs_idempotency_enqueue_request')
        )
    """,
    CutoverRow,
)


@dataclass(frozen=True, slots=True)
class LegacyCountRow:
    """Keyed rows from before requests were stored."""

    job_count: int
    workflow_run_count: int


COUNT_LEGACY_ROWS: Final = Statement(
    """
    SELECT
        (
            SELECT count(*)
            FROM runledger.job_queue AS q
            WHERE q.idempotency_key IS NOT NULL AND q.enqueue_request IS NULL
        ) AS job_count,
        (
            SELECT count(*)
            FROM runledger.workflow_runs AS r
            WHERE r.idempotency_key IS NOT NULL AND r.enqueue_request IS NULL
        ) AS workflow_run_count
    """,
    LegacyCountRow,
)

VALIDATE_JOB_SNAPSHOTS: Final = Statement(
    """
    ALTER TABLE runledger.job_queue
        VALIDATE CONSTRAINT ck_job_queue_idempotency_enqueue_request
    """,
    NoRow,
)
VALIDATE_WORKFLOW_RUN_SNAPSHOTS: Final = Statement(
    """
    ALTER TABLE runledger.workflow_runs
        VALIDATE CONSTRAINT ck_workflow_runs_idempotency_enqueue_request
    """,
    NoRow,
)


def is_cutover_finished(work: Transaction) -> bool:
    """Tell whether both constraints are validated."""
    return work.fetch(Bound(READ_CUTOVER))[0].is_finished


def check_cutover(work: Transaction) -> None:
    """Refuse a schema with keyed rows that have no stored request.

    Constraints that are not validated yet do not matter: new rows obey them already.

    Raises:
        LegacyIdempotencySnapshotsMissingError: With the counts of both tables.
    """
    if not is_cutover_finished(work):
        _refuse_legacy_rows(work)


def finish_cutover(work: Transaction) -> None:
    """Validate both constraints, unless they are.

    Raises:
        LegacyIdempotencySnapshotsMissingError: With the counts of both tables.
    """
    if is_cutover_finished(work):
        return
    _refuse_legacy_rows(work)
    work.fetch(Bound(VALIDATE_JOB_SNAPSHOTS))
    work.fetch(Bound(VALIDATE_WORKFLOW_RUN_SNAPSHOTS))


def _refuse_legacy_rows(work: Transaction) -> None:
    (found,) = work.fetch(Bound(COUNT_LEGACY_ROWS))
    if found.job_count or found.workflow_run_count:
        raise LegacyIdempotencySnapshotsMissingError(found.job_count, found.workflow_run_count)
