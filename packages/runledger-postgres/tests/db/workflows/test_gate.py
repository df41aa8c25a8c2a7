"""The end of a gate: what it stores, releases and refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any
from uuid import UUID, uuid4

import pytest

from runledger_core import (
    UNSET,
    ConflictError,
    JsonInput,
    NotFoundError,
    RunledgerError,
    Scope,
    ValidationError,
    WorkflowExternalCompletion,
)
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.workflows import complete_external_workflow_step, get_workflow_step

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
OWNER, STRANGER = UUID(int=1), UUID(int=2)
SUCCEEDED = WorkflowExternalCompletion.succeeded({"n": 1}, reason="approved")
FAILED = WorkflowExternalCompletion.failed("denied", code="approval.denied", message="No.")
CANCELED = WorkflowExternalCompletion.canceled("gone", code="approval.gone", message="Left.")
ENDS = [SUCCEEDED, FAILED, CANCELED]
UNSATISFIED = "workflow.dependency_unsatisfied"

ROWS = """
    SELECT array_agg(t.line ORDER BY t.line) FROM (
        SELECT s.ctid::text || s::text AS line FROM runledger.workflow_steps s
        UNION ALL SELECT w.ctid::text || w::text FROM runledger.workflow_runs w
        UNION ALL SELECT q.ctid::text || q::text FROM runledger.job_queue q
    ) t
