"""Verification of runs: what is stored of them is compared with what it follows from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final
from uuid import UUID

from runledger_core import ErrorCategory, Scope, check_bool, check_int

from .._arguments import check_lock_timeout, check_uuids
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, Transaction, run, transaction
from ..errors import QueryError, QueryNotFoundError, refusal
from ..workflows._held_run import hold_run, lock_run, run_not_found
from ..workflows._mend import mend_run
from ..workflows._verify import DifferenceRow, Mend, WorkflowDifference, find_differences
from ._cancel import CanceledRow
from ._canceling import COUNT_NOTIFIED, cancel_open_jobs

_MAX_RUNS: Final = 1_000
_DEFAULT_RUNS: Final = 100
# Runs of one read.
_BATCH: Final = 50
# What is put right may show what follows from it; so often a run is looked at again at most.
_ROUNDS: Final = 10
_FIRST: Final = UUID(int=0)
# Somebody holds a row of the run or of a job, or a trigger of the host's took too long.
_OF_ITS_ROWS: Final = frozenset({"db.lock_timeout", "db.object_not_ready", "db.statement_timeout"})


@dataclass(frozen=True, slots=True)
class RunIdRow:
    """A run in scope."""

    id: UUID


FIND_RUNS: Final = Statement(
    f"""
    SELECT q.id
    FROM runledger.workflow_runs AS q
    WHERE q.id = ANY (%(run_ids)s::uuid[]) AND {IN_SCOPE}
    """,
    RunIdRow,
)
LIST_RUNS: Final = Statement(
    f"""
    SELECT q.id
    FROM runledger.workflow_runs AS q
    WHERE q.id > %(after)s::uuid AND {IN_SCOPE}
    ORDER BY q.id
    LIMIT %(limit)s::int8
    """,
    RunIdRow,
)
CANCEL_LEFT_JOBS: Final = Statement(
    f"""
    {cancel_open_jobs("q.id = ANY (%(job_ids)s::uuid[])")}
    SELECT l.id AS job_id, ({COUNT_NOTIFIED}) AS notified FROM written AS l
    """,
    CanceledRow,
)


def verify_workflow_runs(
    db: Database,
    *,
    scope: Scope,
    run_ids: Sequence[UUID] | None = None,
    limit: int = _DEFAULT_RUNS,
    repair: bool = False,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> list[WorkflowDifference]:
    """Compare what is stored of runs with what follows from edges, steps and jobs.

    No run of the engine's making differs, whatever is under way. Runs are read in batches, oldest
    first, without a lock; all runs in scope take as long as they are many.

    Args:
        scope: Whose runs they may be.
        run_ids: Runs to look at; None for all in scope.
        limit: Most runs that differ, 1 to 1,000; the rest is not looked at.
        repair: Put right what differs, run by run: steps end as their jobs did, with all that
            follows, steps that nothing holds back are released or canceled, counters and statuses
            are counted anew, and jobs of a canceled run are canceled. What keeps one run from that
            keeps no other.
        lock_timeout_ms: Longest wait for the row of a run to repair, or of one of its jobs, in
            milliseconds.

    Returns:
        All differences of the runs that differ. With `repair` those that were found under the
        run's lock; a released step whose job was deleted cannot be repaired. If the database
        refuses a repair, as a trigger of yours or a row that stays locked may, the run is left as
        it is, and its differences are those of the read and have the error.

    Raises:
        NotFoundError: `workflow.run_not_found`, with `entry_index`, if one of `run_ids` is not in
            scope.
        ValidationError: `workflow.terminal_completion_unsupported_isolation` for a repair outside
            READ COMMITTED, or an `input.*` code that names the argument.
        UnavailableError: `db.serialization_failure`, `db.unavailable`, `db.outcome_unknown`; what
            was repaired before stays so.

    Transaction: joins the caller's, each repair inside a savepoint, or opens one for each batch,
        and one for each repair. A repair locks the run.
    """
    wait_ms = check_lock_timeout(lock_timeout_ms)
    check_int(limit, field="limit", minimum=1, maximum=_MAX_RUNS)
    check_bool(repair, field="repair")
    parameters = scope_parameters(scope)
    wanted = None if run_ids is None else check_uuids(run_ids, field="run_ids")
    differing: dict[UUID, list[WorkflowDifference]] = {}
    for batch in _batches(db, wanted, parameters):
        rows = run(db, find_differences(batch))
        for run_id, found in groupby(rows, lambda row: row.run_id):
            differences = [_difference(row) for row in found]
            if repair:
                differences = _repair(db, run_id, scope, differences, wait_ms=wait_ms)
            if differences:
                differing[run_id] = differences
            if len(differing) == limit:
                return _all(differing)
    return _all(differing)


def _all(differing: dict[UUID, list[WorkflowDifference]]) -> list[WorkflowDifference]:
    return [difference for found in differing.values() for difference in found]


def _batches(
    db: Database, wanted: list[UUID] | None, scope: dict[str, object]
) -> Iterator[list[UUID]]:
    if wanted is not None:
        known = {row.id for row in run(db, Bound(FIND_RUNS, {"run_ids": wanted} | scope))}
        for index, run_id in enumerate(wanted):
            if run_id not in known:
                raise run_not_found(field="run_ids", entry_index=index)
        in_order = sorted(known)
        yield from (in_order[at : at + _BATCH] for at in range(0, len(in_order), _BATCH))
        return
    after = _FIRST
    while rows := run(db, Bound(LIST_RUNS, {"after": after, "limit": _BATCH} | scope)):
        yield [row.id for row in rows]
        after = rows[-1].id


def _repair(
    db: Database, run_id: UUID, scope: Scope, read: Sequence[WorkflowDifference], *, wait_ms: int
) -> list[WorkflowDifference]:
    """Repair a run; return what was found under its lock, or what was read and why it is left."""
    try:
        with transaction(db, savepoint=True, lock_timeout_ms=wait_ms) as work:
            return _mend_all(work, run_id, scope)
    except QueryNotFoundError:
        # Deleted since it was listed.
        return []
    except QueryError as error:
        if not _is_of_the_run(error):
            raise
        return [replace(difference, error=error) for difference in read]


def _is_of_the_run(error: QueryError) -> bool:
    # Not a refusal of ours, which all runs would meet, nor of the link or the server.
    if error.sqlstate is None:
        return False
    return not error.is_transient or error.code in _OF_ITS_ROWS


def _mend_all(work: Transaction, run_id: UUID, scope: Scope) -> list[WorkflowDifference]:
    find = find_differences([run_id])
    lock = lock_run(run_id, scope)
    held = hold_run(work, lock, reads=[find], unsupported_isolation=_unsupported_isolation)
    left: list[DifferenceRow] = held.reads[0]
    found: dict[tuple[UUID | None, UUID | None, str], DifferenceRow] = {}
    for _ in range(_ROUNDS):
        found = {_place(row): row for row in left} | found
        if not any(row.mend for row in left):
            break
        _mend(work, run_id, left)
        left = work.fetch(find)
    remaining = {_place(row) for row in left}
    return [_difference(row, is_repaired=place not in remaining) for place, row in found.items()]


def _mend(work: Transaction, run_id: UUID, left: Sequence[DifferenceRow]) -> None:
    to_cancel = [row.job_id for row in left if row.mend is Mend.CANCEL_JOB]
    if to_cancel:
        work.fetch(Bound(CANCEL_LEFT_JOBS, {"job_ids": to_cancel, "reason": None}))
    mend_run(work, run_id, left)


def _place(row: DifferenceRow) -> tuple[UUID | None, UUID | None, str]:
    # A job that no step has is told apart by its own id.
    return (row.step_id, None if row.step_id else row.job_id, row.field)


def _difference(row: DifferenceRow, *, is_repaired: bool = False) -> WorkflowDifference:
    return WorkflowDifference(
        row.run_id,
        row.step_key,
        field=row.field,
        stored=row.stored,
        expected=row.expected,
        is_repaired=is_repaired,
    )


def _unsupported_isolation() -> QueryError:
    return refusal(
        ErrorCategory.VALIDATION,
        "workflow.terminal_completion_unsupported_isolation",
        "the repair of a run needs a READ COMMITTED transaction",
        field="db",
    )
