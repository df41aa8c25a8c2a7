"""Which jobs a list shows and a count counts: one object for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Table, and_, false, literal_column, not_, or_

from runledger_core import (
    JobStatus,
    JobType,
    Scope,
    ScopeKind,
    check_choice,
    check_instant,
    check_text,
    check_uuid,
    current_limits,
    is_kind,
)

from .._arguments import check_kind, check_list
from .tables import job_queue

Status = TypeVar("Status", bound=StrEnum)

_INSTANTS: Final = ("created_from", "created_before", "updated_from", "updated_before")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Choose jobs; conditions that are None choose all, several must hold together.

    Attributes:
        scope: Whose jobs.
        status: One status or several; an empty sequence chooses nothing. Kept as a tuple.
        job_type: This type exactly.
        job_type_contains: Types with this text in their name, whatever its case; `%` and `_` stand
            for themselves.
        workflow_run_id: Jobs of this workflow run.
        worker_id: Jobs leased by this worker.
        created_from: Made at this instant or later.
        created_before: Made before this instant.
        updated_from: Last changed at this instant or later.
        updated_before: Last changed before this instant.
    """

    scope: Scope
    _: KW_ONLY
    status: JobStatus | Sequence[JobStatus] | None = None
    job_type: str | None = None
    job_type_contains: str | None = None
    workflow_run_id: UUID | None = None
    worker_id: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    updated_from: datetime | None = None
    updated_before: datetime | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: An `input.*` code that names the field.
        """
        check_kind(self.scope, Scope, field="scope")
        store, limits = object.__setattr__, current_limits()
        if self.status is not None:
            store(self, "status", chosen_statuses(self.status, JobStatus))
        if self.job_type is not None:
            store(self, "job_type", JobType(self.job_type))
        for name in ("job_type_contains", "worker_id"):
            text = getattr(self, name)
            if text is not None:
                characters = limits.identifier_characters
                store(self, name, check_text(text, field=name, max_characters=characters))
        if self.workflow_run_id is not None:
            run_id = check_uuid(self.workflow_run_id, field="workflow_run_id")
            store(self, "workflow_run_id", run_id)
        for name in _INSTANTS:
            if getattr(self, name) is not None:
                store(self, name, check_instant(getattr(self, name), field=name))

    @property
    def statuses(self) -> tuple[JobStatus, ...] | None:
        """The chosen statuses, each once; None for all."""
        return None if self.status is None else chosen_statuses(self.status, JobStatus)


def chosen_statuses(status: Status | Sequence[Status], choices: type[Status]) -> tuple[Status, ...]:
    """Return one status or several as a tuple, each once.

    Raises:
        ValidationError: `input.wrong_type` or `input.out_of_range`.
    """
    # A StrEnum is a str, which is a sequence.
    given = (status,) if is_kind(status, str) else check_list(status, field="status")
    return tuple(dict.fromkeys(check_choice(one, field="status", choices=choices) for one in given))


def job_conditions(chosen: JobFilter) -> list[ColumnElement[bool]]:
    """Return what a filter demands of a row of `job_queue`."""
    column = job_queue.c
    conditions = scope_conditions(job_queue, chosen.scope)
    if chosen.statuses is not None:
        conditions.append(or_(false(), *(_has_status(status) for status in chosen.statuses)))
    if chosen.job_type is not None:
        conditions.append(column.job_type == chosen.job_type)
    if chosen.job_type_contains is not None:
        conditions.append(column.job_type.icontains(chosen.job_type_contains, autoescape=True))
    if chosen.workflow_run_id is not None:
        conditions.append(column.workflow_run_id == chosen.workflow_run_id)
    if chosen.worker_id is not None:
        # Only a leased job has a worker, and leased rows have an index of their own.
        conditions += [_has_status(JobStatus.LEASED), column.worker_id == chosen.worker_id]
    if chosen.created_from is not None:
        conditions.append(column.created_at >= chosen.created_from)
    if chosen.created_before is not None:
        conditions.append(column.created_at < chosen.created_before)
    if chosen.updated_from is not None:
        conditions.append(column.updated_at >= chosen.updated_from)
    if chosen.updated_before is not None:
        conditions.append(column.updated_at < chosen.updated_before)
    return conditions


def scope_conditions(table: Table, scope: Scope) -> list[ColumnElement[bool]]:
    """Return what a scope demands of a row of a table with an organization."""
    owner: ColumnElement[Any] = table.c.organization_id
    match scope.kind:
        case ScopeKind.ADMIN:
            return []
        case ScopeKind.GLOBAL:
            return [owner.is_(None)]
        case ScopeKind.ORGANIZATION:
            return [owner == scope.organization_id]


def _has_status(status: JobStatus) -> ColumnElement[bool]:
    # A constant: the planner proves a partial index usable from constants only, and a parameter is
    # none in a generic plan. Members of an enumeration are safe to write out.
    condition: ColumnElement[bool] = job_queue.c.status == literal_column(f"'{status.value}'")
    if status is not JobStatus.PENDING:
        return condition
    # Both halves of the pending rows have an index, the whole has none.
    ready: ColumnElement[bool] = job_queue.c.is_ready
    return or_(and_(condition, ready), and_(condition, not_(ready)))
