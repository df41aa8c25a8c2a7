"""What the end of a step makes of the steps that wait for it, and of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest

from runledger_core import (
    JobCompletion,
    JobFailure,
    JobStatus,
    NotFoundError,
    RunledgerError,
    Scope,
    ValidationError,
)
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.lifecycle import (
    ClaimedJob,
    FailureEntry,
    SuccessEntry,
    WriteVerdict,
    cancel_job,
    cancel_jobs,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    complete_jobs,
    fail_jobs,
    reap_expired_leases,
)
from runledger_postgres.workflows._waiters import RUN_ENDED_CHANNEL, WAITERS_MARK
from runledger_test_support import TemporaryDatabase, expire_lease

from .conftest import JOB_TYPE, Workflows
from .engine import Listener, held, keep_writes, sleeper

ADMIN = Scope.ADMIN
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
UNSATISFIED = "workflow.dependency_unsatisfied"
BUSY_SERVER = JobFailure.retryable("smtp.busy", "try later")
TERMINAL = JobFailure.terminal("test.failed", "no")

End = Callable[[Any, ClaimedJob], object]
ENDS: dict[str, End] = {
    "success": lambda db, job: complete_job_success(db, job.lease, JobCompletion(1)),
    "failure": lambda db, job: complete_job_failure(db, job.lease, TERMINAL),
    "successes": lambda db, job: complete_jobs(db, [SuccessEntry(job.lease, JobCompletion(1))]),
    "failures": lambda db, job: fail_jobs(db, [FailureEntry(job.lease, TERMINAL)]),
    "cancel": lambda db, job: cancel_job(db, job.id, scope=ADMIN),
    "cancels": lambda db, job: cancel_jobs(db, [job.id], scope=ADMIN),
}
every_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)

ROWS = """
    SELECT array_agg(t.line ORDER BY t.line) FROM (
        SELECT s.ctid::text || s::text AS line FROM runledger.workflow_steps s
        UNION ALL SELECT w.ctid::text || w::text FROM runledger.workflow_runs w
        UNION ALL SELECT q.ctid::text || q::text FROM runledger.job_queue q
        UNION ALL SELECT a.ctid::text || a::text FROM runledger.job_attempts a
    ) t
