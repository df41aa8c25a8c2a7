"""One arm for each status that is chosen, in the order of the index that has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, literal_column, not_

from runledger_core import JobStatus

from .filters import JobFilter, job_conditions
from .tables import job_queue

RARE: Final = frozenset({JobStatus.DEAD_LETTERED, JobStatus.CANCELED})
_IN_RARE_INDEX: Final = "status IN ('DEAD_LETTERED', 'CANCELED')"


@dataclass(frozen=True, slots=True)
class Arm:
    """Rows of one status, or of half of one.

    Attributes:
        order: Of an index that has these rows and few others; empty if there is none.
    """

    conditions: list[ColumnElement[bool]]
    order: list[ColumnElement[Any]]


def arms_of(chosen: JobFilter) -> list[Arm]:
    """Return the arms that together are what a filter with statuses chooses."""
    rest = job_conditions(replace(chosen, status=None))
    return [
        Arm([*rest, *arm.conditions], arm.order)
        for status in chosen.statuses or ()
        for arm in _arms_of_status(status)
    ]


def _arms_of_status(status: JobStatus) -> list[Arm]:
    column = job_queue.c
    # Constants, since the planner proves a partial index usable from constants only.
    value = f"'{status.value}'"
    has_status: ColumnElement[bool] = column.status == literal_column(value)
    if status in RARE:
        # A status that is a range and no constant keeps the planner from walking the primary key
        # for the order by id.
        in_index: ColumnElement[bool] = literal_column(_IN_RARE_INDEX)
        between = column.status.between(literal_column(value), literal_column(value))
        return [Arm([in_index, between], [column.status, column.id])]
    if status is JobStatus.PENDING:
        rank = column.priority.bitwise_not()
        return [
            Arm(
                [has_status, column.is_ready],
                [column.job_type, rank, column.next_run_at, column.id],
            ),
            Arm([has_status, not_(column.is_ready)], [column.next_run_at]),
        ]
    return [Arm([has_status], [])]
