"""One run by its id, locked for a change of its steps, or the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final
from uuid import UUID

from runledger_core import ErrorCategory, Scope
from runledger_core.workflows import WorkflowRunStatus

from .._arguments import check_lock_timeout
from .._database import Database
from .._rows import Statement, column
from .._scope import IN_SCOPE, scope_parameters
from .._session import IS_READ_COMMITTED, Bound, Transaction, transaction
from ..errors import QueryError, refusal

_LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True)
class LockedRunRow:
    """A run that we hold, as it is now."""

    id: UUID
    _: KW_ONLY
    organization_id: UUID | None
    status: WorkflowRunStatus = column(WorkflowRunStatus)


@dataclass(frozen=True, slots=True)
class _IsolationRow:
    is_read_committed: bool


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A locked run, and what was read of it under the lock.

    Attributes:
        work: The transaction that holds it.
        run: The run.
        reads: The rows of each read.
    """

    work: Transaction
    run: LockedRunRow
    reads: list[list[Any]]


READ_ISOLATION: Final = Statement(f"SELECT {IS_READ_COMMITTED} AS is_read_committed", _IsolationRow)
# In a transaction with one snapshot for all of its statements nothing could be read that the lock
# was waited for: it is refused, and locks nothing.
LOCK_RUN: Final = Statement(
    f"""
    SELECT q.id, q.organization_id, q.status::text AS status
    FROM runledger.workflow_runs AS q
    WHERE q.id = %(run_id)s::uuid
        AND {IN_SCOPE}
        AND {IS_READ_COMMITTED}
    FOR NO KEY UPDATE
    """,
    LockedRunRow,
)


def lock_run(run_id: UUID, scope: Scope) -> Bound[LockedRunRow]:
    """Return the statement that `hold_run` locks a run with; no argument is refused after it."""
    return Bound(LOCK_RUN, {"run_id": run_id} | scope_parameters(scope))


def hold_run(
    work: Transaction,
    lock: Bound[LockedRunRow],
    *,
    reads: Sequence[Bound[Any]] = (),
    unsupported_isolation: Callable[[], QueryError],
) -> HeldRun:
    """Lock a run, by a statement of its own, and read behind that what depends on it.

    Args:
        work: Limits how long the lock is waited for.
        reads: Statements that are run once the lock is held, in the same trip.
        unsupported_isolation: Makes what is raised in a transaction stronger than READ COMMITTED.

    Raises:
        NotFoundError: `workflow.run_not_found` if no run of that id is in scope.
        UnavailableError: `db.lock_timeout`.
    """
    isolation, locked, *found = work.fetch_all([Bound(READ_ISOLATION), lock, *reads])
    if not isolation[0].is_read_committed:
        raise unsupported_isolation()
    if not locked:
        raise run_not_found()
    return HeldRun(work, locked[0], found)


@contextmanager
def holding_run(
    db: Database,
    run_id: UUID,
    *,
    scope: Scope,
    lock_timeout_ms: int,
    reads: Sequence[Bound[Any]],
    unsupported_isolation: Callable[[], QueryError],
) -> Generator[HeldRun]:
    """Hold a run for a block, in a transaction of its own or joined to the caller's.

    Raises:
        NotFoundError: `workflow.run_not_found` if no run of that id is in scope.
        ConflictError: `workflow.release_conflict` if a lock was not to be had in time. What was
            done here is undone, and a joined transaction goes on.
    """
    wait_ms = check_lock_timeout(lock_timeout_ms)
    lock = lock_run(run_id, scope)
    try:
        with transaction(db, lock_timeout_ms=wait_ms) as work:
            yield hold_run(work, lock, reads=reads, unsupported_isolation=unsupported_isolation)
    except QueryError as error:
        if error.sqlstate != _LOCK_NOT_AVAILABLE:
            raise
        raise _release_conflict() from error


def run_not_found(*, field: str = "run_id", entry_index: int | None = None) -> QueryError:
    """Return the refusal of a run that is absent, or not in scope."""
    return refusal(
        ErrorCategory.NOT_FOUND,
        "workflow.run_not_found",
        "no such workflow run in this scope",
        field=field,
        entry_index=entry_index,
    )


def _release_conflict() -> QueryError:
    return refusal(
        ErrorCategory.CONFLICT,
        "workflow.release_conflict",
        "another transaction holds the run; nothing was changed, retry",
    )
