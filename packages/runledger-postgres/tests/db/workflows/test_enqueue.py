"""What an enqueue stores, what it repeats, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from psycopg.rows import dict_row

from runledger_core import (
    ConflictError,
    EnqueueDisposition,
    JobStage,
    RunledgerError,
    Scope,
    ValidationError,
)
from runledger_core.workflows import (
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepExecutionKind,
)
from runledger_postgres import get_job
from runledger_postgres.jobs import list_job_events
from runledger_postgres.workflows import EnqueuedWorkflowRun, enqueue_workflow_run

from .conftest import JOB_TYPE, Workflows
from .engine import sleeper

ADMIN = Scope.ADMIN
INSERTED, EXISTING = EnqueueDisposition.INSERTED, EnqueueDisposition.EXISTING
OWNER, OTHER_OWNER = UUID(int=1), UUID(int=2)
KEY = "a key that no error shows"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EXTERNAL = WorkflowStepExecutionKind.EXTERNAL

STEPS = """
SELECT s.*, s.status::text AS status, s.execution_kind::text AS execution_kind,
    coalesce(s.payload, q.payload) AS payload, s.payload IS NULL AS is_released
FROM runledger.workflow_steps s
LEFT JOIN runledger.job_queue q ON q.id = s.job_id
WHERE s.workflow_run_id = %s ORDER BY s.id
"""
EDGES = """
SELECT p.step_key, d.step_key, e.release_mode::text
FROM runledger.workflow_step_dependencies e
JOIN runledger.workflow_steps p ON p.id = e.prerequisite_step_id
JOIN runledger.workflow_steps d ON d.id = e.dependent_step_id
WHERE e.workflow_run_id = %s
"""


def edge(key: str, mode: Any = "ON_SUCCESS") -> WorkflowStepDependencySpec:
    return WorkflowStepDependencySpec(key, mode)


FIRST = WorkflowStepEnqueue("first", JOB_TYPE, payload={"n": 1, "of": [1, 2]})
SECOND = WorkflowStepEnqueue(
    "second", JOB_TYPE, dependencies=[edge("first"), edge("gate", "ON_TERMINAL")]
)
GATE = WorkflowStepEnqueue("gate", None, execution_kind=EXTERNAL, payload=None)
REQUEST = WorkflowRunEnqueue("test.workflow", {"of": "whom"}, steps=[FIRST, SECOND, GATE])
KEYED = replace(REQUEST, idempotency_key=KEY)


def steps_of(workflows: Workflows, run_id: UUID) -> dict[str, dict[str, Any]]:
    cursor = workflows.look.cursor(row_factory=dict_row)
    return {row["step_key"]: row for row in cursor.execute(STEPS, [run_id])}


def edges_of(workflows: Workflows, run_id: UUID) -> set[tuple[str, str, str]]:
    return set(workflows.look.execute(EDGES, [run_id]).fetchall())


def count(workflows: Workflows, table: str) -> int:
    return workflows.value(f"SELECT count(*)::int4 FROM runledger.{table}")


def enqueue(workflows: Workflows, request: WorkflowRunEnqueue) -> EnqueuedWorkflowRun:
    return enqueue_workflow_run(workflows.pool, request)


def with_steps(request: WorkflowRunEnqueue, *steps: WorkflowStepEnqueue) -> WorkflowRunEnqueue:
    return replace(request, steps=steps)


@pytest.mark.core
def test_enqueue_stores_the_graph_and_releases_what_waits_for_nothing(workflows: Workflows):
    result = enqueue(workflows, replace(REQUEST, result_step_key="second"))

    steps = steps_of(workflows, result.id)
    assert result.disposition is INSERTED
    assert list(steps) == ["first", "second", "gate"]
    assert {key: step["status"] for key, step in steps.items()} == {
        "first": "ENQUEUED", "second": "BLOCKED", "gate": "WAITING_FOR_EXTERNAL",
    }  # fmt: skip
    assert edges_of(workflows, result.id) == {
        ("first", "second", "ON_SUCCESS"), ("gate", "second", "ON_TERMINAL"),
    }  # fmt: skip
    assert workflows.look.execute(
        "SELECT status::text, steps_open, steps_waiting_external, metadata, result_step_key,"
        " enqueue_request, finished_at FROM runledger.workflow_runs"
    ).fetchall() == [("RUNNING", 3, 1, {"of": "whom"}, "second", None, None)]  # fmt: skip
    job = get_job(workflows.pool, steps["first"]["job_id"], scope=ADMIN)
    assert job is not None
    assert (job.payload, job.workflow_run_id) == ({"n": 1, "of": [1, 2]}, result.id)


def test_released_step_has_one_job_with_one_start_of_its_history(workflows: Workflows):
    run_id = enqueue(workflows, REQUEST).id

    job_id = steps_of(workflows, run_id)["first"]["job_id"]

    events = list_job_events(workflows.pool, job_id, scope=ADMIN)
    assert [event.event_type for event in events] == ["ENQUEUED"]
    assert count(workflows, "job_queue") == 1


@pytest.mark.parametrize(
    ("steps", "status"),
    [([FIRST], "RUNNING"), ([GATE], "WAITING_FOR_EXTERNAL"), ([FIRST, GATE], "RUNNING")],
)
def test_status_of_a_run_follows_from_how_its_steps_begin(workflows: Workflows, steps, status):
    run_id = enqueue(workflows, with_steps(REQUEST, *steps)).id

    assert workflows.status(run_id) == status


def test_payload_is_with_the_step_until_its_release_then_with_the_job(workflows: Workflows):
    run_id = enqueue(workflows, REQUEST).id

    steps = steps_of(workflows, run_id)

    assert {key: step["is_released"] for key, step in steps.items()} == {
        "first": True, "second": False, "gate": False,
    }  # fmt: skip


def test_null_payload_is_stored_as_such(workflows: Workflows):
    blocked = WorkflowStepEnqueue("blocked", JOB_TYPE, payload=None, dependencies=[edge("first")])
    first = replace(FIRST, payload=None)
    run_id = enqueue(workflows, with_steps(REQUEST, first, blocked, GATE)).id
    stored = """
        SELECT jsonb_typeof(coalesce(s.payload, q.payload)) FROM runledger.workflow_steps s
        LEFT JOIN runledger.job_queue q ON q.id = s.job_id WHERE s.workflow_run_id = %s
    """

    types = workflows.look.execute(stored, [run_id]).fetchall()
    workflows.succeed(workflows.claim()["first"])

    assert types == [("null",)] * 3
    assert workflows.claim()["blocked"].payload is None


def test_left_out_settings_come_from_the_definition_and_others_win(workflows: Workflows):
    workflows.look.execute(
        "UPDATE runledger.job_definitions SET default_priority = 7, max_attempts = 3,"
        " default_timeout_seconds = 20"
    )
    own = WorkflowStepEnqueue(
        "own", JOB_TYPE, priority=-5, max_attempts=9, timeout_seconds=1, stage=JobStage.SCHEDULED
    )

    run_id = enqueue(workflows, with_steps(REQUEST, FIRST, own, SECOND, GATE)).id

    columns = ("priority", "max_attempts", "timeout_seconds", "stage")
    settings = {
        key: tuple(step[column] for column in columns)
        for key, step in steps_of(workflows, run_id).items()
    }
    assert settings == {
        "first": (7, 3, 20, "queued"),
        "own": (-5, 9, 1, "scheduled"),
        "second": (7, 3, 20, "queued"),
        "gate": (None, None, None, None),
    }
    jobs = workflows.look.execute(
        "SELECT priority, max_attempts, timeout_seconds, stage FROM runledger.job_queue ORDER BY id"
    ).fetchall()
    assert jobs == [settings["first"], settings["own"]]


def test_steps_belong_to_the_run_owner_unless_they_name_another(workflows: Workflows):
    other = WorkflowStepEnqueue("other", JOB_TYPE, organization_id=OTHER_OWNER)
    request = replace(with_steps(REQUEST, FIRST, other, GATE), organization_id=OWNER)

    run_id = enqueue(workflows, request).id

    owners = {key: step["organization_id"] for key, step in steps_of(workflows, run_id).items()}
    assert owners == {"first": OWNER, "other": OTHER_OWNER, "gate": OWNER}
    jobs = "SELECT organization_id FROM runledger.job_queue ORDER BY id"
    assert workflows.look.execute(jobs).fetchall() == [(OWNER,), (OTHER_OWNER,)]


def test_large_graph_keeps_every_field_and_edge(workflows: Workflows):
    # More than any statement would carry in parts, each step different from the others.
    steps = [
        WorkflowStepEnqueue(
            f"step-{n:03}",
            JOB_TYPE,
            payload={"n": n},
            priority=n,
            dependencies=[
                edge(f"step-{m:03}", ("ON_SUCCESS", "ON_TERMINAL")[(n + m) % 2])
                for m in range(max(0, n - 3), n)
            ],
        )
        for n in range(270)
    ]

    run_id = enqueue(workflows, with_steps(REQUEST, *steps)).id

    stored = steps_of(workflows, run_id)
    assert [(key, row["payload"], row["priority"]) for key, row in stored.items()] == [
        (step.step_key, {"n": n}, n) for n, step in enumerate(steps)
    ]
    assert edges_of(workflows, run_id) == {
        (needed.prerequisite_step_key, step.step_key, str(needed.release_mode))
        for step in steps
        for needed in step.dependencies
    }
    assert [row["dependency_count_pending"] for row in stored.values()][:5] == [0, 1, 2, 3, 3]
    assert count(workflows, "job_queue") == 1


@pytest.mark.parametrize("change", ["DELETE FROM {0}", "UPDATE {0} SET is_enabled = false"])
def test_one_unknown_type_refuses_all_steps(workflows: Workflows, change):
    table = "runledger.job_definitions"
    workflows.look.execute(f"INSERT INTO {table} (job_type) VALUES ('test.other')")
    workflows.look.execute(change.format(table) + " WHERE job_type = 'test.other'")
    other = WorkflowStepEnqueue("other", "test.other", dependencies=[edge("first")])

    with pytest.raises(ValidationError) as refused:
        enqueue(workflows, with_steps(REQUEST, FIRST, SECOND, GATE, other))

    assert refused.value.code == "workflow.definition_not_found_or_disabled"
    assert (refused.value.field, refused.value.entry_index) == ("job_type", 3)
    tables = ("workflow_runs", "workflow_steps", "workflow_step_dependencies", "job_queue")
    assert [count(workflows, table) for table in tables] == [0, 0, 0, 0]


def test_enqueue_without_a_key_is_always_a_new_run(workflows: Workflows):
    first, second = enqueue(workflows, REQUEST), enqueue(workflows, REQUEST)

    assert first.id != second.id
    assert (first.disposition, second.disposition) == (INSERTED, INSERTED)
    assert count(workflows, "workflow_runs") == 2


SAME_REQUESTS: dict[str, Callable[[], WorkflowRunEnqueue]] = {
    "equal": lambda: KEYED,
    "numbers that are equal": lambda: with_steps(
        KEYED, replace(FIRST, payload={"of": [1.0, 2], "n": 1.0}), SECOND, GATE
    ),
    "steps in another order": lambda: with_steps(KEYED, GATE, SECOND, FIRST),
    "edges in another order": lambda: with_steps(
        KEYED, FIRST, replace(SECOND, dependencies=SECOND.dependencies[::-1]), GATE
    ),
    "the first stage by name": lambda: with_steps(
        KEYED, replace(FIRST, stage=JobStage.QUEUED), SECOND, GATE
    ),
}
OTHER_REQUESTS: dict[str, Callable[[], WorkflowRunEnqueue]] = {
    "metadata": lambda: replace(KEYED, metadata={}),
    "payload": lambda: with_steps(KEYED, replace(FIRST, payload={}), SECOND, GATE),
    "null for an empty payload": lambda: with_steps(
        KEYED, FIRST, replace(SECOND, payload=None), GATE
    ),
    "priority": lambda: with_steps(KEYED, replace(FIRST, priority=100), SECOND, GATE),
    "mode": lambda: with_steps(
        KEYED, FIRST, replace(SECOND, dependencies=[edge("first"), edge("gate")]), GATE
    ),
    "result": lambda: replace(KEYED, result_step_key="first"),
    "step": lambda: with_steps(KEYED, FIRST, SECOND, GATE, replace(FIRST, step_key="more")),
}


@pytest.mark.core
@pytest.mark.parametrize("again", SAME_REQUESTS)
def test_equal_request_under_a_key_gets_the_run_of_the_first(workflows: Workflows, again):
    first = enqueue(workflows, KEYED)

    repeated = enqueue(workflows, SAME_REQUESTS[again]())

    assert repeated == EnqueuedWorkflowRun(first.id, EXISTING)
    assert [count(workflows, table) for table in ("workflow_runs", "workflow_steps")] == [1, 3]
    assert count(workflows, "job_queue") == 1


@pytest.mark.parametrize("other", OTHER_REQUESTS)
def test_other_request_under_a_key_is_a_conflict_that_hides_the_key(workflows: Workflows, other):
    enqueue(workflows, KEYED)

    with pytest.raises(ConflictError) as refused:
        enqueue(workflows, OTHER_REQUESTS[other]())

    assert refused.value.code == "workflow.enqueue_conflicting_retry"
    assert KEY not in f"{refused.value!r} {refused.value}"
    assert count(workflows, "workflow_runs") == 1


def test_keys_of_types_and_owners_are_their_own(workflows: Workflows):
    requests = [
        KEYED,
        replace(KEYED, organization_id=OWNER),
        replace(KEYED, organization_id=OTHER_OWNER),
        replace(KEYED, workflow_type="test.other"),
    ]

    first = [enqueue(workflows, request) for request in requests]
    again = [enqueue(workflows, request) for request in requests]

    assert len({run.id for run in first}) == 4
    assert [run.id for run in again] == [run.id for run in first]
    assert {run.disposition for run in again} == {EXISTING}


def test_repeat_is_compared_with_the_request_not_with_what_became_of_it(workflows: Workflows):
    first = enqueue(workflows, KEYED)
    workflows.look.execute("UPDATE runledger.workflow_steps SET priority = 1, payload = '5'"
                           " WHERE step_key = 'second'")  # fmt: skip
    workflows.look.execute("UPDATE runledger.job_definitions SET is_enabled = false")

    assert enqueue(workflows, KEYED) == EnqueuedWorkflowRun(first.id, EXISTING)


def test_run_from_before_requests_were_kept_cannot_be_compared(workflows: Workflows):
    enqueue(workflows, KEYED)
    workflows.look.execute(
        "ALTER TABLE runledger.workflow_runs"
        " DROP CONSTRAINT ck_workflow_runs_idempotency_enqueue_request"
    )
    workflows.look.execute("UPDATE runledger.workflow_runs SET enqueue_request = NULL")

    with pytest.raises(ConflictError) as refused:
        enqueue(workflows, KEYED)

    assert refused.value.code == "workflow.legacy_idempotency_snapshot_missing"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_key_needs_read_committed_and_its_refusal_leaves_the_transaction(
    workflows: Workflows, level
):
    with closing(workflows.database.connect()) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(ValidationError) as refused:
            enqueue_workflow_run(connection, KEYED)
        enqueue_workflow_run(connection, REQUEST)
        connection.commit()

    assert refused.value.code == "workflow.enqueue_idempotency_unsupported_isolation"
    assert workflows.look.execute(
        "SELECT idempotency_key FROM runledger.workflow_runs"
    ).fetchall() == [(None,)]


@pytest.mark.parametrize("request_", [REQUEST, KEYED], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_enqueue_is_part_of_the_callers_transaction(workflows: Workflows, request_, end):
    with closing(workflows.database.connect()) as connection:
        enqueue_workflow_run(connection, request_)
        unseen = count(workflows, "workflow_runs")
        getattr(connection, end)()

    assert unseen == 0
    assert count(workflows, "workflow_runs") == (1 if end == "commit" else 0)


def test_constraint_that_is_checked_at_once_finds_the_result_step(workflows: Workflows):
    with closing(workflows.database.connect()) as connection:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        run_id = enqueue_workflow_run(connection, replace(REQUEST, result_step_key="second")).id
        connection.commit()

    assert workflows.status(run_id) == "RUNNING"


def test_trace_context_goes_with_every_step_and_is_no_part_of_the_request(workflows: Workflows):
    first = enqueue_workflow_run(workflows.pool, KEYED, trace_context=TRACE)
    again = enqueue_workflow_run(workflows.pool, KEYED, trace_context=None)
    job = workflows.claim()["first"]

    assert again.id == first.id
    assert job.trace_context == TRACE
    traces = {row["trace_context"] for row in steps_of(workflows, first.id).values()}
    assert traces == {TRACE}


@pytest.mark.parametrize(
    ("trace_context", "code"),
    [
        ("\0", "input.invalid_characters"),
        ("ü", "input.invalid_characters"),
        ("", "input.blank"),
        ("x" * 1_025, "input.too_long"),
        (7, "input.wrong_type"),
    ],
)
def test_trace_context_is_checked_before_any_sql(trace_context, code):
    with pytest.raises(RunledgerError) as refused:
        enqueue_workflow_run(None, REQUEST, trace_context=trace_context)  # pyright: ignore[reportArgumentType]  # never used

    assert (refused.value.code, refused.value.field) == (code, "trace_context")


def test_request_must_be_one():
    with pytest.raises(ValidationError) as refused:
        enqueue_workflow_run(None, {"steps": []})  # pyright: ignore[reportArgumentType]  # that is the point

    assert (refused.value.code, refused.value.field) == ("input.wrong_type", "request")


def test_sleeping_worker_is_woken_once_for_all_first_steps(workflows: Workflows):
    steps = [replace(FIRST, step_key=str(number)) for number in range(5)]
    worker = sleeper(workflows)

    enqueue(workflows, with_steps(REQUEST, *steps))

    assert worker.told() == [JOB_TYPE]
