"""Which workflow runs a list shows and a count counts: one object for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from sqlalchemy import ColumnElement

from runledger_core import Scope, WorkflowType, check_text, current_limits
from runledger_core.workflows import WorkflowRunStatus

from .._arguments import check_kind
from .filters import chosen_statuses, scope_conditions
from .tables import workflow_runs


@dataclass(frozen=True, slots=True)
class WorkflowRunFilter:
    """Choose runs; conditions that are None choose all, several must hold together.

    Attributes:
        scope: Whose runs.
        status: One status or several; an empty sequence chooses nothing. Kept as a tuple.
        workflow_type: This type exactly.
        workflow_type_contains: Types with this text in their name, whatever its case; `%` and `_`
            stand for themselves.
    """

    scope: Scope
    _: KW_ONLY
    status: WorkflowRunStatus | Sequence[WorkflowRunStatus] | None = None
    workflow_type: str | None = None
    workflow_type_contains: str | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: An `input.*` code that names the field.
        """
        check_kind(self.scope, Scope, field="scope")
        store = object.__setattr__
        if self.status is not None:
            store(self, "status", chosen_statuses(self.status, WorkflowRunStatus))
        if self.workflow_type is not None:
            store(self, "workflow_type", WorkflowType(self.workflow_type))
        if self.workflow_type_contains is not None:
            text = check_text(
                self.workflow_type_contains,
                field="workflow_type_contains",
                max_characters=current_limits().identifier_characters,
            )
            store(self, "workflow_type_contains", text)

    @property
    def statuses(self) -> tuple[WorkflowRunStatus, ...] | None:
        """The chosen statuses, each once; None for all."""
        if self.status is None:
            return None
        return chosen_statuses(self.status, WorkflowRunStatus)


def conditions_but_status(chosen: WorkflowRunFilter) -> list[ColumnElement[bool]]:
    """Return what a filter demands of a row of `workflow_runs`, whatever its status."""
    workflow_type = workflow_runs.c.workflow_type
    conditions = scope_conditions(workflow_runs, chosen.scope)
    if chosen.workflow_type is not None:
        conditions.append(workflow_type == chosen.workflow_type)
    if chosen.workflow_type_contains is not None:
        conditions.append(workflow_type.icontains(chosen.workflow_type_contains, autoescape=True))
    return conditions
