"""Pruning: runs that ended long ago are deleted with their jobs and all history of these."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString, NamedTuple
from uuid import UUID

from runledger_core import Scope, ValidationError, check_choice, check_int, codes
from runledger_core.limits import INT32_MAX
from runledger_core.workflows import WorkflowRunStatus

from .._arguments import check_kind, check_list
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run, transaction
from .._whole import whole_or_error
from ..errors import QueryError

_logger = logging.getLogger(__name__)

TERMINAL_RUN_STATUSES: Final = tuple(status for status in WorkflowRunStatus if status.is_terminal)

# A completion that is repeated after a lost reply is told from a stranger's by the history.
_LEAST_AGE: Final = timedelta(days=1)
_GREATEST_AGE: Final = timedelta(days=36_500)
_DEFAULT_LIMIT: Final = 1_000
# Runs of one transaction; each may have thousands of steps.
_BATCH: Final = 100
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
# Far below deadlock_timeout, so that we give way to a host and not he to us; above the 20 ms after
# which a VACUUM that truncates a table gives way to us.
_LOCK_TIMEOUT_MS: Final = 50
# Of one object, not of the server. A lock that is not to be had is of the run that needs it, and so
# is a state that a trigger does not accept (55000). What 55000 says of a table is refused without a
# run, too, and so found out.
_OBJECT_NOT_READY: Final = "55"


class _Reason(NamedTuple):
    """Why a run was not deleted."""

    code: str
    sqlstate: str | None
    constraint: str | None


@dataclass(frozen=True, slots=True)
class PrunableRunRow:
    """A run that is old enough."""

    id: UUID
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class HeldRunRow:
    """A run that we hold."""

    id: UUID


@dataclass(frozen=True, slots=True)
class PrunedRow:
    """How many runs were deleted."""

    runs: int
    is_whole: bool


# By idx_workflow_runs_finished, which the place of the last batch lets begin behind what was left.
# Only runs that have ended have an end.
FIND_PRUNABLE_RUNS: Final = Statement(
    f"""
    SELECT q.id, q.finished_at
    FROM runledger.workflow_runs AS q
    WHERE q.finished_at < statement_timestamp() - %(older_than)s::interval
        AND (q.finished_at, q.id) > (%(after_at)s::timestamptz, %(after_id)s::uuid)
        AND q.status::text = ANY (%(statuses)s::text[])
        AND {IN_SCOPE}
    ORDER BY q.finished_at, q.id
    LIMIT %(limit)s::int8
    """,
    PrunableRunRow,
)

# By a statement of its own: what a worker stored before the lock is seen by the next one only.
TRY_RUNS: Final = Statement(
    """
    SELECT q.id
    FROM runledger.workflow_runs AS q
    WHERE q.id = ANY (%(run_ids)s::uuid[])
    ORDER BY q.id
    FOR UPDATE SKIP LOCKED
    """,
    HeldRunRow,
)


def _all_deleted(deleted: LiteralString, table: LiteralString) -> LiteralString:
    return f"""(SELECT count(*) FROM {deleted}) = (
        SELECT count(*)
        FROM run_ids AS i
        JOIN runledger.{table} AS o ON o.workflow_run_id = ANY (i.ids)
    )"""


# The history of jobs is not counted: no other row depends on it.
_IS_WHOLE: Final = f"""
    (SELECT count(*) FROM runs) = (SELECT count(*) FROM pruned)
    AND {_all_deleted("steps", "workflow_steps")}
    AND {_all_deleted("edges", "workflow_step_dependencies")}
    AND {_all_deleted("mutations", "workflow_run_mutations")}
    AND (SELECT count(*) FROM queue) = (SELECT count(*) FROM job_ids AS i, unnest(i.ids))