"""

of_each_end = pytest.mark.parametrize("completion", ENDS, ids=lambda end: end.status)


def complete(
    workflows: Workflows,
    run_id: UUID,
    completion: WorkflowExternalCompletion = SUCCEEDED,
    *,
    step_key: str = "gate",
    db: Any = None,
    **arguments: Any,
):
    arguments = {"scope": ADMIN} | arguments
    return complete_external_workflow_step(
        db or workflows.pool, run_id, step_key, completion, **arguments
    )


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(RunledgerError) as caught:
        call()
    return caught.value.code


def gated(workflows: Workflows) -> UUID:
    """Enqueue a gate, and a job behind it."""
    return workflows.enqueue_jobs({"gate": [], "after": ["gate"]}, gates=("gate",))


def gate_row(workflows: Workflows, run_id: UUID) -> tuple[Any, ...] | None:
    sql = """
    SELECT status::text, output, status_reason, last_error_code, last_error_message
    FROM runledger.workflow_steps WHERE workflow_run_id = %s AND step_key = 'gate'
    """
    return workflows.look.execute(sql, [run_id]).fetchone()


@pytest.mark.core
def test_success_of_a_gate_is_stored_and_releases_what_waits_for_it(workflows: Workflows):
    run_id = gated(workflows)

    gate = complete(workflows, run_id)

    assert (gate.step_key, gate.status, gate.output) == ("gate", "SUCCEEDED", {"n": 1})
    assert (gate.status_reason, gate.last_error_code) == ("approved", None)
    assert gate.finished_at is not None
    assert gate_row(workflows, run_id) == ("SUCCEEDED", {"n": 1}, "approved", None, None)
    assert workflows.steps(run_id) == {"after": "ENQUEUED", "gate": "SUCCEEDED"}
    workflows.succeed(workflows.claim()["after"])
    assert workflows.status(run_id) == "SUCCEEDED"


@pytest.mark.core
@pytest.mark.parametrize("completion", [FAILED, CANCELED], ids=lambda end: end.status)
def test_other_ends_doom_who_needs_the_success_and_release_who_does_not(
    workflows: Workflows, completion
):
    needing = [f"needs-{number:02}" for number in range(64)]
    fan_in = {"cleanup": dict.fromkeys([*needing, "gate"], "terminal")}
    run_id = workflows.enqueue_jobs(
        {"gate": {}} | {key: {"gate": "success"} for key in needing} | fan_in, gates=("gate",)
    )

    gate = complete(workflows, run_id, completion)

    assert gate.output is UNSET
    assert gate_row(workflows, run_id) == (
        completion.status,
        None,
        completion.reason,
        completion.code,
        completion.message,
    )
    assert workflows.steps(run_id) == dict.fromkeys(needing, "CANCELED") | {
        "gate": str(completion.status),
        "cleanup": "ENQUEUED",
    }
    codes = workflows.value(
        "SELECT array_agg(DISTINCT last_error_code) FROM runledger.workflow_steps"
        " WHERE step_key LIKE 'needs%%'"
    )
    assert codes == [UNSATISFIED]
    workflows.succeed(workflows.claim()["cleanup"])
    assert workflows.status(run_id) == "COMPLETED_WITH_ERRORS"


def test_run_waits_while_only_gates_are_open(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": [], "other": []}, gates=("gate", "other"))
    statuses = [workflows.status(run_id)]

    for step_key in ("gate", "other"):
        complete(workflows, run_id, step_key=step_key)
        statuses.append(workflows.status(run_id))

    assert statuses == ["WAITING_FOR_EXTERNAL", "WAITING_FOR_EXTERNAL", "SUCCEEDED"]


@pytest.mark.parametrize(
    ("output", "stored"), [({"n": [1]}, '{"n": [1]}'), (None, "null"), (UNSET, None)]
)
def test_output_of_a_gate_can_be_the_result_of_its_run(workflows: Workflows, output, stored):
    built = WorkflowDagBuilder("test.workflow", {}).external("gate", {}).result_step("gate").build()
    run_id = workflows.enqueue(built)

    gate = complete(workflows, run_id, WorkflowExternalCompletion.succeeded(output))

    assert gate.output == output
    assert workflows.value("SELECT result::text FROM runledger.workflow_runs") == stored


def test_output_of_a_gate_is_read_with_its_step(workflows: Workflows):
    run_id = gated(workflows)

    complete(workflows, run_id)

    gate = get_workflow_step(workflows.pool, run_id, "gate", scope=ADMIN)
    assert gate is not None
    assert (gate.status, gate.output, gate.status_reason) == ("SUCCEEDED", {"n": 1}, "approved")


def test_gate_that_is_opened_by_the_end_of_another_is_completed(workflows: Workflows):
    run_id = workflows.enqueue_jobs(
        {"gate": [], "second": ["gate"], "last": ["second"]}, gates=("gate", "second")
    )
    early = refused(lambda: complete(workflows, run_id, step_key="second"))

    complete(workflows, run_id)
    complete(workflows, run_id, step_key="second")

    assert early == "workflow.external_step_not_waiting"
    assert workflows.steps(run_id)["last"] == "ENQUEUED"


@pytest.mark.core
@of_each_end
def test_same_completion_again_returns_the_stored_gate_and_changes_nothing(
    workflows: Workflows, completion
):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    first = complete(workflows, run_id, completion)
    before = workflows.value(ROWS)

    again = complete(workflows, run_id, completion)

    assert again == first
    assert workflows.value(ROWS) == before


@pytest.mark.parametrize(
    "change", [{"reason": "other"}, {"code": "other"}, {"message": "other"}, {"reason": None}]
)
@of_each_end
def test_other_report_of_the_same_end_conflicts(workflows: Workflows, completion, change):
    run_id = gated(workflows)
    complete(workflows, run_id, completion)
    before = workflows.value(ROWS)

    with pytest.raises(ConflictError) as caught:
        complete(workflows, run_id, replace(completion, **change))

    assert caught.value.code == "workflow.external_step_conflicting_completion_retry"
    assert workflows.value(ROWS) == before


@pytest.mark.parametrize(("completion", "other"), list(permutations(ENDS, 2)))
def test_other_end_conflicts(workflows: Workflows, completion, other):
    run_id = gated(workflows)
    complete(workflows, run_id, completion)

    code = refused(lambda: complete(workflows, run_id, other))

    assert code == "workflow.external_step_conflicting_completion_retry"
    assert workflows.steps(run_id)["gate"] == completion.status


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ({"n": 1, "m": [2]}, {"m": [2.0], "n": 1.0}, True),
        (None, None, True),
        (UNSET, UNSET, True),
        ({"n": 1}, {"n": 2}, False),
        ({"n": 1}, {"n": "1"}, False),
        (None, UNSET, False),
        (UNSET, None, False),
    ],
)
def test_output_is_compared_as_json(
    workflows: Workflows, first: JsonInput, second: JsonInput, is_equal
):
    run_id = gated(workflows)
    complete(workflows, run_id, WorkflowExternalCompletion.succeeded(first))

    def again() -> object:
        return complete(workflows, run_id, WorkflowExternalCompletion.succeeded(second))

    if is_equal:
        assert again()
    else:
        assert refused(again) == "workflow.external_step_conflicting_output_retry"


def test_output_is_compared_before_the_report(workflows: Workflows):
    run_id = gated(workflows)
    complete(workflows, run_id)

    code = refused(lambda: complete(workflows, run_id, WorkflowExternalCompletion.succeeded(7)))

    assert code == "workflow.external_step_conflicting_output_retry"


def test_gate_that_was_doomed_has_ended_in_another_way(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"first": [], "gate": ["first"]}, gates=("gate",))
    workflows.fail(workflows.claim()["first"])

    codes = {
        refused(lambda end=end: complete(workflows, run_id, end)) for end in (FAILED, CANCELED)
    }

    assert codes == {"workflow.external_step_conflicting_completion_retry"}


@pytest.mark.parametrize(
    ("owner", "scope", "is_seen"),
    [
        (OWNER, Scope.organization(OWNER), True),
        (OWNER, Scope.ADMIN, True),
        (OWNER, Scope.organization(STRANGER), False),
        (OWNER, Scope.GLOBAL, False),
        (None, Scope.GLOBAL, True),
        (None, Scope.organization(OWNER), False),
    ],
)
def test_run_outside_of_the_scope_looks_absent(workflows: Workflows, owner, scope, is_seen):
    builder = WorkflowDagBuilder("test.workflow", {}).external("gate", {})
    run_id = workflows.enqueue(
        (builder if owner is None else builder.organization_id(owner)).build()
    )

    def call() -> object:
        return complete(workflows, run_id, scope=scope)

    if is_seen:
        assert call()
    else:
        assert refused(call) == "workflow.run_not_found"
        assert workflows.steps(run_id) == {"gate": "WAITING_FOR_EXTERNAL"}


def test_what_is_absent_or_no_gate_is_refused(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"job": []})
    other = gated(workflows)

    with pytest.raises(NotFoundError, match=r"^workflow\.run_not_found"):
        complete(workflows, uuid4())
    with pytest.raises(NotFoundError, match=r"^workflow\.external_step_not_found"):
        complete(workflows, run_id)
    with pytest.raises(ValidationError, match=r"^workflow\.external_step_not_external"):
        complete(workflows, run_id, step_key="job")
    assert workflows.steps(other) == {"after": "BLOCKED", "gate": "WAITING_FOR_EXTERNAL"}


def test_job_that_has_ended_is_no_gate_either(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"job": []})
    workflows.succeed(workflows.claim()["job"])

    code = refused(lambda: complete(workflows, run_id, step_key="job"))

    assert code == "workflow.external_step_not_external"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("run_id", "7"),
        ("step_key", " "),
        ("completion", "SUCCEEDED"),
        ("scope", OWNER),
        ("lock_timeout_ms", 0),
    ],
)
def test_arguments_are_checked_before_the_connection_is_asked_for(argument, value):
    arguments = {"run_id": OWNER, "step_key": "gate", "completion": SUCCEEDED, "scope": ADMIN}

    with pytest.raises(ValidationError) as caught:
        complete_external_workflow_step(None, **arguments | {argument: value})  # pyright: ignore[reportArgumentType]  # the point

    assert caught.value.field == argument


@pytest.mark.core
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stronger_isolation_is_refused_before_anything_else_and_locks_nothing(
    workflows: Workflows, level
):
    run_id = gated(workflows)
    connection = workflows.database.connect()
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    connection.execute("CREATE TABLE public.mine AS SELECT 1 AS n")
    workflows.look.execute("UPDATE runledger.workflow_runs SET updated_at = clock_timestamp()")

    codes = {
        refused(lambda target=target: complete(workflows, target, db=connection))
        for target in (run_id, uuid4())
    }

    assert codes == {"workflow.external_completion_unsupported_isolation"}
    assert complete(workflows, run_id, lock_timeout_ms=1)
    connection.commit()
    assert workflows.value("SELECT n FROM public.mine") == 1


@pytest.mark.parametrize("level", ["READ COMMITTED", "READ UNCOMMITTED"])
def test_joined_completion_ends_with_the_callers_transaction(workflows: Workflows, level):
    run_id = gated(workflows)
    connection = workflows.database.connect()

    for end in ("rollback", "commit"):
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        complete(workflows, run_id, db=connection)
        seen = workflows.steps(run_id)["gate"]
        getattr(connection, end)()
        assert seen == "WAITING_FOR_EXTERNAL"

    assert workflows.steps(run_id) == {"after": "ENQUEUED", "gate": "SUCCEEDED"}


@pytest.mark.core
@pytest.mark.parametrize("callers", ["0", "7s"])
def test_held_run_is_a_conflict_after_which_the_callers_transaction_goes_on(
    workflows: Workflows, callers
):
    run_id = gated(workflows)
    before = workflows.value(ROWS)
    holder, connection = workflows.database.connect(), workflows.database.connect()
    holder.execute("SELECT FROM runledger.workflow_runs FOR NO KEY UPDATE")
    connection.execute("SELECT set_config('lock_timeout', %s, true)", [callers])
    connection.execute("CREATE TABLE public.mine (n int)")

    with pytest.raises(ConflictError) as caught:
        complete(workflows, run_id, db=connection, lock_timeout_ms=1)

    assert caught.value.code == "workflow.release_conflict"
    assert connection.execute("SHOW lock_timeout").fetchone() == (callers,)
    connection.execute("INSERT INTO public.mine VALUES (1)")
    connection.commit()
    assert workflows.value("SELECT n FROM public.mine") == 1
    assert workflows.value(ROWS) == before
    holder.rollback()
    assert complete(workflows, run_id, db=connection)
    assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
    connection.commit()


def test_held_run_is_a_conflict_on_a_pool_too(workflows: Workflows):
    run_id = gated(workflows)
    holder = workflows.database.connect()
    holder.execute("SELECT FROM runledger.workflow_runs FOR NO KEY UPDATE")

    assert refused(lambda: complete(workflows, run_id, lock_timeout_ms=1)) == (
        "workflow.release_conflict"
    )
    holder.rollback()
    assert complete(workflows, run_id)


def test_gate_that_was_completed_while_its_run_was_waited_for_is_read_anew(
    workflows: Workflows, background, observer
):
    run_id = gated(workflows)
    connection, late = workflows.database.connect(), workflows.database.connect()
    first = complete(workflows, run_id, db=connection)

    waiting = background.submit(complete, workflows, run_id, db=late)
    observer.until(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    connection.commit()

    assert waiting.result() == first
    late.commit()
    assert workflows.value("SELECT count(*) FROM runledger.job_queue") == 1


def test_released_job_keeps_payload_and_settings_of_its_step(workflows: Workflows):
    builder = WorkflowDagBuilder("test.workflow", {}).external("gate", {})
    built = builder.job("after", JOB_TYPE, None).after_success("after", ["gate"]).build()
    run_id = workflows.enqueue(built)

    complete(workflows, run_id)

    assert workflows.value("SELECT payload::text FROM runledger.job_queue") == "null"
    assert workflows.value("SELECT workflow_run_id FROM runledger.job_queue") == run_id
