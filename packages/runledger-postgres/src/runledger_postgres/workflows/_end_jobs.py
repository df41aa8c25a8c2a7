"""Ends of jobs: their runs are locked, the jobs end, their steps are settled; in two trips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from runledger_core import ErrorCategory, Scope

from .._database import Database
from .._rows import Row
from .._session import Bound, Transaction, transaction
from ..errors import refusal
from ._locks import lock_runs_of_jobs
from ._reached import reach_from_jobs
from ._settle import settle


def end_jobs(
    db: Database,
    bound: Bound[Row],
    job_ids: Sequence[UUID],
    *,
    scope: Scope = Scope.ADMIN,
    lock_timeout_ms: int | None = None,
) -> list[Row]:
    """Run a statement that ends jobs, and settle the steps of those that are workflows'.

    Args:
        job_ids: All jobs that it may end.
        scope: Whose jobs it may end.
        lock_timeout_ms: Longest wait for a locked row; None leaves out jobs whose runs others hold.

    Returns:
        The rows of the statement.

    Raises:
        ValidationError: `workflow.terminal_completion_unsupported_isolation` if one of the jobs is
            a workflow's and the transaction is stronger than READ COMMITTED.
        InternalError: `workflow.internal_state` if what is stored of a run contradicts itself.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    return end_jobs_and_read(db, bound, job_ids, scope=scope, lock_timeout_ms=lock_timeout_ms)[0]


def end_jobs_and_read(
    db: Database,
    bound: Bound[Row],
    job_ids: Sequence[UUID],
    *,
    scope: Scope = Scope.ADMIN,
    lock_timeout_ms: int | None = None,
    reads: Sequence[Bound[Any]] = (),
) -> tuple[list[Row], list[list[Any]]]:
    """Do the same, and read something before others can change it.

    A row of those reads that Python cannot decode undoes nothing.
    """
    with transaction(db, savepoint=True, lock_timeout_ms=lock_timeout_ms) as work:
        (rows,), found = end_and_settle(
            work, [bound], job_ids, waits=lock_timeout_ms is not None, scope=scope, after=reads
        )
    return rows, found


def end_and_settle(
    work: Transaction,
    ends: Sequence[Bound[Any]],
    job_ids: Sequence[UUID],
    *,
    waits: bool,
    scope: Scope = Scope.ADMIN,
    before: Sequence[Bound[Any]] = (),
    after: Sequence[Bound[Any]] = (),
) -> tuple[list[list[Any]], list[list[Any]]]:
    """End jobs and the steps that they are of, in two trips, the second of which commits.

    Args:
        ends: Statements that end jobs.
        job_ids: All jobs that they may end.
        waits: Wait for runs that others hold, instead of leaving their jobs out.
        before: Statements that go out before the first lock.
        after: Statements that see what the ends have released.

    Returns:
        The rows of `ends`, and those of `after`.

    Raises:
        ValidationError, InternalError: As `end_jobs`.
    """
    lock = lock_runs_of_jobs(job_ids, waits=waits, scope=scope)
    rows = work.fetch_all([*before, lock, *ends, reach_from_jobs(job_ids)])
    (locked,), *ended, reached = rows[len(before) :]
    if locked.is_unsupported:
        raise refusal(
            ErrorCategory.VALIDATION,
            "workflow.terminal_completion_unsupported_isolation",
            "the end of a workflow's job needs a READ COMMITTED transaction",
            field="db",
        )
    writes = settle(work, reached)
    found = work.finish([*writes, *after])
    return ended, found[len(writes) :]
