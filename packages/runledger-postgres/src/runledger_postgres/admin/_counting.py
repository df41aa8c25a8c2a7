"""What the counts of jobs and of workflow runs share: rows, caps, and counting no further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple

from sqlalchemy import ColumnElement, Select, Table, func, select

from runledger_core import check_int
from runledger_core.limits import INT32_MAX

from .._database import Database
from .._scope import IN_SCOPE
from ._select import fetch


class BoundedCount(NamedTuple):
    """A count that went no further than a cap."""

    total: int
    """At most the cap."""
    is_exact: bool
    """False if there are more."""


@dataclass(frozen=True, slots=True)
class CountRow:
    """A number of rows."""

    count: int


def check_cap(cap: object) -> int:
    """Return where counting stops.

    Raises:
        ValidationError: `input.wrong_type` or `input.out_of_range`.
    """
    return check_int(cap, field="cap", minimum=1, maximum=INT32_MAX)


def bounded(counted: int, cap: int) -> BoundedCount:
    """Return a count of rows, of which one beyond the cap was counted if there are more."""
    return BoundedCount(min(counted, cap), is_exact=counted <= cap)


def count_all(db: Database, table: Table, *conditions: ColumnElement[bool]) -> int:
    """Return how many rows of a table meet all conditions."""
    counted = select(func.count().label("count")).select_from(table).where(*conditions)
    return fetch(db, counted, CountRow)[0].count


def count_up_to(db: Database, rows: Select[Any], cap: int) -> BoundedCount:
    """Return how many rows a SELECT has, if it ends one row beyond the cap."""
    counted = select(func.count().label("count")).select_from(rows.subquery())
    return bounded(fetch(db, counted, CountRow)[0].count, cap)


def in_scope_up_to_cap(
    table: LiteralString, condition: LiteralString, *, order: LiteralString | None = None
) -> LiteralString:
    """Return a subquery: rows in scope, aliased q, no further than one beyond `%(cap)s`.

    Args:
        table: Its name in the schema.
        condition: What the rows meet besides.
        order: Of an index that has these rows; without it the planner may look for a few rows in
            the whole table. None if no index has them.
    """
    ordered = "" if order is None else f"ORDER BY {order}"
    return f"""(
        SELECT FROM runledger.{table} AS q
        WHERE {condition} AND {IN_SCOPE}
        {ordered}
        LIMIT %(cap)s::int8 + 1
    )"""
