"""Many runs in one call: all or none, each as if it were enqueued alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from runledger_core import ConflictError, EnqueueDisposition, RunledgerError, ValidationError
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue, WorkflowStepEnqueue
from runledger_postgres.workflows import (
    EnqueuedWorkflowRun,
    enqueue_workflow_run,
    enqueue_workflow_runs,
)
from runledger_postgres.workflows import _enqueue as enqueue_module

from .conftest import JOB_TYPE, Workflows
from .engine import until_waiting

INSERTED, EXISTING = EnqueueDisposition.INSERTED, EnqueueDisposition.EXISTING
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GRAPH = """
SELECT s.step_key, s.status::text, s.dependency_count_pending, s.trace_context,
    coalesce(s.payload, q.payload), q.status::text, q.workflow_run_id = s.workflow_run_id,
    ARRAY(
        SELECT p.step_key || ' ' || e.release_mode
        FROM runledger.workflow_step_dependencies e
        JOIN runledger.workflow_steps p ON p.id = e.prerequisite_step_id
        WHERE e.dependent_step_id = s.id AND e.workflow_run_id = s.workflow_run_id
        ORDER BY 1
    )
FROM runledger.workflow_steps s LEFT JOIN runledger.job_queue q ON q.id = s.job_id
WHERE s.workflow_run_id = %s ORDER BY s.id
"""
RUN = """
SELECT workflow_type, organization_id, status::text, steps_open, steps_waiting_external,
    idempotency_key, metadata, enqueue_request, result_step_key
