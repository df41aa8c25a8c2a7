"""Handles: what is seen in which scope, and what the end of a run means for its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from runledger_core import JobCompletion, JobFailure, JsonValue, RunledgerError, Scope
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue, WorkflowRunStatus
from runledger_postgres import connect_pool, errors
from runledger_postgres.lifecycle import complete_job_failure, complete_job_success
from runledger_postgres.workflows import handles
from runledger_postgres.workflows._results import WorkflowRunUnsuccessfulError
from runledger_postgres.workflows._wait_options import WorkflowRunWaitOptions
from runledger_test_support import TemporaryDatabase

from .conftest import JOB_TYPE, Workflows

ONCE = WorkflowRunWaitOptions(timeout=0)
# What is known at once.
SOON = WorkflowRunWaitOptions(timeout=20)
NOBODY: Any = None
ORGANIZATION = UUID(int=7)


def request(
    *, result: str | None = "a", organization_id: UUID | None = None, gate: bool = False
) -> WorkflowRunEnqueue:
    builder = WorkflowDagBuilder("test.workflow", {"of": "handles"})
    if organization_id is not None:
        builder = builder.organization_id(organization_id)
    builder = builder.external("a", {}) if gate else builder.job("a", JOB_TYPE, {})
    if result is not None:
        builder = builder.result_step(result)
    return builder.build()


def enqueued(workflows: Workflows, **options: Any) -> handles.WorkflowRunHandle:
    return handles.enqueue_workflow_run_handle(workflows.pool, request(**options))


def succeeded(
    workflows: Workflows, output: JsonValue = None, **options: Any
) -> handles.WorkflowRunHandle:
    handle = enqueued(workflows, **options)
    workflows.succeed(workflows.claim()["a"], output)
    return handle


def refused(call: Callable[[], object]) -> errors.QueryError:
    with pytest.raises(errors.QueryError) as caught:
        call()
    return caught.value


@pytest.mark.core
def test_result_is_the_output_of_the_declared_step(workflows: Workflows):
    handle = succeeded(workflows, {"score": 3}, organization_id=ORGANIZATION)

    result = handle.get_result()

    assert (result.run_id, result.workflow_type) == (handle.run_id, "test.workflow")
    assert (result.organization_id, result.result_step_key) == (ORGANIZATION, "a")
    assert result.result == {"score": 3}
    assert result.finished_at == workflows.value(
        "SELECT finished_at FROM runledger.workflow_runs WHERE id = %s", handle.run_id
    )


@pytest.mark.core
def test_zero_timeout_reads_a_committed_result(workflows: Workflows):
    assert succeeded(workflows, [1, 2]).get_result(ONCE).result == [1, 2]


def test_result_may_be_json_null(workflows: Workflows):
    assert succeeded(workflows, None).get_result(SOON).result is None


def test_result_does_not_show_in_the_text_of_what_holds_it(workflows: Workflows):
    assert "secret" not in repr(succeeded(workflows, "secret").get_result(SOON))


def test_step_without_an_output_leaves_no_result(workflows: Workflows):
    handle = enqueued(workflows)
    complete_job_success(workflows.pool, workflows.claim()["a"].lease, JobCompletion())

    error = refused(lambda: handle.get_result(SOON))

    assert (error.code, type(error)) == ("workflow.result_missing", errors.QueryConflictError)


@pytest.mark.core
def test_undeclared_result_is_told_at_once_while_the_run_goes_on(workflows: Workflows):
    handle = enqueued(workflows, result=None)

    error = refused(lambda: handle.get_result(SOON))

    assert error.code == "workflow.result_not_declared"
    assert handle.get_status() is WorkflowRunStatus.RUNNING


def test_undeclared_result_is_told_before_how_the_run_ended(workflows: Workflows):
    handle = enqueued(workflows, result=None)
    workflows.fail(workflows.claim()["a"])

    assert refused(lambda: handle.get_result(SOON)).code == "workflow.result_not_declared"


def test_run_that_goes_on_has_no_result_yet(workflows: Workflows):
    error = refused(lambda: enqueued(workflows).get_result(ONCE))

    assert error.code == "workflow.result_wait_timeout"
    assert error.is_transient


def test_run_with_a_failed_step_tells_how_it_ended(workflows: Workflows):
    handle = enqueued(workflows)
    workflows.fail(workflows.claim()["a"])

    error = refused(lambda: handle.get_result(SOON))

    assert isinstance(error, WorkflowRunUnsuccessfulError)
    assert error.code == "workflow.result_unsuccessful_terminal"
    assert error.status is WorkflowRunStatus.COMPLETED_WITH_ERRORS


def test_stored_failure_that_looks_like_an_outage_is_none(workflows: Workflows):
    handle = enqueued(workflows)
    failure = JobFailure.terminal("db.unavailable", "server closed the connection unexpectedly")
    complete_job_failure(workflows.pool, workflows.claim()["a"].lease, failure)

    error = refused(lambda: handle.get_result(SOON))

    assert (error.code, error.is_transient) == ("workflow.result_unsuccessful_terminal", False)


def test_each_reader_of_a_result_has_its_own(workflows: Workflows):
    handle = succeeded(workflows, {"list": [1]})
    first: Any = handle.get_result(SOON).result
    first["list"].append(2)

    assert handle.get_result(SOON).result == {"list": [1]}


def test_result_that_python_cannot_read_is_no_outage(workflows: Workflows):
    handle = succeeded(workflows)
    # More digits than Python reads by default.
    workflows.look.execute("UPDATE runledger.workflow_runs SET result = %s::jsonb", ["9" * 5_000])

    error = refused(lambda: handle.get_result(SOON))

    assert (error.code, error.field) == ("job.undecodable_row", "result")


SCOPES = {
    "own": (ORGANIZATION, Scope.organization(ORGANIZATION), True),
    "admin": (ORGANIZATION, Scope.ADMIN, True),
    "global": (None, Scope.GLOBAL, True),
    "another": (ORGANIZATION, Scope.organization(UUID(int=8)), False),
    "global of an organization": (ORGANIZATION, Scope.GLOBAL, False),
    "organization of a global": (None, Scope.organization(ORGANIZATION), False),
}


@pytest.mark.core
@pytest.mark.parametrize("name", SCOPES)
def test_run_is_seen_in_its_scope_only(workflows: Workflows, name: str):
    organization_id, scope, is_visible = SCOPES[name]
    run_id = succeeded(workflows, 1, organization_id=organization_id).run_id
    handle = handles.workflow_run_handle(workflows.pool, scope, run_id)

    if is_visible:
        assert handle.get_status() is WorkflowRunStatus.SUCCEEDED
        assert handle.get_result(SOON).result == 1
        record = handle.get_run()
        assert record is not None
        assert (record.id, record.metadata) == (run_id, {"of": "handles"})
        found = handles.retrieve_workflow_run_handle(workflows.pool, scope, run_id)
        assert (found.run_id, found.scope) == (run_id, scope)
    else:
        assert handle.get_status() is None
        assert handle.get_run() is None
        for call in (
            handle.get_result,
            lambda: handles.retrieve_workflow_run_handle(workflows.pool, scope, run_id),
        ):
            error = refused(call)
            assert (error.code, type(error)) == (
                "workflow.run_not_found",
                errors.QueryNotFoundError,
            )


@pytest.mark.parametrize(
    ("organization_id", "scope"),
    [(None, Scope.GLOBAL), (ORGANIZATION, Scope.organization(ORGANIZATION))],
)
def test_handle_of_an_enqueue_has_the_scope_of_the_run(
    workflows: Workflows, organization_id: UUID | None, scope: Scope
):
    handle = enqueued(workflows, organization_id=organization_id)

    assert handle.scope == scope
    assert handle.get_status() is WorkflowRunStatus.RUNNING
    assert repr(handle) == f"WorkflowRunHandle(run_id={handle.run_id!r}, scope={scope!r})"


def test_unknown_run_is_not_found_at_once(workflows: Workflows):
    handle = handles.workflow_run_handle(workflows.pool, Scope.ADMIN, uuid4())

    assert refused(handle.get_result).code == "workflow.run_not_found"


def test_handle_is_made_without_a_query(workflows: Workflows):
    asked = workflows.pool.get_stats().get("requests_num", 0)

    handles.workflow_run_handle(workflows.pool, Scope.ADMIN, uuid4())

    assert workflows.pool.get_stats().get("requests_num", 0) == asked


def test_status_follows_the_run(workflows: Workflows):
    handle = enqueued(workflows, gate=True)

    assert handle.get_status() is WorkflowRunStatus.WAITING_FOR_EXTERNAL


RUN = UUID(int=1)
WRONG: dict[str, tuple[str, Callable[[Workflows], object]]] = {
    "pool": ("pool", lambda w: handles.workflow_run_handle(NOBODY, Scope.ADMIN, RUN)),
    "connection": ("pool", lambda w: handles.workflow_run_handle(_look(w), Scope.ADMIN, RUN)),
    "scope": ("scope", lambda w: handles.workflow_run_handle(w.pool, NOBODY, RUN)),
    "text": ("run_id", lambda w: handles.workflow_run_handle(w.pool, Scope.ADMIN, _text(RUN))),
    "retrieved": (
        "run_id",
        lambda w: handles.retrieve_workflow_run_handle(w.pool, Scope.ADMIN, NOBODY),
    ),
    "request": ("request", lambda w: handles.enqueue_workflow_run_handle(w.pool, NOBODY)),
    "joined": ("pool", lambda w: handles.enqueue_workflow_run_handle(_look(w), request())),
    "options": ("options", lambda w: _handle(w).get_result(_seconds(5))),
}


def _look(workflows: Workflows) -> Any:
    return workflows.look


def _text(value: object) -> Any:
    return str(value)


def _seconds(value: object) -> Any:
    return value


def _handle(workflows: Workflows) -> handles.WorkflowRunHandle:
    return handles.workflow_run_handle(workflows.pool, Scope.ADMIN, RUN)


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_another_type_are_refused_by_name(workflows: Workflows, name: str):
    field, call = WRONG[name]

    with pytest.raises(RunledgerError) as caught:
        call(workflows)

    assert (caught.value.code, caught.value.field) == ("input.wrong_type", field)
    assert workflows.value("SELECT count(*) FROM runledger.workflow_runs") == 0


@pytest.mark.parametrize("read", ["get_status", "get_run", "get_result"])
def test_closed_pool_is_told_as_an_error_of_storage(workflows: Workflows, read: str):
    run_id = succeeded(workflows, 1).run_id
    with connect_pool(workflows.database.dsn) as pool:
        handle = handles.workflow_run_handle(pool, Scope.ADMIN, run_id)

    error = refused(getattr(handle, read))

    assert (error.code, error.is_transient) == ("workflow.handle_storage_error", True)
    assert isinstance(error.__cause__, errors.QueryUnavailableError)


def test_database_without_the_schema_is_told_as_such(
    runledger_unmigrated_database: TemporaryDatabase,
):
    with connect_pool(runledger_unmigrated_database.dsn) as pool:
        handle = handles.workflow_run_handle(pool, Scope.ADMIN, RUN)

        error = refused(handle.get_result)

    assert error.code == "schema.missing_migration_history"
    assert isinstance(error.__cause__, errors.QueryError)
    assert isinstance(error.__cause__.__cause__, psycopg.Error)
