"""Pages of a list that is shown newest first, by ids, which are time-ordered."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, asc, desc

from runledger_core import check_uuid

from .._paging import require_page

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class IdPage:
    """At most `limit` rows next to a cursor; those before one are read from the oldest on."""

    limit: int
    _: KW_ONLY
    after: UUID | None
    before: UUID | None

    def __post_init__(self) -> None:
        """Check the limit, then the cursor.

        Raises:
            ValidationError: `job.invalid_pagination`, or an `input.*` code for a cursor.
        """
        require_page(self.limit, after=self.after, before=self.before)
        for name in ("before", "after"):
            cursor = getattr(self, name)
            if cursor is not None:
                object.__setattr__(self, name, check_uuid(cursor, field=name))

    def bounds(self, key: ColumnElement[UUID]) -> list[ColumnElement[bool]]:
        """Return what the cursor demands of the ids of the page."""
        if self.before is not None:
            return [key > self.before]
        return [] if self.after is None else [key < self.after]

    def turn(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the column as a term of ORDER BY, in the direction in which the page is read."""
        return desc(column) if self.before is None else asc(column)

    def newest_first(self, rows: list[Row]) -> list[Row]:
        """Return the rows of the page in the order in which they are shown."""
        return rows if self.before is None else rows[::-1]