"""
STEP = "SELECT {} FROM runledger.workflow_steps WHERE workflow_run_id = %s AND step_key = %s"


def of_step(workflows: Workflows, run_id: UUID, key: str, columns: str) -> Any:
    return workflows.look.execute(STEP.format(columns), [run_id, key]).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]  # of the tests


def of_run(workflows: Workflows, run_id: UUID, columns: str) -> Any:
    sql = f"SELECT {columns} FROM runledger.workflow_runs WHERE id = %s"
    return workflows.look.execute(sql, [run_id]).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]  # of the tests


@pytest.mark.core
def test_step_is_released_once_its_last_prerequisite_has_succeeded(workflows: Workflows):
    run_id = workflows.enqueue_jobs(DIAMOND)
    workflows.succeed(workflows.claim()["a"])
    jobs = workflows.claim()

    workflows.succeed(jobs["b"])
    before = workflows.steps(run_id)["d"]
    workflows.succeed(jobs["c"])

    assert set(jobs) == {"b", "c"}
    assert (before, workflows.steps(run_id)["d"]) == ("BLOCKED", "ENQUEUED")
    workflows.succeed(workflows.claim()["d"])
    assert workflows.status(run_id) == "SUCCEEDED"


@pytest.mark.core
@pytest.mark.parametrize(
    ("end", "ended", "on_success"),
    [
        ("success", "SUCCEEDED", "ENQUEUED"),
        ("failure", "FAILED", "CANCELED"),
        ("cancel", "CANCELED", "CANCELED"),
    ],
)
def test_end_of_a_step_releases_by_the_mode_of_each_edge(
    workflows: Workflows, end, ended, on_success
):
    edges = {"a": {}, "strict": {"a": "success"}, "any": {"a": "terminal"}}
    run_id = workflows.enqueue_jobs(edges)

    ENDS[end](workflows.pool, workflows.claim()["a"])

    assert workflows.steps(run_id) == {"a": ended, "strict": on_success, "any": "ENQUEUED"}
    released = of_step(workflows, run_id, "any", "released_at IS NOT NULL, job_id IS NOT NULL")
    assert released == (True, True)
    assert set(workflows.claim()) == {"any"} | ({"strict"} if on_success == "ENQUEUED" else set())


def test_doomed_step_says_why_and_was_never_released(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})

    workflows.fail(workflows.claim()["a"])

    columns = "status_reason, last_error_code, released_at, job_id, finished_at IS NOT NULL"
    assert of_step(workflows, run_id, "b", columns) == (UNSATISFIED, UNSATISFIED, None, None, True)
    assert of_step(workflows, run_id, "b", "payload") == ({},)
    assert of_run(workflows, run_id, "status::text, finished_at IS NOT NULL") == (
        "COMPLETED_WITH_ERRORS", True,
    )  # fmt: skip


def test_step_is_doomed_only_once_its_last_prerequisite_has_ended(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": [], "join": ["a", "b"]})
    jobs = workflows.claim()

    workflows.fail(jobs["a"])
    before = workflows.steps(run_id)["join"]
    workflows.succeed(jobs["b"])

    assert (before, workflows.steps(run_id)["join"]) == ("BLOCKED", "CANCELED")


def test_step_behind_edges_of_both_modes_needs_the_strict_ones_to_succeed(workflows: Workflows):
    edges = {"a": {}, "b": {}, "join": {"a": "success", "b": "terminal"}}
    runs = [workflows.enqueue_jobs(edges) for _ in range(2)]
    jobs = {(job.workflow_run_id, workflows.key_of(job.id)): job for job in _all_jobs(workflows)}

    workflows.succeed(jobs[runs[0], "a"])
    workflows.fail(jobs[runs[0], "b"])
    workflows.fail(jobs[runs[1], "a"])
    workflows.succeed(jobs[runs[1], "b"])

    assert [workflows.steps(run_id)["join"] for run_id in runs] == ["ENQUEUED", "CANCELED"]


def _all_jobs(workflows: Workflows) -> list[ClaimedJob]:
    return claim_jobs(workflows.pool, worker_id="worker", limit=100, lease_ttl_seconds=60)


def test_cleanup_behind_a_failed_chain_runs_and_the_run_has_errors(workflows: Workflows):
    edges = {
        "a": {}, "b": {"a": "success"}, "c": {"b": "success"}, "cleanup": {"c": "terminal"},
    }  # fmt: skip
    run_id = workflows.enqueue_jobs(edges)

    workflows.fail(workflows.claim()["a"])
    after = workflows.steps(run_id)
    workflows.succeed(workflows.claim()["cleanup"])

    assert after == {"a": "FAILED", "b": "CANCELED", "c": "CANCELED", "cleanup": "ENQUEUED"}
    assert of_run(workflows, run_id, "status::text, steps_failed, steps_canceled") == (
        "COMPLETED_WITH_ERRORS", 1, 2,
    )  # fmt: skip


def test_doomed_joins_doom_the_joins_behind_them(workflows: Workflows):
    edges = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["b", "c"], "f": ["d", "e"]}
    run_id = workflows.enqueue_jobs(edges)

    workflows.fail(workflows.claim()["a"])

    assert set(workflows.steps(run_id).values()) == {"FAILED", "CANCELED"}


def test_gate_opens_and_a_run_of_open_gates_waits(workflows: Workflows):
    run_id = workflows.enqueue_jobs(
        {"a": [], "b": [], "gate": ["a"], "behind": ["gate"]}, gates=("gate",)
    )
    jobs = workflows.claim()

    workflows.succeed(jobs["a"])
    with_work = workflows.status(run_id)
    workflows.succeed(jobs["b"])

    # What is blocked behind the gate has not ended either.
    assert (with_work, workflows.status(run_id)) == ("RUNNING", "RUNNING")
    assert of_run(workflows, run_id, "steps_open, steps_waiting_external") == (2, 1)
    assert of_step(workflows, run_id, "gate", "status::text, released_at IS NULL") == (
        "WAITING_FOR_EXTERNAL", False,
    )  # fmt: skip


def test_run_waits_once_nothing_but_gates_is_open(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "gate": ["a"]}, gates=("gate",))

    workflows.succeed(workflows.claim()["a"])

    assert workflows.status(run_id) == "WAITING_FOR_EXTERNAL"


def test_retry_leaves_the_step_with_the_same_job(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    job = workflows.claim()["a"]

    complete_job_failure(workflows.pool, job.lease, BUSY_SERVER, retry_delay_ms=1)

    assert workflows.steps(run_id) == {"a": "ENQUEUED", "b": "BLOCKED"}
    assert of_step(workflows, run_id, "a", "job_id") == (job.id,)


@pytest.mark.parametrize("attempts", [1, 2])
def test_lease_that_ran_out_fails_the_step_with_the_last_attempt(workflows: Workflows, attempts):
    run_id = workflows.enqueue_jobs({"a": {}, "b": {"a": "terminal"}})
    workflows.look.execute("UPDATE runledger.job_queue SET max_attempts = %s", [attempts])
    expire_lease(workflows.pool, workflows.claim()["a"].id)

    result = reap_expired_leases(workflows.pool, limit=10, retry_delay_ms=1)

    assert len(result.reaped) == 1
    after = {"a": "FAILED", "b": "ENQUEUED"} if attempts == 1 else {"a": "ENQUEUED", "b": "BLOCKED"}
    assert workflows.steps(run_id) == after


@pytest.mark.parametrize(
    ("output", "result"), [({"n": 1}, '{"n": 1}'), (None, "null"), (..., None)]
)
def test_result_of_a_run_is_the_output_of_its_result_step(workflows: Workflows, output, result):
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).job("b", JOB_TYPE, {})
    run_id = workflows.enqueue(builder.after_success("b", ["a"]).result_step("a").build())
    completion = JobCompletion() if output is ... else JobCompletion(output)

    complete_job_success(workflows.pool, workflows.claim()["a"].lease, completion)
    before = of_run(workflows, run_id, "result::text")
    workflows.succeed(workflows.claim()["b"], 2)

    assert before == (None,)
    assert of_run(workflows, run_id, "status::text, result::text") == ("SUCCEEDED", result)


def test_run_with_errors_has_no_result(workflows: Workflows):
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).job("b", JOB_TYPE, {})
    run_id = workflows.enqueue(builder.result_step("a").build())
    jobs = workflows.claim()

    workflows.succeed(jobs["a"], 1)
    workflows.fail(jobs["b"])

    assert of_run(workflows, run_id, "status::text, result") == ("COMPLETED_WITH_ERRORS", None)


def test_repeated_success_counts_once(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": [], "join": ["a", "b"]})
    job = workflows.claim()["a"]
    workflows.succeed(job)
    before = workflows.value(ROWS)

    again = complete_job_success(workflows.pool, job.lease, JobCompletion(output=None))

    assert again.verdict is WriteVerdict.REPEATED
    assert workflows.value(ROWS) == before
    assert workflows.steps(run_id)["join"] == "BLOCKED"


@every_end
@pytest.mark.parametrize("is_joined", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        pytest.param(
            "UPDATE runledger.workflow_steps SET dependency_count_pending = 0 WHERE step_key = 'b'",
            "workflow.internal_state",
            id="counters of a step",
        ),
        pytest.param(
            "UPDATE runledger.workflow_runs SET steps_open = 0",
            "workflow.internal_state",
            id="counters of a run",
        ),
        pytest.param(
            """
            UPDATE runledger.workflow_step_dependencies
            SET dependent_step_id = (SELECT id FROM runledger.workflow_steps WHERE step_key = 'c')
            """,
            "workflow.internal_state",
            id="edge into another run",
        ),
        pytest.param(
            keep_writes("UPDATE ON runledger.workflow_steps", "OLD.step_key = 'a'"),
            "db.rows_kept_back",
            id="trigger that keeps the step",
        ),
        pytest.param(
            keep_writes("UPDATE ON runledger.workflow_steps", "OLD.step_key = 'b'"),
            "db.rows_kept_back",
            id="trigger that keeps what waits for it",
        ),
    ],
)
def test_end_that_meets_a_contradiction_stores_nothing(
    workflows: Workflows, end, is_joined, damage, code
):
    workflows.enqueue_jobs({"a": [], "b": ["a"]})
    job = workflows.claim()["a"]
    workflows.enqueue_jobs({"other": {}, "c": {"other": "terminal"}})
    workflows.look.execute(
        "ALTER TABLE runledger.workflow_step_dependencies"
        " DROP CONSTRAINT fk_workflow_step_dependencies_dependent"
    )
    workflows.look.execute(
        "DELETE FROM runledger.workflow_step_dependencies WHERE release_mode = 'ON_TERMINAL'"
    )
    workflows.look.execute(damage)  # pyright: ignore[reportArgumentType]  # of the tests
    before = workflows.value(ROWS)

    with closing(workflows.database.connect(autocommit=not is_joined)) as connection:
        with pytest.raises(RunledgerError) as refused:
            end(connection, job)
        usable = connection.execute("SELECT 1").fetchone()
        connection.commit()

    assert (refused.value.code, usable) == (code, (1,))
    assert workflows.value(ROWS) == before
    workflows.look.execute("TRUNCATE runledger.workflow_runs, runledger.job_queue CASCADE")


@every_end
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_workflows_job_ends_in_read_committed_only(workflows: Workflows, end, level):
    workflows.enqueue_jobs({"a": [], "b": ["a"]})
    job = workflows.claim()["a"]
    before = workflows.value(ROWS)

    with closing(workflows.database.connect()) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(ValidationError) as refused:
            end(connection, job)
        connection.execute("CREATE TABLE public.kept (id int4)")
        connection.commit()

    assert refused.value.code == "workflow.terminal_completion_unsupported_isolation"
    assert workflows.value(ROWS) == before
    assert workflows.value("SELECT to_regclass('public.kept') IS NOT NULL")


@every_end
def test_other_jobs_end_in_any_isolation(workflows: Workflows, end):
    workflows.look.execute("INSERT INTO runledger.job_queue (job_type, max_attempts)"
                           " VALUES (%s, 1)", [JOB_TYPE])  # fmt: skip
    (job,) = _all_jobs(workflows)

    with closing(workflows.database.connect()) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        end(connection, job)
        connection.commit()

    assert workflows.value("SELECT status::text FROM runledger.job_queue") != "LEASED"


def test_reaper_leaves_workflows_jobs_alone_outside_read_committed(workflows: Workflows):
    workflows.enqueue_jobs({"a": []})
    workflows.look.execute("INSERT INTO runledger.job_queue (job_type, max_attempts)"
                           " VALUES (%s, 1)", [JOB_TYPE])  # fmt: skip
    jobs = _all_jobs(workflows)
    for job in jobs:
        expire_lease(workflows.pool, job.id)

    with closing(workflows.database.connect()) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        result = reap_expired_leases(connection, limit=10, retry_delay_ms=1)
        connection.commit()

    direct = [job.id for job in jobs if job.workflow_run_id is None]
    assert [reaped.lease.job_id for reaped in result.reaped] == direct


def test_cancel_out_of_scope_does_not_wait_for_the_run(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": []})
    job = workflows.claim()["a"]
    elsewhere = Scope.organization(uuid4())

    with held(workflows, run_id):
        with pytest.raises(NotFoundError) as refused:
            cancel_job(workflows.pool, job.id, scope=elsewhere)
        verdicts = cancel_jobs(workflows.pool, [job.id], scope=elsewhere)

    assert refused.value.code == "job.not_found"
    assert verdicts == ["NOT_FOUND"]


@every_end
def test_job_whose_run_is_gone_ends_as_any_other(workflows: Workflows, end):
    workflows.enqueue_jobs({"a": [], "b": ["a"]})
    job = workflows.claim()["a"]
    workflows.look.execute("DELETE FROM runledger.workflow_runs")

    end(workflows.pool, job)

    ended = workflows.value("SELECT status::text FROM runledger.job_queue")
    assert ended in {"SUCCEEDED", "DEAD_LETTERED", "CANCELED"}
    workflows.look.execute("DELETE FROM runledger.job_queue")


@pytest.mark.parametrize("status", ["CANCELED", "COMPLETED_WITH_ERRORS", "SUCCEEDED"])
def test_run_that_has_ended_is_left_alone(workflows: Workflows, status):
    run_id = workflows.enqueue_jobs({"a": {}, "b": {"a": "terminal"}})
    job = workflows.claim()["a"]
    workflows.look.execute(
        "UPDATE runledger.workflow_runs SET status = %s::text::runledger.workflow_run_status",
        [status],
    )
    before = of_run(workflows, run_id, "ctid::text")

    workflows.succeed(job)

    assert of_run(workflows, run_id, "ctid::text") == before
    assert workflows.steps(run_id) == {"a": "ENQUEUED", "b": "BLOCKED"}
    workflows.look.execute("TRUNCATE runledger.workflow_runs, runledger.job_queue CASCADE")


def test_released_steps_wake_sleeping_workers_once(workflows: Workflows):
    workflows.enqueue_jobs({"a": [], "b": ["a"], "c": ["a"]})
    job = workflows.claim()["a"]
    worker = sleeper(workflows)

    workflows.succeed(job)

    assert worker.told() == [JOB_TYPE]


@pytest.mark.parametrize("mark", [None, str(WAITERS_MARK)])
def test_those_who_wait_for_a_run_are_told_of_its_end_alone(workflows: Workflows, mark):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    waiter = Listener(workflows, RUN_ENDED_CHANNEL, mark=mark)

    workflows.succeed(workflows.claim()["a"])
    before = waiter.told()
    workflows.succeed(workflows.claim()["b"])

    assert (before, waiter.told()) == ([], [str(run_id)] if mark else [])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_nobody_is_told_of_what_is_rolled_back(workflows: Workflows, end):
    run_id = workflows.enqueue_jobs({"a": []})
    job = workflows.claim()["a"]
    waiter = Listener(workflows, RUN_ENDED_CHANNEL, mark=str(WAITERS_MARK))

    with closing(workflows.database.connect()) as connection:
        complete_job_success(connection, job.lease)
        getattr(connection, end)()

    assert waiter.told() == ([str(run_id)] if end == "commit" else [])


def test_nobody_is_told_of_an_end_that_is_refused(workflows: Workflows):
    workflows.enqueue_jobs({"a": []})
    job = workflows.claim()["a"]
    workflows.enqueue_jobs({"other": [], "c": ["other"]}, gates=("other",))
    workflows.look.execute(
        "ALTER TABLE runledger.workflow_step_dependencies"
        " DROP CONSTRAINT fk_workflow_step_dependencies_dependent"
    )
    workflows.look.execute(
        "UPDATE runledger.workflow_step_dependencies"
        " SET (workflow_run_id, prerequisite_step_id) = ("
        "SELECT workflow_run_id, id FROM runledger.workflow_steps WHERE step_key = 'a')"
    )
    waiter = Listener(workflows, RUN_ENDED_CHANNEL, mark=str(WAITERS_MARK))
    worker = sleeper(workflows)
    before = workflows.value(ROWS)

    # The caller goes on and commits.
    with closing(workflows.database.connect()) as connection:
        with pytest.raises(RunledgerError) as refused:
            complete_job_success(connection, job.lease)
        connection.commit()

    assert refused.value.code == "workflow.internal_state"
    assert workflows.value(ROWS) == before
    assert (waiter.told(), worker.told()) == ([], [])
    workflows.look.execute("TRUNCATE runledger.workflow_runs, runledger.job_queue CASCADE")


def test_who_waits_in_another_database_of_the_server_is_not_told(
    workflows: Workflows, runledger_unmigrated_database: TemporaryDatabase
):
    # Its mark does not count here, and it hears nothing of ours.
    stranger = runledger_unmigrated_database.connect_directly(autocommit=True)
    stranger.execute(f"LISTEN {RUN_ENDED_CHANNEL}".encode())
    stranger.execute("SELECT pg_advisory_lock_shared(%s)", [WAITERS_MARK])
    listener = Listener(workflows, RUN_ENDED_CHANNEL)
    workflows.enqueue_jobs({"a": []})

    workflows.succeed(workflows.claim()["a"])
    heard = listener.told()
    stranger.execute("SELECT 1")

    assert heard == []
    assert list(stranger.notifies(timeout=0)) == []


def test_job_that_was_canceled_with_its_step_can_store_nothing_more(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": {}, "b": {"a": "terminal"}})
    job = workflows.claim()["a"]

    record = cancel_job(workflows.pool, job.id, scope=ADMIN, reason="enough")
    with pytest.raises(RunledgerError) as refused:
        workflows.succeed(job)

    assert record.status is JobStatus.CANCELED
    assert refused.value.code == "job.lease_owner_mismatch"
    assert workflows.steps(run_id) == {"a": "CANCELED", "b": "ENQUEUED"}
