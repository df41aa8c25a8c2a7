"""What operators' writes share: targets by id and scope, and what became of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from runledger_core import (
    ErrorCategory,
    Scope,
    check_text,
    current_limits,
    sanitize_text,
)

from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ..errors import QueryError, refusal


class OperatorVerdict(StrEnum):
    """What became of one job that an operator named."""

    DONE = "DONE"
    """Changed by this call."""
    NOT_FOUND = "NOT_FOUND"
    """No job of that id is in scope."""
    INVALID_STATE = "INVALID_STATE"
    """The job's status does not allow it."""
    WORKFLOW_MANAGED = "WORKFLOW_MANAGED"
    """The job belongs to a workflow run, which decides what runs again."""


@dataclass(frozen=True, slots=True)
class _TargetRow:
    id: UUID
    is_workflow_managed: bool


JUDGE_TARGETS: Final = Statement(
    f"""
    SELECT q.id, q.workflow_run_id IS NOT NULL AS is_workflow_managed
    FROM runledger.job_queue AS q
    WHERE q.id = ANY (%(job_ids)s::uuid[]) AND {IN_SCOPE}
    """,
    _TargetRow,
)


def operator_parameters(job_ids: list[UUID], scope: Scope, reason: str | None) -> dict[str, object]:
    """Return the parameters of an operator's write to checked ids; the reason is cut."""
    if reason is not None:
        check_text(reason, field="reason")
        reason = sanitize_text(reason, max_bytes=current_limits().error_message_bytes)
    return {"job_ids": job_ids, "reason": reason} | scope_parameters(scope)


def judge_targets(
    db: Database,
    job_ids: Sequence[UUID],
    done: Collection[UUID],
    *,
    scope: Scope,
    of_workflow: OperatorVerdict = OperatorVerdict.INVALID_STATE,
) -> list[OperatorVerdict]:
    """Tell absent jobs from those in the wrong state, with a new snapshot.

    Args:
        of_workflow: What is said of a job of a workflow that is in scope and was not changed.
    """
    missed = [job_id for job_id in job_ids if job_id not in done]
    verdicts = dict.fromkeys(job_ids, OperatorVerdict.NOT_FOUND)
    verdicts.update(dict.fromkeys(done, OperatorVerdict.DONE))
    if missed:
        bound = Bound(JUDGE_TARGETS, {"job_ids": missed} | scope_parameters(scope))
        for row in run(db, bound):
            verdicts[row.id] = (
                of_workflow if row.is_workflow_managed else OperatorVerdict.INVALID_STATE
            )
    return [verdicts[job_id] for job_id in job_ids]


def target_refusal(verdict: OperatorVerdict) -> QueryError:
    """Return the error that a write of one job raises for a verdict other than DONE."""
    match verdict:
        case OperatorVerdict.NOT_FOUND:
            return refusal(
                ErrorCategory.NOT_FOUND,
                "job.not_found",
                "no such job in this scope",
                field="job_id",
            )
        case OperatorVerdict.WORKFLOW_MANAGED:
            return refusal(
                ErrorCategory.VALIDATION,
                "job.workflow_requeue_not_supported",
                "the job belongs to a workflow run, which decides what runs again",
                field="job_id",
            )
        case _:
            return refusal(
                ErrorCategory.VALIDATION,
                "job.invalid_state_transition",
                "the job's status does not allow this",
                field="job_id",
            )
