"""Appends that are refused: why, and that nothing has changed then."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from runledger_core import ConflictError, NotFoundError, Scope, ValidationError
from runledger_core.workflows import DuplicateStepKeyError, MissingDependencyError
from runledger_postgres.workflows import append_workflow_steps

from ._appending import (
    ADMIN,
    OWNER,
    ROWS,
    STRANGER,
    SUCCESS,
    append,
    close,
    gate,
    half_ended_run,
    job,
    owned_run,
    refused,
    request,
)
from .conftest import Workflows


@pytest.fixture
def run_id(workflows: Workflows) -> UUID:
    return half_ended_run(workflows)


@pytest.mark.parametrize(
    ("window", "code"),
    [
        ("nobody", "workflow.append_window_missing"),
        ("job", "workflow.append_window_not_external"),
        ("blocked", "workflow.append_window_not_open"),
        ("closed", "workflow.append_window_not_open"),
        ("new", "workflow.append_window_missing"),
    ],
)
def test_window_must_be_an_open_gate(workflows: Workflows, window, code):
    run_id = workflows.enqueue_jobs(
        {"gate": [], "job": [], "closed": [], "blocked": ["job"]},
        gates=("gate", "closed", "blocked"),
    )
    close(workflows, run_id, "closed")
    before = workflows.value(ROWS)

    # What is wrong with the steps is told later.
    steps = [job("new"), job("gate", {"nobody-else": SUCCESS})]
    with pytest.raises(ValidationError) as caught:
        append(workflows, request(run_id, *steps, append_window_step_key=window))

    assert (caught.value.code, caught.value.field) == (code, "append_window_step_key")
    assert workflows.value(ROWS) == before


def test_run_that_has_ended_gets_no_more_steps(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    connection = workflows.database.connect()
    # An end that leaves a gate open is not to be had through the API.
    connection.execute("UPDATE runledger.workflow_runs SET status = 'CANCELED'")

    code = refused(lambda: append(workflows, request(run_id), db=connection))

    connection.rollback()
    assert code == "workflow.append_terminal_run"


def test_steps_are_checked_against_those_of_the_run(workflows: Workflows, run_id):
    before = workflows.value(ROWS)

    with pytest.raises(DuplicateStepKeyError) as duplicate:
        append(workflows, request(run_id, job("new"), job("slow")))
    with pytest.raises(MissingDependencyError) as missing:
        append(workflows, request(run_id, job("new", {"sloe": SUCCESS})))

    assert (duplicate.value.code, duplicate.value.entry_index) == (
        "workflow.invalid_dag_duplicate_step_key",
        1,
    )
    assert missing.value.code == "workflow.invalid_dag_missing_dependency"
    assert missing.value.prerequisite_step_key == "sloe"
    assert workflows.value(ROWS) == before


@pytest.mark.parametrize("is_enabled", [None, False])
def test_one_job_type_without_an_enabled_definition_refuses_all(
    workflows: Workflows, run_id, is_enabled
):
    if is_enabled is not None:
        workflows.look.execute(
            "INSERT INTO runledger.job_definitions (job_type, is_enabled)"
            " VALUES ('other.job', false)"
        )
    before = workflows.value(ROWS)
    steps = [job("a"), gate("b"), replace(job("c"), job_type="other.job")]

    with pytest.raises(ValidationError) as caught:
        append(workflows, request(run_id, *steps))

    assert caught.value.code == "workflow.definition_not_found_or_disabled"
    assert caught.value.entry_index == 2
    assert workflows.value(ROWS) == before


@pytest.mark.parametrize(
    ("scope", "is_seen"),
    [
        (Scope.organization(OWNER), True),
        (Scope.ADMIN, True),
        (Scope.organization(STRANGER), False),
        (Scope.GLOBAL, False),
    ],
)
def test_run_outside_of_the_scope_looks_absent(workflows: Workflows, scope, is_seen):
    run_id = owned_run(workflows)

    def call() -> object:
        return append(workflows, request(run_id), scope=scope)

    if is_seen:
        assert call()
    else:
        assert refused(call) == "workflow.run_not_found"
        assert workflows.steps(run_id) == {"gate": "WAITING_FOR_EXTERNAL"}


def test_run_that_does_not_exist_is_not_found(workflows: Workflows):
    with pytest.raises(NotFoundError) as caught:
        append(workflows, request(uuid4()))

    assert caught.value.code == "workflow.run_not_found"


@pytest.mark.parametrize(
    ("argument", "value"), [("append", {}), ("scope", OWNER), ("lock_timeout_ms", True)]
)
def test_arguments_are_checked_before_the_connection_is_asked_for(argument, value):
    arguments = {"append": request(OWNER), "scope": ADMIN}

    with pytest.raises(ValidationError) as caught:
        append_workflow_steps(None, **arguments | {argument: value})  # pyright: ignore[reportArgumentType]  # the point

    assert caught.value.field == argument


@pytest.mark.core
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stronger_isolation_is_refused_before_anything_else_and_locks_nothing(
    workflows: Workflows, run_id, level
):
    connection = workflows.database.connect()
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    connection.execute("CREATE TABLE public.mine AS SELECT 1 AS n")
    workflows.look.execute("UPDATE runledger.workflow_runs SET updated_at = clock_timestamp()")

    codes = {
        refused(lambda target=target: append(workflows, request(target), db=connection))
        for target in (run_id, uuid4())
    }

    assert codes == {"workflow.append_unsupported_isolation"}
    assert append(workflows, request(run_id), lock_timeout_ms=1)
    connection.commit()
    assert workflows.value("SELECT n FROM public.mine") == 1


def test_joined_append_ends_with_the_callers_transaction(workflows: Workflows, run_id):
    connection = workflows.database.connect()
    before = workflows.value(ROWS)

    append(workflows, request(run_id), db=connection)
    connection.rollback()
    rolled_back = workflows.value(ROWS)
    append(workflows, request(run_id), db=connection)
    connection.commit()

    assert rolled_back == before
    assert workflows.steps(run_id)["new"] == "ENQUEUED"


@pytest.mark.core
@pytest.mark.parametrize("callers", ["0", "7s"])
def test_held_run_is_a_conflict_after_which_the_callers_transaction_goes_on(
    workflows: Workflows, run_id, callers
):
    before = workflows.value(ROWS)
    holder, connection = workflows.database.connect(), workflows.database.connect()
    holder.execute("SELECT FROM runledger.workflow_runs FOR NO KEY UPDATE")
    connection.execute("SELECT set_config('lock_timeout', %s, true)", [callers])
    connection.execute("CREATE TABLE public.mine (n int)")

    with pytest.raises(ConflictError) as caught:
        append(workflows, request(run_id), db=connection, lock_timeout_ms=1)

    assert caught.value.code == "workflow.release_conflict"
    assert connection.execute("SHOW lock_timeout").fetchone() == (callers,)
    connection.execute("INSERT INTO public.mine VALUES (1)")
    connection.commit()
    assert workflows.value("SELECT n FROM public.mine") == 1
    assert workflows.value(ROWS) == before
    holder.rollback()
    assert append(workflows, request(run_id)).disposition == "APPENDED"


def test_refusal_leaves_the_callers_transaction_as_it_was(workflows: Workflows, run_id):
    connection = workflows.database.connect()
    connection.execute("CREATE TABLE public.mine AS SELECT 1 AS n")
    undefined = request(run_id, replace(job("new"), job_type="other.job"))

    codes = [
        refused(lambda: append(workflows, undefined, db=connection)),
        refused(lambda: append(workflows, request(run_id, job("slow")), db=connection)),
    ]
    # Nobody holds the run any more.
    append(workflows, request(run_id), lock_timeout_ms=1)
    connection.commit()

    assert codes == [
        "workflow.definition_not_found_or_disabled",
        "workflow.invalid_dag_duplicate_step_key",
    ]
    assert workflows.value("SELECT n FROM public.mine") == 1
