"""Runs, steps and edges as they are read; what a job knows is read from the job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from runledger_core import (
    UNSET,
    InternalError,
    JobCompletion,
    JobEnqueue,
    JobFailure,
    JsonInput,
    NotFoundError,
    Scope,
    UnavailableError,
    ValidationError,
)
from runledger_core.workflows import WorkflowDagBuilder, WorkflowStepEnqueueBuilder
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import complete_job_failure, complete_job_success
from runledger_postgres.workflows import (
    WorkflowStepDependencyCursor,
    WorkflowStepRecord,
    get_latest_workflow_run_by_type,
    get_workflow_run,
    get_workflow_run_by_type_and_idempotency_key,
    get_workflow_run_id_for_job,
    get_workflow_step,
    list_workflow_step_dependencies,
    list_workflow_step_keys_for_update,
    list_workflow_steps,
)
from runledger_test_support import make_due

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
MINE, OTHER = uuid4(), uuid4()
FAN = {"a": [], "b": ["a"], "c": {"a": "terminal"}, "d": ["b", "c"]}
BUSY = JobFailure.retryable("test.busy", "try later")

# Whoever ran SQL on this would fail with another error.
NO_DATABASE: Any = object()


def step_of(workflows: Workflows, run_id: UUID, key: str) -> WorkflowStepRecord:
    step = get_workflow_step(workflows.pool, run_id, key, scope=ADMIN)
    assert step is not None
    return step


def listed(workflows: Workflows, run_id: UUID) -> dict[str, str]:
    return {
        step.step_key: step.status
        for step in list_workflow_steps(workflows.pool, run_id, scope=ADMIN)
    }


def add_gate(workflows: Workflows, run_id: UUID, key: str) -> None:
    """Add an open gate to a run, counters and all, and leave it to the caller to commit."""
    workflows.look.execute(
        """
        WITH added AS (
            INSERT INTO runledger.workflow_steps (
                workflow_run_id, step_key, execution_kind, status, payload
            )
            VALUES (%(run)s, %(key)s, 'EXTERNAL', 'WAITING_FOR_EXTERNAL', '{}')
        )
        UPDATE runledger.workflow_runs
        SET steps_open = steps_open + 1, steps_waiting_external = steps_waiting_external + 1
        WHERE id = %(run)s
        """,
        {"run": run_id, "key": key},
    )


@pytest.mark.core
def test_run_is_read_with_what_it_was_enqueued_with(workflows: Workflows):
    request = (
        WorkflowDagBuilder("test.workflow", {"source": "api"})
        .organization_id(MINE)
        .idempotency_key("profile:1")
        .job("a", JOB_TYPE, {})
        .job("b", JOB_TYPE, {}, after_success=["a"])
        .external("approval", {})
        .result_step("b")
        .build()
    )
    run_id = workflows.enqueue(request)

    run = get_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert run is not None
    assert (run.id, run.workflow_type, run.organization_id) == (run_id, "test.workflow", MINE)
    assert (run.status, run.idempotency_key, run.result_step_key) == ("RUNNING", "profile:1", "b")
    assert run.metadata == {"source": "api"}
    assert (run.steps_open, run.steps_waiting_external) == (3, 1)
    assert (run.steps_failed, run.steps_canceled) == (0, 0)
    assert run.created_at == run.started_at <= run.updated_at
    assert run.finished_at is None


def test_ended_run_tells_when_and_how(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    workflows.fail(workflows.claim()["a"])

    run = get_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert run is not None
    assert (run.status, run.steps_failed, run.steps_canceled) == ("COMPLETED_WITH_ERRORS", 1, 1)
    assert (run.steps_open, run.finished_at is not None) == (0, True)


@pytest.mark.core
@pytest.mark.parametrize(
    ("owner", "scope", "is_found"),
    [
        (MINE, Scope.organization(MINE), True),
        (MINE, Scope.organization(OTHER), False),
        (MINE, Scope.GLOBAL, False),
        (MINE, ADMIN, True),
        (None, Scope.organization(MINE), False),
        (None, Scope.GLOBAL, True),
        (None, ADMIN, True),
    ],
)
def test_run_and_all_of_it_are_read_in_its_scope_only(
    workflows: Workflows, owner: UUID | None, scope: Scope, is_found: bool
):
    builder = WorkflowDagBuilder("test.workflow", {}).idempotency_key("key")
    # The job of a step may belong to another organization; the run decides.
    foreign = WorkflowStepEnqueueBuilder("b", JOB_TYPE, {}).organization_id(OTHER)
    builder = builder.job("a", JOB_TYPE, {}).step(foreign.depends_on_success(["a"]).build())
    run_id = workflows.enqueue((builder.organization_id(owner) if owner else builder).build())
    pool, job = workflows.pool, workflows.claim()["a"]

    found = [
        get_workflow_run(pool, run_id, scope=scope),
        get_latest_workflow_run_by_type(pool, "test.workflow", scope=scope),
        get_workflow_run_id_for_job(pool, job.id, scope=scope),
        get_workflow_step(pool, run_id, "a", scope=scope),
        get_workflow_step(pool, run_id, "b", scope=scope),
        list_workflow_steps(pool, run_id, scope=scope),
        list_workflow_steps(pool, run_id, scope=scope, before=UUID(int=2**128 - 1)),
        list_workflow_step_dependencies(pool, run_id, scope=scope),
        list_workflow_step_dependencies(
            pool,
            run_id,
            scope=scope,
            before=WorkflowStepDependencyCursor(*[UUID(int=2**128 - 1)] * 2),
        ),
    ]

    assert [bool(one) for one in found] == [is_found] * len(found)
    if scope != ADMIN:
        by_key = get_workflow_run_by_type_and_idempotency_key(
            pool, "test.workflow", "key", scope=scope
        )
        assert (by_key is not None) is is_found


@pytest.mark.core
def test_step_runs_while_a_worker_has_its_job(workflows: Workflows):
    run_id = workflows.enqueue_jobs(FAN)
    before = step_of(workflows, run_id, "a")
    job = workflows.claim()["a"]
    running, seen = step_of(workflows, run_id, "a"), listed(workflows, run_id)
    workflows.succeed(job, {"n": 1})
    after = step_of(workflows, run_id, "a")

    assert (before.status, before.attempt, before.started_at) == ("ENQUEUED", 0, None)
    assert (running.status, running.attempt, running.stage) == ("RUNNING", 1, "running")
    assert running.started_at is not None
    assert running.updated_at > before.updated_at
    assert seen == {"a": "RUNNING", "b": "BLOCKED", "c": "BLOCKED", "d": "BLOCKED"}
    assert (after.status, after.output, after.stage) == ("SUCCEEDED", {"n": 1}, "completed")
    assert after.started_at == running.started_at
    assert after.finished_at is not None
    assert listed(workflows, run_id)["b"] == "ENQUEUED"


def test_waiting_retry_shows_why_the_last_attempt_failed(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})
    first = workflows.claim()["a"]
    complete_job_failure(workflows.pool, first.lease, BUSY, retry_delay_ms=60_000)
    waiting = step_of(workflows, run_id, "a")
    make_due(workflows.pool, first.id)
    second = workflows.claim()["a"]
    again = step_of(workflows, run_id, "a")
    workflows.succeed(second)
    done = step_of(workflows, run_id, "a")

    texts = ("RETRYABLE", "test.busy", "try later")
    assert (waiting.status, waiting.attempt) == ("ENQUEUED", 1)
    assert (waiting.status_reason, waiting.last_error_code, waiting.last_error_message) == texts
    assert (again.status, again.attempt) == ("RUNNING", 2)
    assert (again.status_reason, again.last_error_code, again.last_error_message) == texts
    assert again.started_at == waiting.started_at
    assert (done.status, done.last_error_code, done.last_error_message) == ("SUCCEEDED", None, None)


def test_failed_step_and_the_one_that_it_dooms_say_why(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    workflows.fail(workflows.claim()["a"])

    failed, doomed = (step_of(workflows, run_id, key) for key in "ab")

    assert (failed.status, failed.status_reason) == ("FAILED", "TERMINAL")
    assert (failed.last_error_code, failed.last_error_message) == ("test.failed", "no")
    assert (doomed.status, doomed.status_reason) == ("CANCELED", "workflow.dependency_unsatisfied")
    assert doomed.last_error_code == "workflow.dependency_unsatisfied"
    assert (doomed.job_id, doomed.attempt, doomed.released_at) == (None, None, None)
    assert doomed.dependency_count_unsatisfied == 1
    summaries = list_workflow_steps(workflows.pool, run_id, scope=ADMIN)
    assert [(one.status, one.last_error_code) for one in summaries] == [
        ("FAILED", "test.failed"),
        ("CANCELED", "workflow.dependency_unsatisfied"),
    ]


def test_gate_has_columns_of_its_own_and_none_of_a_job(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": [], "a": []}, gates=("gate",))
    workflows.look.execute(
        "UPDATE runledger.workflow_steps SET status_reason = 'r', last_error_code = 'c.d',"
        " last_error_message = 'm', output = '[1]' WHERE step_key = 'gate'"
    )

    gate = step_of(workflows, run_id, "gate")

    assert (gate.execution_kind, gate.status) == ("EXTERNAL", "WAITING_FOR_EXTERNAL")
    assert (gate.job_type, gate.job_id, gate.attempt, gate.stage) == (None, None, None, None)
    assert (gate.priority, gate.max_attempts, gate.timeout_seconds) == (None, None, None)
    assert (gate.status_reason, gate.last_error_code, gate.last_error_message) == ("r", "c.d", "m")
    assert (gate.payload, gate.output) == ({}, [1])
    assert gate.released_at is not None


@pytest.mark.parametrize("payload", [None, {}, {"a": [1, None]}, "text", 0, False])
def test_payload_is_the_same_before_and_after_the_release(workflows: Workflows, payload: JsonInput):
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, payload)
    run_id = workflows.enqueue(builder.job("b", JOB_TYPE, payload, after_success=["a"]).build())
    released, blocked = (step_of(workflows, run_id, key) for key in "ab")
    workflows.succeed(workflows.claim()["a"])

    assert (released.job_id is None, blocked.job_id is None) == (False, True)
    assert (released.payload, blocked.payload) == (payload, payload)
    assert step_of(workflows, run_id, "b").payload == payload


def test_null_output_is_not_no_output(workflows: Workflows):
    run_id = workflows.enqueue_jobs(
        {"null": [], "none": [], "gate": [], "open": []}, gates=("gate", "open")
    )
    jobs = workflows.claim()
    workflows.succeed(jobs["null"], None)
    complete_job_success(workflows.pool, jobs["none"].lease, JobCompletion())
    workflows.look.execute(
        "UPDATE runledger.workflow_steps SET output = 'null' WHERE step_key = 'gate'"
    )

    outputs = {key: step_of(workflows, run_id, key).output for key in workflows.steps(run_id)}

    assert outputs == {"null": None, "none": UNSET, "gate": None, "open": UNSET}


def test_step_whose_job_somebody_deleted_is_shown_without_what_the_job_knew(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})

    with workflows.pool.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM runledger.job_queue")
        step = get_workflow_step(connection, run_id, "a", scope=ADMIN)

    assert step is not None
    assert (step.status, step.payload, step.attempt) == ("ENQUEUED", UNSET, None)


def test_unreadable_json_fails_the_detail_and_not_the_list(workflows: Workflows):
    run_id = workflows.enqueue_jobs(FAN)
    workflows.look.execute("UPDATE runledger.workflow_runs SET metadata = '1e5000'")
    workflows.look.execute("UPDATE runledger.job_queue SET payload = '1e5000'")

    with pytest.raises(InternalError) as of_step:
        get_workflow_step(workflows.pool, run_id, "a", scope=ADMIN)
    with pytest.raises(InternalError) as of_run:
        get_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert (of_step.value.code, of_step.value.field) == ("job.undecodable_row", "payload")
    assert (of_run.value.code, of_run.value.field) == ("job.undecodable_row", "metadata")
    assert set(listed(workflows, run_id)) == set(FAN)


@pytest.mark.core
def test_steps_page_both_ways_in_the_order_they_were_added(workflows: Workflows):
    keys = [f"s{number}" for number in range(7)]
    workflows.enqueue_jobs({"before": []})
    run_id = workflows.enqueue_jobs({key: [] for key in keys}, gates=("s0",))
    workflows.enqueue_jobs({"behind": []})

    down, cursor = [], None
    while page := list_workflow_steps(workflows.pool, run_id, scope=ADMIN, limit=3, after=cursor):
        down += page
        cursor = page[-1].id
        if len(down) < 7:
            add_gate(workflows, run_id, f"added{len(down)}")
    up, cursor = [], UUID(int=2**128 - 1)
    while page := list_workflow_steps(workflows.pool, run_id, scope=ADMIN, limit=3, before=cursor):
        up = page + up
        cursor = page[0].id

    assert [step.step_key for step in down] == [*keys, "added3", "added6"]
    assert up == down
    beside = list_workflow_steps(workflows.pool, run_id, scope=ADMIN, limit=2, before=down[4].id)
    assert [step.step_key for step in beside] == ["s2", "s3"]


def test_edges_name_both_steps_and_page_both_ways(workflows: Workflows):
    workflows.enqueue_jobs(FAN)
    run_id = workflows.enqueue_jobs(FAN)
    workflows.enqueue_jobs(FAN)

    def page(**cursor: Any):
        return list_workflow_step_dependencies(
            workflows.pool, run_id, scope=ADMIN, limit=3, **cursor
        )

    first = page()
    rest = page(after=first[-1].cursor)

    edges = [(e.prerequisite_step_key, e.dependent_step_key, e.release_mode) for e in first + rest]
    assert edges == [
        ("a", "b", "ON_SUCCESS"),
        ("a", "c", "ON_TERMINAL"),
        ("b", "d", "ON_SUCCESS"),
        ("c", "d", "ON_SUCCESS"),
    ]
    assert {edge.workflow_run_id for edge in first} == {run_id}
    assert page(before=rest[0].cursor) == first
    assert page(before=first[1].cursor) == first[:1]
    assert page(after=rest[-1].cursor) == []


def test_latest_run_of_a_type_is_the_newest_whatever_its_status(workflows: Workflows):
    workflows.enqueue_jobs({"a": []})
    workflows.succeed(workflows.claim()["a"])
    latest = workflows.enqueue_jobs({"a": []})
    workflows.enqueue(WorkflowDagBuilder("test.other", {}).job("a", JOB_TYPE, {}).build())

    def of_type(workflow_type: str):
        return get_latest_workflow_run_by_type(workflows.pool, workflow_type, scope=ADMIN)

    found = of_type("test.workflow")
    assert found is not None
    assert (found.id, found.status) == (latest, "RUNNING")
    assert of_type("test.work") is None


def test_key_belongs_to_its_type_and_organization_or_is_global(workflows: Workflows):
    def enqueue(workflow_type: str, owner: UUID | None) -> UUID:
        builder = WorkflowDagBuilder(workflow_type, {}).idempotency_key("k").job("a", JOB_TYPE, {})
        return workflows.enqueue((builder.organization_id(owner) if owner else builder).build())

    def found(workflow_type: str, key: str, scope: Scope) -> UUID | None:
        run = get_workflow_run_by_type_and_idempotency_key(
            workflows.pool, workflow_type, key, scope=scope
        )
        return None if run is None else run.id

    mine, others, everybodys = (enqueue("test.workflow", owner) for owner in (MINE, OTHER, None))

    assert found("test.workflow", "k", Scope.organization(MINE)) == mine
    assert found("test.workflow", "k", Scope.organization(OTHER)) == others
    assert found("test.workflow", "k", Scope.GLOBAL) == everybodys
    assert found("test.workflow", "k", Scope.organization(uuid4())) is None
    assert found("test.other", "k", Scope.GLOBAL) is None
    assert found("test.workflow", "K", Scope.GLOBAL) is None
    with pytest.raises(ValidationError) as refused:
        found("test.workflow", "k", ADMIN)
    assert (refused.value.code, refused.value.field) == ("input.out_of_range", "scope")


def test_job_leads_to_its_run(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})
    job_id = workflows.claim()["a"].id
    direct = enqueue_job(workflows.pool, JobEnqueue(JOB_TYPE, {})).id

    found = [
        get_workflow_run_id_for_job(workflows.pool, one, scope=ADMIN)
        for one in (job_id, direct, uuid4())
    ]

    assert found == [run_id, None, None]


def is_locked(workflows: Workflows, table: str, run_column: str, run_id: UUID) -> bool:
    sql = f"SELECT FROM runledger.{table} WHERE {run_column} = %s FOR NO KEY UPDATE SKIP LOCKED"
    return workflows.look.execute(sql.encode(), [run_id]).fetchone() is None


@pytest.mark.core
def test_keys_for_update_hold_run_and_steps_until_the_transaction_ends(workflows: Workflows):
    run_id, free = workflows.enqueue_jobs(FAN), workflows.enqueue_jobs(FAN)
    connection = workflows.database.connect()

    keys = list_workflow_step_keys_for_update(connection, run_id, scope=Scope.GLOBAL)

    held = [
        is_locked(workflows, table, column, one)
        for one in (run_id, free)
        for table, column in (("workflow_runs", "id"), ("workflow_steps", "workflow_run_id"))
    ]
    assert keys == ["a", "b", "c", "d"]
    assert held == [True, True, False, False]
    connection.rollback()
    assert not is_locked(workflows, "workflow_steps", "workflow_run_id", run_id)


def test_keys_for_update_wait_for_the_run_first_and_see_what_was_added_meanwhile(
    workflows: Workflows, observer
):
    run_id = workflows.enqueue_jobs({"a": []})
    caller = workflows.database.connect_directly()

    with ThreadPoolExecutor() as background:
        with workflows.look.transaction():
            add_gate(workflows, run_id, "added")
            keys = background.submit(
                list_workflow_step_keys_for_update, caller, run_id, scope=ADMIN
            )
            observer.until_blocked(caller.info.backend_pid)
            steps_held = is_locked(workflows, "workflow_steps", "workflow_run_id", run_id)

        assert keys.result() == ["a", "added"]
    assert not steps_held


def test_keys_for_update_give_up_in_time_and_leave_the_transaction(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})
    caller = workflows.database.connect()
    caller.execute("SELECT set_config('lock_timeout', '7s', true)")

    with workflows.look.transaction():
        workflows.look.execute("SELECT FROM runledger.workflow_runs FOR NO KEY UPDATE")
        with pytest.raises(UnavailableError) as refused:
            list_workflow_step_keys_for_update(caller, run_id, scope=ADMIN, lock_timeout_ms=1)

    assert refused.value.code == "db.lock_timeout"
    assert caller.execute("SHOW lock_timeout").fetchone() == ("7s",)
    assert list_workflow_step_keys_for_update(caller, run_id, scope=ADMIN) == ["a"]


def test_keys_for_update_of_a_run_that_is_not_in_scope_lock_nothing(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})
    caller = workflows.database.connect()

    for one, scope in ((run_id, Scope.organization(MINE)), (uuid4(), ADMIN)):
        with pytest.raises(NotFoundError) as refused:
            list_workflow_step_keys_for_update(caller, one, scope=scope)
        assert refused.value.code == "workflow.run_not_found"

    assert not is_locked(workflows, "workflow_runs", "id", run_id)
    assert not is_locked(workflows, "workflow_steps", "workflow_run_id", run_id)


def test_keys_for_update_need_a_transaction_that_goes_on(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})

    for db in (workflows.pool, workflows.look):
        with pytest.raises(ValidationError) as refused:
            list_workflow_step_keys_for_update(db, run_id, scope=ADMIN)
        assert (refused.value.code, refused.value.field) == ("input.wrong_type", "db")


def test_reads_join_the_callers_transaction(workflows: Workflows):
    with workflows.pool.connection() as connection, connection.transaction(force_rollback=True):
        run_id = workflows.enqueue_jobs({"a": []})
        connection.execute("UPDATE runledger.workflow_runs SET workflow_type = 'mine'")
        run = get_workflow_run(connection, run_id, scope=ADMIN)
        outside = get_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert run is not None
    assert outside is not None
    assert (run.workflow_type, outside.workflow_type) == ("mine", "test.workflow")


RUN = UUID(int=1)
OF_A_RUN: dict[str, Any] = {
    "run": lambda run_id, scope: get_workflow_run(NO_DATABASE, run_id, scope=scope),
    "steps": lambda run_id, scope: list_workflow_steps(NO_DATABASE, run_id, scope=scope),
    "step": lambda run_id, scope: get_workflow_step(NO_DATABASE, run_id, "a", scope=scope),
    "edges": lambda run_id, scope: list_workflow_step_dependencies(
        NO_DATABASE, run_id, scope=scope
    ),
    "keys": lambda run_id, scope: list_workflow_step_keys_for_update(
        NO_DATABASE, run_id, scope=scope
    ),
}


@pytest.mark.parametrize("read", OF_A_RUN.values(), ids=OF_A_RUN)
def test_wrong_run_id_and_scope_are_refused_before_sql(read):
    for run_id, scope, field in ((str(RUN), ADMIN, "run_id"), (RUN, None, "scope")):
        with pytest.raises(ValidationError) as refused:
            read(run_id, scope)
        assert (refused.value.code, refused.value.field) == ("input.wrong_type", field)


@pytest.mark.parametrize("read", [list_workflow_steps, list_workflow_step_dependencies])
@pytest.mark.parametrize(
    ("page", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1_001}, "limit"),
        ({"limit": True}, "limit"),
        ({"after": 1, "before": 1}, "before"),
    ],
)
def test_bad_page_is_refused_before_sql(read, page, field):
    with pytest.raises(ValidationError) as refused:
        read(NO_DATABASE, RUN, scope=ADMIN, **page)

    assert (refused.value.code, refused.value.field) == ("job.invalid_pagination", field)


@pytest.mark.parametrize("direction", ["after", "before"])
def test_cursor_of_another_list_is_refused_before_sql(direction):
    with pytest.raises(ValidationError) as of_steps:
        list_workflow_steps(NO_DATABASE, RUN, scope=ADMIN, **{direction: "a"})  # pyright: ignore[reportArgumentType]  # refused
    with pytest.raises(ValidationError) as of_edges:
        list_workflow_step_dependencies(NO_DATABASE, RUN, scope=ADMIN, **{direction: RUN})  # pyright: ignore[reportArgumentType]  # refused

    assert (of_steps.value.code, of_steps.value.field) == ("input.wrong_type", direction)
    assert (of_edges.value.code, of_edges.value.field) == ("job.invalid_pagination", direction)


def test_cursor_of_an_edge_holds_ids():
    with pytest.raises(ValidationError) as refused:
        WorkflowStepDependencyCursor(RUN, "a")  # pyright: ignore[reportArgumentType]  # refused

    assert (refused.value.code, refused.value.field) == ("input.wrong_type", "dependent_step_id")
