"""Handles of workflow runs: a run's status, its record, and its result once it has ended."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import ErrorCategory, Scope, ScopeKind, check_uuid
from runledger_core.workflows import WorkflowRunEnqueue, WorkflowRunStatus

from .._arguments import check_kind
from .._database import Pool
from .._rows import Statement, column
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ..errors import QueryError, QueryUnavailableError, refusal
from ._enqueue import enqueue_workflow_run
from ._held_run import run_not_found
from ._read import get_workflow_run
from ._results import WorkflowRunResult, result_of
from ._run_wait import Answer, RunEndRow
from ._wait_options import WorkflowRunWaitOptions
from ._waiting import waiting
from .rows import WorkflowRunRecord


@dataclass(frozen=True, slots=True)
class WorkflowRunStatusRow:
    """The status of a run."""

    status: WorkflowRunStatus = column(WorkflowRunStatus)


GET_WORKFLOW_RUN_STATUS: Final = Statement(
    f"""
    SELECT q.status
    FROM runledger.workflow_runs AS q
    WHERE q.id = %(workflow_run_id)s::uuid AND {IN_SCOPE}
    """,
    WorkflowRunStatusRow,
)


class WorkflowRunHandle:
    """A run as somebody may see it: in one scope, through one pool.

    It may be used by any number of threads.
    """

    __slots__ = ("_pool", "_run_id", "_scope")

    def __init__(self, pool: Pool, scope: Scope, run_id: UUID) -> None:
        """Make a handle without a query; `workflow_run_handle` reads better.

        Raises:
            ValidationError: `input.wrong_type`.
        """
        self._pool: Pool = check_kind(pool, ConnectionPool, field="pool")
        self._scope = check_kind(scope, Scope, field="scope")
        self._run_id = check_uuid(run_id, field="run_id")

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._run_id

    @property
    def scope(self) -> Scope:
        """The scope in which the run is looked for."""
        return self._scope

    def __repr__(self) -> str:
        """Return the class with run and scope."""
        return f"{type(self).__name__}(run_id={self._run_id!r}, scope={self._scope!r})"

    def get_status(self) -> WorkflowRunStatus | None:
        """Return where the run stands, or None if no run of the id is in scope.

        Raises:
            UnavailableError: `workflow.handle_storage_error`; its cause tells more.
        """
        key = {"workflow_run_id": self._run_id}
        try:
            rows = run(
                self._pool, Bound(GET_WORKFLOW_RUN_STATUS, key | scope_parameters(self._scope))
            )
        except QueryUnavailableError as error:
            raise _storage_error(error) from error
        return rows[0].status if rows else None

    def get_run(self) -> WorkflowRunRecord | None:
        """Return the run's record, or None if no run of the id is in scope.

        Raises:
            InternalError: `job.undecodable_row` if Python cannot read its metadata.
            UnavailableError: `workflow.handle_storage_error`; its cause tells more.
        """
        try:
            return get_workflow_run(self._pool, self._run_id, scope=self._scope)
        except QueryUnavailableError as error:
            raise _storage_error(error) from error

    def get_result(self, options: WorkflowRunWaitOptions | None = None) -> WorkflowRunResult:
        """Wait until the run has ended, and return its result.

        All who wait on a pool wait together: they share one extra connection and one query per
        poll interval, whatever their number.

        Args:
            options: How long to wait; five minutes if None.

        Raises:
            NotFoundError: `workflow.run_not_found` if no run of the id is in scope.
            ValidationError: `workflow.result_not_declared`, at once, if the run has no result step;
                `db.forked`.
            ConflictError: `workflow.result_unsuccessful_terminal`, a
                `WorkflowRunUnsuccessfulError`, if the run was cancelled or a step did not succeed;
                `workflow.result_missing` if its result step gave no output.
            UnavailableError: `workflow.result_wait_timeout` if it had not ended when the time was
                up; `workflow.handle_storage_error` if the database could not tell by then, or the
                pool was closed.
            InternalError: `job.undecodable_row` if Python cannot read the result.
        """
        chosen = WorkflowRunWaitOptions() if options is None else options
        check_kind(chosen, WorkflowRunWaitOptions, field="options")
        with waiting(self._pool, self._run_id, poll_interval=chosen.poll_interval) as wait:
            for answer in wait.answers(chosen.timeout):
                result = self._result_of(answer)
                if result is not None:
                    return result
            trouble = wait.trouble
        if trouble is not None:
            raise _storage_error(trouble) from trouble
        raise refusal(
            ErrorCategory.UNAVAILABLE,
            "workflow.result_wait_timeout",
            "the run had not ended when the time was up",
            field="timeout",
        )

    def _result_of(self, answer: Answer) -> WorkflowRunResult | None:
        if answer.error is not None:
            raise _own(answer.error) from answer.error
        if answer.row is None or not _is_visible(answer.row, self._scope):
            raise run_not_found()
        return result_of(answer.row)


def workflow_run_handle(pool: Pool, scope: Scope, run_id: UUID) -> WorkflowRunHandle:
    """Return a handle of a run without asking the database whether there is one.

    Args:
        pool: A pool, no connection: waits are shared by all who use it.
        scope: Whose runs may be seen through it.

    Raises:
        ValidationError: `input.wrong_type`.
    """
    return WorkflowRunHandle(pool, scope, run_id)


def retrieve_workflow_run_handle(pool: Pool, scope: Scope, run_id: UUID) -> WorkflowRunHandle:
    """Return a handle of a run that is in scope.

    Args:
        pool: A pool, no connection: waits are shared by all who use it.
        scope: Whose runs may be seen through it.

    Raises:
        ValidationError: `input.wrong_type`.
        NotFoundError: `workflow.run_not_found`.
        UnavailableError: `workflow.handle_storage_error`; its cause tells more.
    """
    handle = WorkflowRunHandle(pool, scope, run_id)
    if handle.get_status() is None:
        raise run_not_found()
    return handle


def enqueue_workflow_run_handle(
    pool: Pool, request: WorkflowRunEnqueue, *, trace_context: str | None = None
) -> WorkflowRunHandle:
    """Enqueue a run and return its handle, in the scope of the organization it is for.

    Args:
        pool: A pool, no connection: a run must be committed before anybody can wait for it.
        trace_context: W3C trace context that the jobs of all steps get.

    Raises:
        ValidationError: `input.wrong_type`, and whatever `enqueue_workflow_run` raises.
    """
    check_kind(pool, ConnectionPool, field="pool")
    run_id = enqueue_workflow_run(pool, request, trace_context=trace_context).id
    organization_id = request.organization_id
    scope = Scope.GLOBAL if organization_id is None else Scope.organization(organization_id)
    return WorkflowRunHandle(pool, scope, run_id)


def _is_visible(row: RunEndRow, scope: Scope) -> bool:
    # A look is for many waits, each in a scope of its own.
    return scope.kind is ScopeKind.ADMIN or row.organization_id == scope.organization_id


def _own(error: Exception) -> Exception:
    # Others are raising it too, in threads of their own.
    if isinstance(error, QueryUnavailableError):
        return _storage_error(error)
    return copy.copy(error)


def _storage_error(error: Exception) -> QueryError:
    made = refusal(
        ErrorCategory.UNAVAILABLE,
        "workflow.handle_storage_error",
        "the database could not be asked about the run",
    )
    if isinstance(error, QueryError):
        made.internal_message, made.sqlstate = error.internal_message, error.sqlstate
    return made
