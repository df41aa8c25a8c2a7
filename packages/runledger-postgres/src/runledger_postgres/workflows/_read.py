"""Runs: one by its id, its key, its type or one of its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import (
    Scope,
    ScopeKind,
    ValidationError,
    WorkflowType,
    check_text,
    check_uuid,
    codes,
    current_limits,
)

from .._arguments import check_kind
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from .rows import WorkflowRunRecord

# Of a run aliased q.
RUN_COLUMNS: Final = """
    q.id, q.workflow_type, q.organization_id, q.status, q.steps_open, q.steps_waiting_external,
    q.steps_failed, q.steps_canceled, q.idempotency_key, q.metadata, q.result_step_key,
    q.created_at, q.started_at, q.finished_at, q.updated_at
"""


@dataclass(frozen=True, slots=True)
class RunIdRow:
    """The id of a run."""

    id: UUID


GET_WORKFLOW_RUN: Final = Statement(
    f"""
    SELECT {RUN_COLUMNS}
    FROM runledger.workflow_runs AS q
    WHERE q.id = %(workflow_run_id)s::uuid AND {IN_SCOPE}
    """,
    WorkflowRunRecord,
)

# Ids are time-ordered. Walks the newest runs until one is of the type: there is no index of types,
# which every enqueue would pay for.
GET_LATEST_WORKFLOW_RUN_BY_TYPE: Final = Statement(
    f"""
    SELECT {RUN_COLUMNS}
    FROM runledger.workflow_runs AS q
    WHERE q.workflow_type = %(workflow_type)s::text AND {IN_SCOPE}
    ORDER BY q.id DESC
    LIMIT 1
    """,
    WorkflowRunRecord,
)

# Two lookups, so that each can use its own partial unique index.
GET_WORKFLOW_RUN_BY_TYPE_AND_IDEMPOTENCY_KEY: Final = Statement(
    f"""
    SELECT {RUN_COLUMNS}
    FROM runledger.workflow_runs AS q
    WHERE q.workflow_type = %(workflow_type)s::text
        AND q.organization_id = %(organization_id)s::uuid
        AND q.idempotency_key = %(idempotency_key)s::text
    UNION ALL
    SELECT {RUN_COLUMNS}
    FROM runledger.workflow_runs AS q
    WHERE q.workflow_type = %(workflow_type)s::text
        AND q.organization_id IS NULL AND %(organization_id)s::uuid IS NULL
        AND q.idempotency_key = %(idempotency_key)s::text
    """,
    WorkflowRunRecord,
)

GET_WORKFLOW_RUN_ID_FOR_JOB: Final = Statement(
    f"""
    SELECT q.id
    FROM runledger.workflow_runs AS q
    WHERE q.id = (
            SELECT j.workflow_run_id FROM runledger.job_queue AS j WHERE j.id = %(job_id)s::uuid
        )
        AND {IN_SCOPE}
    """,
    RunIdRow,
)


def get_workflow_run(db: Database, run_id: UUID, *, scope: Scope) -> WorkflowRunRecord | None:
    """Return a run with its metadata, or None if no run of that id is in scope.

    Args:
        scope: Whose run it may be.

    Raises:
        InternalError: `job.undecodable_row` if Python cannot read its metadata.

    Transaction: joins the caller's or opens one.
    """
    key = {"workflow_run_id": check_uuid(run_id, field="run_id")}
    rows = run(db, Bound(GET_WORKFLOW_RUN, key | scope_parameters(scope)))
    return rows[0] if rows else None


def get_latest_workflow_run_by_type(
    db: Database, workflow_type: str, *, scope: Scope
) -> WorkflowRunRecord | None:
    """Return the newest run of a type, whatever its status, or None if there is none in scope.

    Newest by id, which is time-ordered. Reads past all newer runs of other types.

    Args:
        scope: Whose runs.

    Raises:
        ValidationError: An `input.*` code for the type.
        InternalError: `job.undecodable_row` if Python cannot read its metadata.

    Transaction: joins the caller's or opens one.
    """
    key = {"workflow_type": WorkflowType(workflow_type)}
    rows = run(db, Bound(GET_LATEST_WORKFLOW_RUN_BY_TYPE, key | scope_parameters(scope)))
    return rows[0] if rows else None


def get_workflow_run_by_type_and_idempotency_key(
    db: Database, workflow_type: str, idempotency_key: str, *, scope: Scope
) -> WorkflowRunRecord | None:
    """Return the run that a key made, or None.

    Args:
        workflow_type: The type that the key belongs to.
        idempotency_key: The key of the enqueue.
        scope: The organization that the key belongs to, or GLOBAL.

    Raises:
        ValidationError: `input.out_of_range` for `Scope.ADMIN`, in which a key names no single run,
            or an `input.*` code that names the argument.
        InternalError: `job.undecodable_row` if Python cannot read its metadata.

    Transaction: joins the caller's or opens one.
    """
    if check_kind(scope, Scope, field="scope").kind is ScopeKind.ADMIN:
        raise ValidationError(
            codes.INPUT_OUT_OF_RANGE,
            "scope must be an organization or GLOBAL: a key is unique only within one",
            field="scope",
        )
    parameters = {
        "workflow_type": WorkflowType(workflow_type),
        "idempotency_key": check_text(
            idempotency_key, field="idempotency_key", max_bytes=current_limits().key_bytes
        ),
        "organization_id": scope.organization_id,
    }
    rows = run(db, Bound(GET_WORKFLOW_RUN_BY_TYPE_AND_IDEMPOTENCY_KEY, parameters))
    return rows[0] if rows else None


def get_workflow_run_id_for_job(db: Database, job_id: UUID, *, scope: Scope) -> UUID | None:
    """Return the id of the run that a job belongs to.

    Args:
        scope: Whose run it may be; a step's job may belong to another organization.

    Returns:
        None for a job of no workflow, and if the job or its run is not there or not in scope.

    Transaction: joins the caller's or opens one.
    """
    key = {"job_id": check_uuid(job_id, field="job_id")}
    rows = run(db, Bound(GET_WORKFLOW_RUN_ID_FOR_JOB, key | scope_parameters(scope)))
    return rows[0].id if rows else None