"""

# A run is left if a worker has one of its jobs, or if somebody holds one. That a worker has it is
# read from the row that the lock got: a claim may have committed since the snapshot was taken. IS
# TRUE makes of IN a look into a hash table, whatever the planner thinks of the tables.
PRUNE_WORKFLOW_RUNS: Final = Statement(
    f"""
    WITH jobs AS MATERIALIZED (
        SELECT q.id, q.workflow_run_id, q.status
        FROM runledger.job_queue AS q
        WHERE q.workflow_run_id = ANY (%(run_ids)s::uuid[])
        ORDER BY q.id
        FOR UPDATE SKIP LOCKED
    ), kept AS MATERIALIZED (
        SELECT j.workflow_run_id AS id FROM jobs AS j WHERE j.status = 'LEASED'
        UNION
        SELECT q.workflow_run_id
        FROM runledger.job_queue AS q
        WHERE q.workflow_run_id = ANY (%(run_ids)s::uuid[])
            AND (q.id IN (SELECT j.id FROM jobs AS j)) IS NOT TRUE
    ), pruned AS MATERIALIZED (
        SELECT r.id FROM unnest(%(run_ids)s::uuid[]) AS r(id)
        EXCEPT
        SELECT k.id FROM kept AS k
    ), run_ids AS MATERIALIZED (
        SELECT array_agg(p.id) AS ids FROM pruned AS p
    ), job_ids AS MATERIALIZED (
        SELECT array_agg(j.id) AS ids
        FROM jobs AS j
        WHERE (j.workflow_run_id IN (SELECT p.id FROM pruned AS p)) IS TRUE
    ), logs AS (
        DELETE FROM runledger.job_logs AS d USING job_ids AS i WHERE d.job_id = ANY (i.ids)
    ), events AS (
        DELETE FROM runledger.job_events AS d USING job_ids AS i WHERE d.job_id = ANY (i.ids)
    ), attempts AS (
        DELETE FROM runledger.job_attempts AS d USING job_ids AS i WHERE d.job_id = ANY (i.ids)
    ), dead_letters AS (
        DELETE FROM runledger.job_dead_letters AS d USING job_ids AS i WHERE d.job_id = ANY (i.ids)
    ), queue AS (
        DELETE FROM runledger.job_queue AS d USING job_ids AS i WHERE d.id = ANY (i.ids)
        RETURNING d.id
    ), edges AS (
        DELETE FROM runledger.workflow_step_dependencies AS d USING run_ids AS i
        WHERE d.workflow_run_id = ANY (i.ids)
        RETURNING d.workflow_run_id
    ), steps AS (
        DELETE FROM runledger.workflow_steps AS d USING run_ids AS i
        WHERE d.workflow_run_id = ANY (i.ids)
        RETURNING d.workflow_run_id
    ), mutations AS (
        DELETE FROM runledger.workflow_run_mutations AS d USING run_ids AS i
        WHERE d.workflow_run_id = ANY (i.ids)
        RETURNING d.workflow_run_id
    ), runs AS (
        DELETE FROM runledger.workflow_runs AS d USING run_ids AS i
        WHERE d.id = ANY (i.ids)
        RETURNING d.id
    )
    SELECT (SELECT count(*) FROM runs) AS runs, {whole_or_error(_IS_WHOLE)} AS is_whole
    """,
    PrunedRow,
)


def prune_workflow_runs(
    db: Database,
    *,
    older_than: timedelta,
    scope: Scope,
    statuses: Collection[WorkflowRunStatus] = TERMINAL_RUN_STATUSES,
    limit: int = _DEFAULT_LIMIT,
) -> int:
    """Delete runs that ended long ago: steps, edges, jobs, and the jobs' history, logs and errors.

    The idempotency key of a deleted run is free again, and whoever waits for it learns that there
    is no such run. A run that another transaction holds is left for the next time, and so is one of
    whose jobs a worker has one, or another transaction. A run that the database refuses to delete
    is left whole: a row of yours refers to it, to a step or to a job of it, a trigger keeps a part
    of it or raises an error, or somebody holds a row that the delete comes to for more than 50 ms.
    A warning in the log tells how many are, and the most frequent reason; every call tries them
    again. Of the jobs' history alone a trigger may keep rows.

    Args:
        older_than: Least time since the end of a run, by the database's clock; a day or more.
        scope: Whose runs they may be.
        statuses: How they may have ended.
        limit: Most runs to delete, 1 or more, those that ended first before others.

    Returns:
        How many runs were deleted; fewer than `limit` if no more can be.

    Raises:
        ValidationError: `input.out_of_range` if `older_than` is less than a day, or if one of the
            `statuses` is that of a run that goes on, or another `input.*` code.
        UnavailableError: `db.lock_timeout` if another transaction holds a table of the schema,
            `db.serialization_failure`, `db.unavailable`, `db.outcome_unknown`; what was deleted
            before stays so.
        ForbiddenError: `db.permission_denied` if the role may not delete runs.

    Transaction: joins the caller's, in savepoints, or opens one for each 100 runs, and for each
        part of them that is tried again. In a joined one a deferred foreign key is looked at when
        the caller sets it immediate, or commits.
    """
    parameters = scope_parameters(scope) | {
        "older_than": _checked_age(older_than),
        "statuses": _checked_statuses(statuses),
    }
    check_int(limit, field="limit", minimum=1, maximum=INT32_MAX)
    pruned = 0
    left: Counter[_Reason] = Counter()
    place: dict[str, object] = {"after_at": _LONG_AGO, "after_id": UUID(int=0)}
    while pruned < limit:
        wanted = min(_BATCH, limit - pruned)
        find = Bound(FIND_PRUNABLE_RUNS, parameters | place | {"limit": wanted})
        found = run(db, find, lock_timeout_ms=_LOCK_TIMEOUT_MS)
        if found:
            pruned += _prune(db, [row.id for row in found], left)
        if len(found) < wanted:
            break
        place = {"after_at": found[-1].finished_at, "after_id": found[-1].id}
    if left:
        _tell(left)
    return pruned


def _prune(db: Database, run_ids: Sequence[UUID], left: Counter[_Reason]) -> int:
    """Delete runs, halves apart where one is refused; return how many are gone.

    Args:
        left: Gets the reason of each that is refused.
    """
    try:
        return _delete(db, run_ids)
    except QueryError as error:
        if not _is_of_a_run(error):
            raise
        reason = _Reason(error.code, error.sqlstate, error.constraint)
    if len(run_ids) > 1:
        middle = len(run_ids) // 2
        return _prune(db, run_ids[:middle], left) + _prune(db, run_ids[middle:], left)
    if not left:
        # What is refused without a run is no fault of one: a privilege that is missing, say.
        _delete(db, [])
    left[reason] += 1
    return 0


def _delete(db: Database, run_ids: Sequence[UUID]) -> int:
    """Delete those of the runs that nobody holds, all or none; return how many."""
    # Each try lets go of what it held: while it waited for a host, he may have waited for that.
    with transaction(db, lock_timeout_ms=_LOCK_TIMEOUT_MS) as work:
        held = work.fetch(Bound(TRY_RUNS, {"run_ids": list(run_ids)}))
        prune = Bound(PRUNE_WORKFLOW_RUNS, {"run_ids": [row.id for row in held]})
        row: PrunedRow = work.finish([prune])[0][0]
    return row.runs


def _tell(left: Counter[_Reason]) -> None:
    reason, _ = left.most_common(1)[0]
    _logger.warning(
        "workflow runs cannot be deleted now; they are left",
        extra={"runs": left.total(), **reason._asdict()},
    )


def _is_of_a_run(error: QueryError) -> bool:
    if error.sqlstate is None:
        return False
    return not error.is_transient or error.sqlstate[:2] == _OBJECT_NOT_READY


def _checked_age(older_than: timedelta) -> timedelta:
    age = check_kind(older_than, timedelta, field="older_than")
    if not _LEAST_AGE <= age <= _GREATEST_AGE:
        raise ValidationError(
            codes.INPUT_OUT_OF_RANGE,
            "older_than must be a day or more, and 100 years at most",
            field="older_than",
        )
    return age


def _checked_statuses(statuses: Collection[WorkflowRunStatus]) -> list[WorkflowRunStatus]:
    found: list[WorkflowRunStatus] = []
    for index, value in enumerate(check_list(statuses, field="statuses")):
        status = check_choice(value, field=f"statuses[{index}]", choices=WorkflowRunStatus)
        if not status.is_terminal:
            raise ValidationError(
                codes.INPUT_OUT_OF_RANGE,
                "only runs that have ended can be pruned",
                field=f"statuses[{index}]",
            )
        found.append(status)
    return found