FROM runledger.workflow_runs WHERE id = %s
"""
EMPTY = "TRUNCATE runledger.workflow_runs, runledger.job_queue CASCADE"


def diamond(number: int) -> WorkflowRunEnqueue:
    return (
        WorkflowDagBuilder("test.diamond", {"number": number})
        .job("top", JOB_TYPE, {"number": number})
        .job("left", JOB_TYPE, {"number": number}, after_success=["top"])
        .job("right", JOB_TYPE, {"number": number}, after_terminal=["top"])
        .job("bottom", JOB_TYPE, {"number": number}, after_success=["left", "right"])
        .build()
    )


def gate(key: str | None, *, metadata: int = 0) -> WorkflowRunEnqueue:
    """Return a run that waits for its gate, and then has something to do."""
    return replace(
        WorkflowDagBuilder("test.gate", metadata)
        .external("gate", {})
        .job("after", JOB_TYPE, {}, after_success=["gate"])
        .build(),
        idempotency_key=key,
        result_step_key="after",
    )


def unknown_type() -> WorkflowRunEnqueue:
    steps = [WorkflowStepEnqueue("known", JOB_TYPE), WorkflowStepEnqueue("not", "test.unknown")]
    return WorkflowRunEnqueue("test.unknown", steps=steps)


def stored(workflows: Workflows, run_id: UUID) -> tuple[list[tuple[object, ...]], ...]:
    look = workflows.look
    return look.execute(RUN, [run_id]).fetchall(), look.execute(GRAPH, [run_id]).fetchall()


def count(workflows: Workflows) -> list[int]:
    return [
        workflows.value(f"SELECT count(*)::int4 FROM runledger.{table}")
        for table in ("workflow_runs", "workflow_steps", "workflow_step_dependencies", "job_queue")
    ]


@pytest.mark.core
def test_each_run_of_a_call_is_stored_as_if_it_were_alone(workflows: Workflows):
    requests = [
        diamond(1),
        gate("key"),
        replace(diamond(2), organization_id=UUID(int=1)),
        gate(None),
    ]

    results = enqueue_workflow_runs(workflows.pool, requests)

    assert [result.disposition for result in results] == [INSERTED] * 4
    together = [stored(workflows, result.id) for result in results]
    workflows.look.execute(EMPTY)
    alone = [enqueue_workflow_run(workflows.pool, request) for request in requests]
    assert together == [stored(workflows, result.id) for result in alone]
    assert [len(graph) for _, graph in together] == [4, 2, 4, 2]


def test_trace_of_a_call_is_that_of_all_its_steps(workflows: Workflows):
    results = enqueue_workflow_runs(workflows.pool, [diamond(1), gate("a")], trace_context=TRACE)

    traces = workflows.value("SELECT array_agg(trace_context) FROM runledger.workflow_steps")
    assert traces == [TRACE] * 6
    assert len(results) == 2


def test_no_runs_are_no_statement(workflows: Workflows):
    with closing(workflows.database.connect()) as connection:
        assert enqueue_workflow_runs(connection, []) == []

        assert connection.info.transaction_status is TransactionStatus.IDLE


def test_other_things_than_requests_are_refused_by_their_place(workflows: Workflows):
    requests: list[object] = [diamond(1), {"workflow_type": "test.diamond"}]

    with pytest.raises(ValidationError) as refused:
        enqueue_workflow_runs(workflows.pool, requests)  # pyright: ignore[reportArgumentType]  # on purpose

    assert (refused.value.code, refused.value.field) == ("input.wrong_type", "requests[1]")


def test_step_of_unknown_type_refuses_all_runs_and_is_named(workflows: Workflows):
    with closing(workflows.database.connect()) as connection:
        with pytest.raises(ValidationError) as refused:
            enqueue_workflow_runs(connection, [diamond(1), gate("key"), unknown_type(), diamond(2)])
        after = enqueue_workflow_run(connection, diamond(3))
        connection.commit()

    assert refused.value.code == "workflow.definition_not_found_or_disabled"
    assert (refused.value.entry_index, refused.value.field) == (2, "steps[1].job_type")
    assert count(workflows) == [1, 4, 4, 1]
    assert len(stored(workflows, after.id)[1]) == 4


def test_key_that_is_repeated_in_a_call_is_one_run(workflows: Workflows):
    results = enqueue_workflow_runs(
        workflows.pool, [gate("a"), gate("b"), gate("a"), diamond(1), diamond(1)]
    )

    assert [result.disposition for result in results] == [
        INSERTED, INSERTED, EXISTING, INSERTED, INSERTED,
    ]  # fmt: skip
    assert results[2].id == results[0].id
    assert len({result.id for result in results}) == 4
    assert count(workflows)[0] == 4


def test_other_request_under_a_key_of_the_same_call_is_a_conflict(workflows: Workflows):
    with pytest.raises(ConflictError) as refused:
        enqueue_workflow_runs(workflows.pool, [diamond(1), gate("a"), gate("a", metadata=1)])

    assert (refused.value.code, refused.value.entry_index) == (
        "workflow.enqueue_conflicting_retry", 2,
    )  # fmt: skip
    assert count(workflows) == [0, 0, 0, 0]


def test_stored_keys_are_found_beside_new_ones_whatever_became_of_their_types(
    workflows: Workflows,
):
    workflows.look.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.old')")
    old = WorkflowRunEnqueue(
        "test.old", steps=[WorkflowStepEnqueue("one", "test.old")], idempotency_key="old"
    )
    first = enqueue_workflow_run(workflows.pool, old)
    workflows.look.execute("DELETE FROM runledger.job_definitions WHERE job_type = 'test.old'")

    results = enqueue_workflow_runs(workflows.pool, [gate("new"), old])

    assert results[1] == EnqueuedWorkflowRun(first.id, EXISTING)
    assert results[0].disposition is INSERTED


def test_first_refusal_in_order_is_reported(workflows: Workflows):
    enqueue_workflow_run(workflows.pool, gate("a"))
    conflict, unknown = gate("a", metadata=1), unknown_type()

    def code(requests: Sequence[WorkflowRunEnqueue]) -> tuple[str, int | None]:
        with pytest.raises(RunledgerError) as refused:
            enqueue_workflow_runs(workflows.pool, requests)
        return refused.value.code, refused.value.entry_index

    assert code([conflict, unknown]) == ("workflow.enqueue_conflicting_retry", 0)
    assert code([unknown, conflict]) == ("workflow.definition_not_found_or_disabled", 0)


def test_keys_need_read_committed(workflows: Workflows):
    with closing(workflows.database.connect()) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(ValidationError) as refused:
            enqueue_workflow_runs(connection, [diamond(1), gate("a")])

    assert (refused.value.code, refused.value.entry_index) == (
        "workflow.enqueue_idempotency_unsupported_isolation", 1,
    )  # fmt: skip


@pytest.mark.parametrize("call", [enqueue_workflow_run, enqueue_workflow_runs])
def test_more_than_a_statement_can_carry_is_refused_before_it_is_sent(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch, call
):
    monkeypatch.setattr(enqueue_module, "_MOST_CHARACTERS", 10)
    request = diamond(1)

    with pytest.raises(ValidationError) as refused:
        call(workflows.pool, request if call is enqueue_workflow_run else [request])

    assert refused.value.code == "workflow.enqueue_too_large"
    assert count(workflows) == [0, 0, 0, 0]


def test_two_calls_with_the_same_keys_in_opposite_order_do_not_deadlock(workflows: Workflows):
    requests = [gate("a"), gate("b"), gate("c")]

    def enqueue(mine: Sequence[WorkflowRunEnqueue]) -> list[EnqueuedWorkflowRun]:
        with closing(workflows.database.connect()) as connection:
            results = enqueue_workflow_runs(connection, mine)
            connection.commit()
            return results

    with closing(workflows.database.connect()) as holder, ThreadPoolExecutor(2) as background:
        # Each has inserted something before it waits for the key in the middle.
        enqueue_workflow_run(holder, gate("b"))
        one = background.submit(enqueue, requests)
        until_waiting(workflows)
        other = background.submit(enqueue, requests[::-1])
        until_waiting(workflows, 2)
        holder.rollback()

        assert [run.id for run in one.result()] == [run.id for run in other.result()[::-1]]
    assert count(workflows)[:2] == [3, 6]


def test_conflict_that_is_found_after_a_wait_leaves_nothing_of_the_call(workflows: Workflows):
    with (
        closing(workflows.database.connect()) as one,
        closing(workflows.database.connect()) as other,
        ThreadPoolExecutor(1) as background,
    ):
        enqueue_workflow_run(one, gate("b"))
        waiting = background.submit(
            enqueue_workflow_runs, other, [gate("a"), gate("b", metadata=1), diamond(1)]
        )
        until_waiting(workflows)
        one.commit()
        with pytest.raises(ConflictError) as refused:
            waiting.result()
        enqueue_workflow_run(other, diamond(2))
        other.commit()

    assert refused.value.entry_index == 1
    keys = workflows.value("SELECT array_agg(idempotency_key) FROM runledger.workflow_runs")
    assert sorted(keys, key=str) == [None, "b"]
    assert count(workflows)[:2] == [2, 6]
