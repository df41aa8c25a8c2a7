"""The keys of a run's steps, for a transaction that means to change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import Scope, ValidationError, check_uuid, codes

from .._arguments import check_lock_timeout
from .._database import Database, open_connection
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run_all
from ._held_run import run_not_found


@dataclass(frozen=True, slots=True)
class LockedRunRow:
    """A run that is locked."""

    id: UUID


@dataclass(frozen=True, slots=True)
class StepKeyRow:
    """A step's key."""

    step_key: str


LOCK_RUN_IN_SCOPE: Final = Statement(
    f"""
    SELECT q.id
    FROM runledger.workflow_runs AS q
    WHERE q.id = %(workflow_run_id)s::uuid AND {IN_SCOPE}
    FOR NO KEY UPDATE
    """,
    LockedRunRow,
)

# A statement of its own, so that it sees the steps that were added while the run was waited for.
LIST_WORKFLOW_STEP_KEYS_FOR_UPDATE: Final = Statement(
    f"""
    SELECT s.step_key
    FROM runledger.workflow_steps AS s
    WHERE s.workflow_run_id = %(workflow_run_id)s::uuid
        AND EXISTS (
            SELECT FROM runledger.workflow_runs AS q
            WHERE q.id = %(workflow_run_id)s::uuid AND {IN_SCOPE}
        )
    ORDER BY s.id
    FOR NO KEY UPDATE OF s
    """,
    StepKeyRow,
)


def list_workflow_step_keys_for_update(
    db: Database,
    run_id: UUID,
    *,
    scope: Scope,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> list[str]:
    """Lock a run and its steps until the caller's transaction ends, and return the steps' keys.

    Nobody else changes the run meanwhile: no step ends or is added. What the row of a job knows,
    such as whether a worker has it, does change. The outcomes of the run's jobs wait: workers send
    them again while their leases live, so keep the transaction short.

    Args:
        scope: Whose run it may be.
        lock_timeout_ms: Longest wait for the run, in milliseconds.

    Returns:
        The keys of all its steps, in the order they were added.

    Raises:
        ValidationError: `input.wrong_type` for a pool, or a connection without a transaction: the
            locks would be gone at once.
        NotFoundError: `workflow.run_not_found`.
        UnavailableError: `db.lock_timeout`; the caller's transaction goes on.

    Transaction: joins the caller's, inside a savepoint; locks the run, then its steps by id.
    """
    wait_ms = check_lock_timeout(lock_timeout_ms)
    key = {"workflow_run_id": check_uuid(run_id, field="run_id")} | scope_parameters(scope)
    with open_connection(db) as opened:
        if opened.owned:
            raise ValidationError(
                codes.INPUT_WRONG_TYPE,
                "db must be a connection in a transaction: the locks end with it",
                field="db",
            )
        runs, steps = run_all(
            opened.connection,
            [Bound(LOCK_RUN_IN_SCOPE, key), Bound(LIST_WORKFLOW_STEP_KEYS_FOR_UPDATE, key)],
            lock_timeout_ms=wait_ms,
        )
    if not runs:
        raise run_not_found()
    return [row.step_key for row in steps]
