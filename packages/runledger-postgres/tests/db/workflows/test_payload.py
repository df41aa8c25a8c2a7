"""The one edit of a step's payload: while its job waits."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from runledger_core import EnqueueDisposition, JobFailure, RunledgerError, Scope
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue
from runledger_postgres.lifecycle import cancel_workflow_run, claim_jobs, complete_job_failure
from runledger_postgres.workflows import (
    enqueue_workflow_run,
    update_workflow_step_and_pending_job_payload,
)
from runledger_test_support import Interleaving, Session, Step, permute

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
MINE, OTHER = UUID(int=1), UUID(int=2)
OLD, NEW = {"page": 1}, {"page": 2}


def request(*, owner: UUID | None = None, key: str | None = None) -> WorkflowRunEnqueue:
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, OLD)
    builder = builder.job("b", JOB_TYPE, OLD).after_success("b", ["a"])
    builder = builder if owner is None else builder.organization_id(owner)
    return (builder if key is None else builder.idempotency_key(key)).build()


def edit(db: Any, run_id: UUID, step_key: str = "a", **arguments: Any) -> bool:
    arguments = {"payload": NEW, "scope": ADMIN} | arguments
    return update_workflow_step_and_pending_job_payload(db, run_id, step_key, **arguments)


def payloads(workflows: Workflows) -> list[Any]:
    sql = """
        SELECT coalesce(s.payload, q.payload)
        FROM runledger.workflow_steps s LEFT JOIN runledger.job_queue q ON q.id = s.job_id
        ORDER BY s.step_key
    """
    return [row[0] for row in workflows.look.execute(sql)]


@pytest.mark.core
def test_handler_gets_the_new_payload(workflows: Workflows):
    run_id = workflows.enqueue(request())

    assert edit(workflows.pool, run_id)

    assert workflows.claim()["a"].payload == NEW
    assert payloads(workflows) == [NEW, OLD]


@pytest.mark.parametrize("payload", [None, [], "text", 0, {"n": 1.0}])
def test_any_json_value_is_a_payload(workflows: Workflows, payload: Any):
    run_id = workflows.enqueue(request())

    assert edit(workflows.pool, run_id, payload=payload)

    assert workflows.claim()["a"].payload == payload


def test_job_that_waits_for_its_retry_runs_with_the_new_payload(workflows: Workflows):
    run_id = workflows.enqueue(request())
    lease = workflows.claim()["a"].lease
    failure = JobFailure.retryable("test.busy", "later")
    complete_job_failure(workflows.pool, lease, failure, retry_delay_ms=60_000)

    assert edit(workflows.pool, run_id)

    assert payloads(workflows) == [NEW, OLD]


@pytest.mark.parametrize("state", ["running", "succeeded", "failed", "canceled"])
def test_payload_of_a_job_that_runs_or_has_ended_stays(workflows: Workflows, state: str):
    run_id = workflows.enqueue(request())
    if state == "canceled":
        cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
    else:
        job = workflows.claim()["a"]
        if state == "succeeded":
            workflows.succeed(job)
        elif state == "failed":
            workflows.fail(job)

    assert not edit(workflows.pool, run_id)

    assert payloads(workflows)[0] == OLD


def test_blocked_step_gate_and_unknown_step_have_no_job_to_edit(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"], "gate": []}, gates=("gate",))
    before = payloads(workflows)

    edited = [edit(workflows.pool, run_id, key) for key in ("b", "gate", "unknown")]

    assert edited == [False] * 3
    assert payloads(workflows) == before


def test_job_that_is_named_must_be_the_steps(workflows: Workflows):
    run_id = workflows.enqueue(request())
    job_id = workflows.value("SELECT id FROM runledger.job_queue")

    assert not edit(workflows.pool, run_id, job_id=uuid4())
    assert payloads(workflows) == [OLD, OLD]
    assert edit(workflows.pool, run_id, job_id=job_id)
    assert payloads(workflows) == [NEW, OLD]


def test_equal_enqueue_with_the_same_key_still_finds_the_run(workflows: Workflows):
    first = enqueue_workflow_run(workflows.pool, request(key="order-1"))
    assert edit(workflows.pool, first.id)

    again = enqueue_workflow_run(workflows.pool, request(key="order-1"))

    assert (again.id, again.disposition) == (first.id, EnqueueDisposition.EXISTING)


@pytest.mark.parametrize(
    ("owner", "scope", "is_found"),
    [
        (MINE, Scope.organization(MINE), True),
        (MINE, Scope.organization(OTHER), False),
        (MINE, Scope.GLOBAL, False),
        (None, Scope.GLOBAL, True),
        (None, Scope.organization(MINE), False),
    ],
)
def test_run_of_another_scope_is_not_found(
    workflows: Workflows, owner: UUID | None, scope: Scope, is_found: bool
):
    run_id = workflows.enqueue(request(owner=owner))

    if is_found:
        assert edit(workflows.pool, run_id, scope=scope)
    else:
        with pytest.raises(RunledgerError) as refused:
            edit(workflows.pool, run_id, scope=scope)
        assert (refused.value.code, refused.value.field) == ("workflow.run_not_found", "run_id")
        assert payloads(workflows) == [OLD, OLD]


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"payload": {"a": {"b": [float("nan")]}}}, "input.json_not_finite", "payload.a.b[0]"),
        ({"payload": "a\0"}, "input.json_invalid_text", "payload"),
        ({"payload": "x" * 1_048_577}, "input.json_too_large", "payload"),
        ({"step_key": ""}, "input.blank", "step_key"),
        ({"job_id": "1"}, "input.wrong_type", "job_id"),
        ({"scope": None}, "input.wrong_type", "scope"),
    ],
)
def test_arguments_are_refused_before_sql(arguments: dict[str, Any], code: str, field: str):
    with pytest.raises(RunledgerError) as refused:
        edit(None, uuid4(), **arguments)

    assert (refused.value.code, refused.value.field) == (code, field)


def test_job_that_stays_locked_refuses_the_edit_and_costs_the_caller_nothing(
    workflows: Workflows,
):
    run_id = workflows.enqueue(request())
    holder = workflows.database.connect()
    holder.execute("SELECT FROM runledger.job_queue FOR NO KEY UPDATE")
    connection = workflows.database.connect()

    with pytest.raises(RunledgerError) as refused:
        edit(connection, run_id, lock_timeout_ms=50)

    assert refused.value.code == "db.lock_timeout"
    assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
    connection.commit()
    assert payloads(workflows) == [OLD, OLD]


@pytest.mark.core
def test_claim_has_the_payload_that_is_stored_or_was_never_edited(workflows: Workflows):
    def claim(db: psycopg.Connection[Any]) -> list[Any]:
        jobs = claim_jobs(
            db, worker_id="w", limit=9, lease_ttl_seconds=60, job_types=[JOB_TYPE]
        )  # fmt: skip
        return [job.payload for job in jobs]

    seen: list[tuple[object, object, object]] = []

    def sessions() -> list[Session]:
        workflows.look.execute("DELETE FROM runledger.workflow_runs")
        workflows.look.execute("DELETE FROM runledger.job_queue")
        run_id = workflows.enqueue(request())
        commit = Step("end", lambda context: context.connection.commit())
        return [
            Session(
                "claim",
                workflows.database.connect_directly,
                steps=[Step("write", lambda context: claim(context.connection)), commit],
            ),
            Session(
                "edit",
                workflows.database.connect_directly,
                steps=[Step("write", lambda context: edit(context.connection, run_id)), commit],
            ),
        ]

    def check(run: Interleaving) -> None:
        claimed, edited = (run.outcome(name, "write").value for name in ("claim", "edit"))
        seen.append((claimed, edited, payloads(workflows)[0]))

    permute(sessions, check)

    allowed = [([NEW], True, NEW), ([OLD], False, OLD), ([], True, NEW)]
    assert [one for one in seen if one not in allowed] == []
    assert len(seen) == 6
