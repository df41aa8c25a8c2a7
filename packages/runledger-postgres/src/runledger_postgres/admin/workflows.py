"""Lists and counts of workflow runs.

Runs have an index by id and one by status and id. A page of all statuses walks the first, a page of
chosen ones has an arm for each in the second; a count of chosen ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, LiteralString
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    SelectBase,
    false,
    literal,
    literal_column,
    or_,
    select,
    true,
    union_all,
)

from runledger_core import Scope
from runledger_core.workflows import WorkflowRunStatus

from .._arguments import check_kind
from .._database import Database
from .._rows import Statement, column
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ..workflows import WorkflowRunSummary
from ._counting import (
    BoundedCount,
    bounded,
    check_cap,
    count_all,
    count_up_to,
    in_scope_up_to_cap,
)
from ._pages import IdPage
from ._select import fetch
from .tables import workflow_runs
from .workflow_filters import WorkflowRunFilter, conditions_but_status

_COLUMNS: Final = [workflow_runs.c[field.name] for field in fields(WorkflowRunSummary)]


@dataclass(frozen=True, slots=True)
class RunStatusCountRow:
    """A number of runs of one status."""

    status: WorkflowRunStatus = column(WorkflowRunStatus)
    count: int = 0


COUNT_WORKFLOW_RUNS_BY_STATUS: Final = Statement(
    f"""
    SELECT q.status, count(*) AS count
    FROM runledger.workflow_runs AS q
    WHERE {IN_SCOPE}
    GROUP BY q.status
    """,
    RunStatusCountRow,
)


def _count_status(status: LiteralString) -> LiteralString:
    # A status that is a range and no constant keeps the planner from the order by id alone.
    runs = in_scope_up_to_cap(
        "workflow_runs", f"q.status BETWEEN '{status}' AND '{status}'", order="q.status, q.id"
    )
    return f"SELECT '{status}' AS status, count(*) AS count FROM {runs} AS capped"


COUNT_WORKFLOW_RUNS_BY_STATUS_BOUNDED: Final = Statement(
    f"""
    {_count_status("RUNNING")}
    UNION ALL {_count_status("WAITING_FOR_EXTERNAL")}
    UNION ALL {_count_status("SUCCEEDED")}
    UNION ALL {_count_status("COMPLETED_WITH_ERRORS")}
    UNION ALL {_count_status("CANCELED")}
    """,
    RunStatusCountRow,
)


def list_workflow_runs(
    db: Database,
    chosen: WorkflowRunFilter,
    *,
    limit: int = 100,
    after: UUID | None = None,
    before: UUID | None = None,
) -> list[WorkflowRunSummary]:
    """Return one page of runs without their bodies, newest first.

    Args:
        chosen: Which runs.
        limit: Most runs, 1 to 1,000.
        after: Id of the run before the page, for older ones; None for the first page.
        before: Id of the run behind the page, for newer ones.

    Returns:
        At most `limit` runs, those next to the cursor, by descending id; ids are time-ordered.

    Raises:
        ValidationError: `job.invalid_pagination`, or an `input.*` code for filter or cursor.

    Transaction: joins the caller's or opens one.
    """
    check_kind(chosen, WorkflowRunFilter, field="chosen")
    page = IdPage(limit, after=after, before=before)
    return page.newest_first(fetch(db, _select_page(chosen, page), WorkflowRunSummary))


def count_workflow_runs(db: Database, chosen: WorkflowRunFilter) -> int:
    """Return how many runs a filter chooses, exactly; reads all of them.

    Raises:
        ValidationError: `input.wrong_type`.

    Transaction: joins the caller's or opens one.
    """
    check_kind(chosen, WorkflowRunFilter, field="chosen")
    conditions = [*conditions_but_status(chosen), _has_chosen_status(chosen)]
    return count_all(db, workflow_runs, *conditions)


def count_workflow_runs_bounded(
    db: Database, chosen: WorkflowRunFilter, *, cap: int
) -> BoundedCount:
    """Return how many runs a filter chooses, but count no further than `cap`.

    Args:
        chosen: Which runs.
        cap: Where counting stops, 1 or more.

    Raises:
        ValidationError: `input.out_of_range` or `input.wrong_type`.

    Transaction: joins the caller's or opens one.
    """
    check_kind(chosen, WorkflowRunFilter, field="chosen")
    cap = check_cap(cap)
    ones = (
        select(literal(1).label("one"))
        .select_from(workflow_runs)
        .where(*conditions_but_status(chosen))
        .limit(cap + 1)
    )
    if chosen.statuses:
        arms = _arms(ones, chosen.statuses, [workflow_runs.c.status, workflow_runs.c.id])
        ones = select(arms.subquery()).limit(cap + 1)
    else:
        ones = ones.where(_has_chosen_status(chosen))
    return count_up_to(db, ones, cap)


def count_workflow_runs_by_status(db: Database, *, scope: Scope) -> dict[WorkflowRunStatus, int]:
    """Return how many runs there are of each status, zeros included; reads all runs.

    Args:
        scope: Whose runs.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(COUNT_WORKFLOW_RUNS_BY_STATUS, scope_parameters(scope)))
    return dict.fromkeys(WorkflowRunStatus, 0) | {row.status: row.count for row in rows}


def count_workflow_runs_by_status_bounded(
    db: Database, *, scope: Scope, cap: int
) -> dict[WorkflowRunStatus, BoundedCount]:
    """Return how many runs there are of each status, but count none further than `cap`.

    Args:
        scope: Whose runs.
        cap: Where counting stops, 1 or more.

    Raises:
        ValidationError: `input.out_of_range`.

    Transaction: joins the caller's or opens one.
    """
    parameters = {"cap": check_cap(cap)} | scope_parameters(scope)
    rows = run(db, Bound(COUNT_WORKFLOW_RUNS_BY_STATUS_BOUNDED, parameters))
    counts = {row.status: row.count for row in rows}
    return {status: bounded(counts[status], cap) for status in WorkflowRunStatus}


def _select_page(chosen: WorkflowRunFilter, page: IdPage) -> SelectBase:
    bounds = page.bounds(workflow_runs.c.id)
    columns = select(*_COLUMNS).where(*bounds, *conditions_but_status(chosen)).limit(page.limit)
    if not chosen.statuses:
        return columns.where(_has_chosen_status(chosen)).order_by(page.turn(workflow_runs.c.id))
    order = [page.turn(workflow_runs.c.status), page.turn(workflow_runs.c.id)]
    some = _arms(columns, chosen.statuses, order).subquery()
    return select(*some.c).order_by(page.turn(some.c.id)).limit(page.limit)


def _arms(
    rows: Select[Any],
    statuses: Sequence[WorkflowRunStatus],
    order: Sequence[ColumnElement[Any]],
) -> CompoundSelect[Any]:
    # In the order of the index, with a status that is a range and no constant: otherwise the
    # planner may walk all runs by id for a few of a rare status.
    return union_all(*(rows.where(_has_status(one)).order_by(*order) for one in statuses))


def _has_chosen_status(chosen: WorkflowRunFilter) -> ColumnElement[bool]:
    if chosen.statuses is None:
        return true()
    return or_(false(), *map(_has_status, chosen.statuses))


def _has_status(status: WorkflowRunStatus) -> ColumnElement[bool]:
    # Written out, so that a generic plan knows it too; members of an enumeration are safe.
    value: ColumnElement[str] = literal_column(f"'{status.value}'")
    return workflow_runs.c.status.between(value, value)
