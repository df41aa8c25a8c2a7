"""What the handler of a step may want to know: its key, and what the steps before it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from types import MappingProxyType
from typing import Final
from uuid import UUID

from runledger_core import (
    UNSET,
    ErrorCategory,
    JsonValue,
    StepKey,
    Unset,
    check_uuid,
    decode_json,
)

from .._database import Database
from .._rows import Statement, column
from .._session import Bound, run
from ..errors import QueryError, refusal


@dataclass(frozen=True, slots=True)
class WorkflowStepInputs:
    """Which step a job is, and what it may build on.

    Attributes:
        step_key: Key of the step.
        prerequisite_outputs: By the keys of its direct prerequisites that succeeded, what each
            gave; None if it gave nothing.
    """

    step_key: StepKey
    _: KW_ONLY
    prerequisite_outputs: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class StepKeyOfJobRow:
    """The key of the step that a job is."""

    step_key: str


@dataclass(frozen=True, slots=True)
class StepInputRow:
    """A prerequisite that succeeded; without a key if the step has none."""

    step_key: str
    prerequisite_key: str | None
    output: JsonValue | Unset = column(partial(decode_json, field="output"), null=UNSET)


GET_STEP_KEY: Final = Statement(
    """
    SELECT s.step_key
    FROM runledger.workflow_steps AS s
    WHERE s.job_id = %(job_id)s::uuid
    """,
    StepKeyOfJobRow,
)

# A prerequisite that ended stays as it is, so this needs no lock and may be read at any time. The
# output of a gate is with the step, that of a job with the job. OFFSET 0 keeps each look by its
# key: as a join it may be planned as a walk of the whole table for each.
GET_STEP_INPUTS: Final = Statement(
    """
    SELECT s.step_key, p.step_key AS prerequisite_key, p.output
    FROM (
        SELECT t.id, t.workflow_run_id, t.step_key
        FROM runledger.workflow_steps AS t
        WHERE t.job_id = %(job_id)s::uuid
        OFFSET 0
    ) AS s
    LEFT JOIN LATERAL (
        SELECT r.step_key, coalesce(r.output, q.output) AS output
        FROM (
            SELECT d.prerequisite_step_id
            FROM runledger.workflow_step_dependencies AS d
            WHERE d.workflow_run_id = s.workflow_run_id AND d.dependent_step_id = s.id
            OFFSET 0
        ) AS e
        CROSS JOIN LATERAL (
            SELECT t.step_key, t.output, t.job_id
            FROM runledger.workflow_steps AS t
            WHERE t.id = e.prerequisite_step_id AND t.status = 'SUCCEEDED'
            OFFSET 0
        ) AS r
        LEFT JOIN LATERAL (
            SELECT j.output FROM runledger.job_queue AS j WHERE j.id = r.job_id
            OFFSET 0
        ) AS q ON true
    ) AS p ON true
    ORDER BY p.step_key
    """,
    StepInputRow,
)


def get_step_key(db: Database, job_id: UUID) -> StepKey:
    """Return the key of the step that a job is, and read nothing else.

    For the worker that runs the job, whatever its organization.

    Raises:
        NotFoundError: `job.not_found` if no step has this job, or its run is gone.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(GET_STEP_KEY, {"job_id": check_uuid(job_id, field="job_id")}))
    if not rows:
        raise _not_a_step()
    return StepKey(rows[0].step_key)


def get_step_inputs(db: Database, job_id: UUID) -> WorkflowStepInputs:
    """Return which step a job is and what the steps before it gave.

    For the worker that runs the job, whatever its organization.

    Raises:
        NotFoundError: `job.not_found` if no step has this job, or its run is gone.
        InternalError: `job.undecodable_row` if Python cannot read one of the outputs.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(GET_STEP_INPUTS, {"job_id": check_uuid(job_id, field="job_id")}))
    if not rows:
        raise _not_a_step()
    outputs = {
        row.prerequisite_key: None if isinstance(row.output, Unset) else row.output
        for row in rows
        if row.prerequisite_key is not None
    }
    return WorkflowStepInputs(
        StepKey(rows[0].step_key), prerequisite_outputs=MappingProxyType(outputs)
    )


def _not_a_step() -> QueryError:
    return refusal(ErrorCategory.NOT_FOUND, "job.not_found", "no step has this job", field="job_id")
