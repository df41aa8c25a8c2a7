"""JSON on its way through a run: refused before SQL if it cannot be stored, else it comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from runledger_core import JobCompletion, Scope, ValidationError, WorkflowExternalCompletion
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.lifecycle import complete_job_success
from runledger_postgres.workflows import (
    append_workflow_steps,
    complete_external_workflow_step,
    enqueue_workflow_run,
    get_workflow_run,
    get_workflow_step,
    update_workflow_step_and_pending_job_payload,
    workflow_run_handle,
)
from runledger_postgres.workflows._waiters import RUN_ENDED_CHANNEL, WAITERS_MARK

from ._appending import ROWS, job, request
from .conftest import JOB_TYPE, Workflows
from .engine import Listener

ADMIN = Scope.ADMIN

REFUSED: dict[str, tuple[Any, str]] = {
    "NUL": ("a\0", "input.json_invalid_text"),
    "NUL in a key": ({"a\0": 1}, "input.json_invalid_text"),
    "NUL in a list": ([{"a": ["b\0"]}], "input.json_invalid_text"),
    "lone surrogate": ({"a": "\ud800"}, "input.json_invalid_text"),
    "nan": (math.nan, "input.json_not_finite"),
    "infinity": ({"a": [{"b": -math.inf}]}, "input.json_not_finite"),
    "instant": (datetime.now(UTC), "input.json_unsupported_type"),
    "id": ([uuid4()], "input.json_unsupported_type"),
    "decimal": ({"a": Decimal(1)}, "input.json_unsupported_type"),
    "bytes": (b"a", "input.json_unsupported_type"),
    "set": ({1}, "input.json_unsupported_type"),
}

Write = Callable[[Any, UUID, Any], object]
WRITES: dict[str, Write] = {
    "metadata": lambda db, _run_id, value: enqueue_workflow_run(
        db, WorkflowDagBuilder("test.workflow", value).job("a", JOB_TYPE, {}).build()
    ),
    "payload of a step": lambda db, _run_id, value: enqueue_workflow_run(
        db, WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, value).build()
    ),
    "payload of a gate": lambda db, _run_id, value: enqueue_workflow_run(
        db, WorkflowDagBuilder("test.workflow", {}).external("a", value).build()
    ),
    "payload of an appended step": lambda db, run_id, value: append_workflow_steps(
        db, request(run_id, job("new", payload=value)), scope=ADMIN
    ),
    "metadata of an append": lambda db, run_id, value: append_workflow_steps(
        db, request(run_id, job("new"), mutation_metadata=value), scope=ADMIN
    ),
    "output of a gate": lambda db, run_id, value: complete_external_workflow_step(
        db, run_id, "gate", WorkflowExternalCompletion.succeeded(value), scope=ADMIN
    ),
    "new payload": lambda db, run_id, value: update_workflow_step_and_pending_job_payload(
        db, run_id, "a", value, scope=ADMIN
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("write", WRITES)
def test_value_that_a_run_cannot_hold_never_reaches_the_database(
    workflows: Workflows, write: str, kind: str
):
    value, code = REFUSED[kind]
    run_id = workflows.enqueue_jobs({"gate": [], "a": []}, gates=("gate",))
    before = workflows.value(ROWS)
    connection = workflows.database.connect()
    connection.execute("CREATE TEMPORARY TABLE kept (n int4)")

    with pytest.raises(ValidationError) as refused:
        WRITES[write](connection, run_id, value)
    connection.execute("SELECT FROM kept")
    unchanged = workflows.value(ROWS)
    WRITES[write](connection, run_id, {"a": "good"})
    connection.commit()

    assert refused.value.code == code
    assert unchanged == before
    assert workflows.value(ROWS) != before


# jsonb knows neither minus zero nor floats without a fraction; tuples come back as lists.
EQUALITIES: list[tuple[Any, Any]] = [
    (None, None),
    ({}, {}),
    ({"b": [1, {"a": None}], "a": True}, {"a": True, "b": [1, {"a": None}]}),
    ('é\U0001f600\n\\"', 'é\U0001f600\n\\"'),
    (10**60, 10**60),
    ([-0.0, 2.0, 1e22, 1.5], [0, 2, 10**22, 1.5]),
    ((1, 2), [1, 2]),
]


@pytest.mark.parametrize(("given", "read"), EQUALITIES)
def test_value_comes_back_equal_wherever_it_goes_through_a_run(
    workflows: Workflows, given: Any, read: Any
):
    builder = WorkflowDagBuilder("test.workflow", given).external("gate", given)
    builder = builder.job("a", JOB_TYPE, given, after_success=["gate"]).result_step("a")
    run_id = workflows.enqueue(builder.build())
    pool = workflows.pool

    gate = complete_external_workflow_step(
        pool, run_id, "gate", WorkflowExternalCompletion.succeeded(given), scope=ADMIN
    )
    claimed = workflows.claim()["a"]
    complete_job_success(pool, claimed.lease, JobCompletion(given))

    run = get_workflow_run(pool, run_id, scope=ADMIN)
    stored = get_workflow_step(pool, run_id, "gate", scope=ADMIN)
    assert run is not None
    assert stored is not None
    assert [run.metadata, claimed.payload, gate.output] == [read] * 3
    assert [stored.payload, stored.output] == [read] * 2
    assert workflow_run_handle(pool, ADMIN, run_id).get_result().result == read


def test_largest_payload_and_output_go_through_a_run_and_wake_who_waits(workflows: Workflows):
    payload, output = "x" * (1024 * 1024 - 2), "y" * (256 * 1024 - 2)
    builder = WorkflowDagBuilder("test.workflow", payload).job("a", JOB_TYPE, payload)
    run_id = workflows.enqueue(builder.result_step("a").build())
    waiter = Listener(workflows, RUN_ENDED_CHANNEL, mark=str(WAITERS_MARK))

    claimed = workflows.claim()["a"]
    complete_job_success(workflows.pool, claimed.lease, JobCompletion(output))

    assert waiter.told() == [str(run_id)]
    assert claimed.payload == payload
    assert workflow_run_handle(workflows.pool, ADMIN, run_id).get_result().result == output
