"""Verification of runs: what no transaction of the engine leaves is found, and put right."""

from __future__ import annotations

import random
from dataclasses import dataclass
from uuid import UUID

import pytest

from runledger_core import JobFailure, Scope
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.lifecycle import (
    cancel_workflow_run,
    complete_job_failure,
    verify_workflow_runs,
)
from runledger_postgres.workflows import WorkflowDifference
from runledger_postgres.workflows._waiters import RUN_ENDED_CHANNEL, WAITERS_MARK

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
KEYS = ("a", "b", "c", "cleanup")


def end_job(status: str) -> str:
    """Return what ends the job of step a, and leaves the step behind."""
    return f"""
        UPDATE runledger.job_queue SET status = '{status}', finished_at = now(), is_ready = false,
            worker_id = NULL, lease_expires_at = NULL, leased_at = NULL, output = '1'
        WHERE id = (SELECT job_id FROM runledger.workflow_steps WHERE step_key = 'a')
    """


def unrelease(key: str) -> str:
    """Return what takes the release of a step back."""
    return f"""
        DELETE FROM runledger.job_queue
        WHERE id = (SELECT job_id FROM runledger.workflow_steps WHERE step_key = '{key}');
        UPDATE runledger.workflow_steps
        SET status = 'BLOCKED', job_id = NULL, payload = '{{}}', finished_at = NULL
        WHERE step_key = '{key}'
    """


# Of two runs, the one with a result.
RUN = "UPDATE runledger.workflow_runs SET result_step_key = 'c', "
STEP = "UPDATE runledger.workflow_steps SET "

Found = dict[tuple[str | None, str], tuple[str | None, str | None]]


@dataclass(frozen=True)
class Case:
    """What happened to the run before, what breaks it, what is found, and where it then stands."""

    past: str
    sql: str
    found: Found
    steps: str
    status: str


RUNNING = "RUNNING"
CASES = {
    "the end of a job was missed": Case(
        "claimed", end_job("SUCCEEDED"),
        {("a", "status"): ("ENQUEUED", "SUCCEEDED")},
        "SUCCEEDED ENQUEUED BLOCKED ENQUEUED", RUNNING,
    ),
    "the failure of a job was missed": Case(
        "claimed", end_job("DEAD_LETTERED"),
        {("a", "status"): ("ENQUEUED", "FAILED")},
        "FAILED CANCELED CANCELED ENQUEUED", RUNNING,
    ),
    "the cancel of a job was missed": Case(
        "claimed", end_job("CANCELED"),
        {("a", "status"): ("ENQUEUED", "CANCELED")},
        "CANCELED CANCELED CANCELED ENQUEUED", RUNNING,
    ),
    "a step is RUNNING, which is never stored": Case(
        "claimed", STEP + "status = 'RUNNING' WHERE step_key = 'a'",
        {("a", "status"): ("RUNNING", "ENQUEUED")},
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "a step that is RUNNING missed the end of its job": Case(
        "claimed", end_job("SUCCEEDED") + ";" + STEP + "status = 'RUNNING' WHERE step_key = 'a'",
        {("a", "status"): ("RUNNING", "SUCCEEDED")},
        "SUCCEEDED ENQUEUED BLOCKED ENQUEUED", RUNNING,
    ),
    "a step ended before its job": Case(
        "claimed", STEP + "status = 'SUCCEEDED', finished_at = now() WHERE step_key = 'a'",
        {("a", "status"): ("SUCCEEDED", "ENQUEUED")},
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "a step ended in another way than its job": Case(
        "a failed", STEP + "status = 'SUCCEEDED' WHERE step_key = 'a'",
        {("a", "status"): ("SUCCEEDED", "FAILED")},
        "FAILED CANCELED CANCELED ENQUEUED", RUNNING,
    ),
    "all that followed from the end of a job was lost": Case(
        "a failed",
        STEP + "status = 'SUCCEEDED' WHERE step_key = 'a';"
        + STEP + "status = 'BLOCKED', finished_at = NULL WHERE step_key IN ('b', 'c');"
        + unrelease("cleanup"),
        {
            ("a", "status"): ("SUCCEEDED", "FAILED"),
            ("b", "status"): ("BLOCKED", "CANCELED"),
            ("c", "dependency_count_pending"): ("0", "1"),
            ("c", "dependency_count_unsatisfied"): ("1", "0"),
            ("cleanup", "status"): ("BLOCKED", "ENQUEUED"),
            (None, "steps_canceled"): ("2", "0"),
            (None, "steps_open"): ("1", "3"),
        },
        "FAILED CANCELED CANCELED ENQUEUED", RUNNING,
    ),
    "a step has succeeded that never ran": Case(
        "claimed", STEP + "status = 'SUCCEEDED', finished_at = now() WHERE step_key = 'b'",
        {("b", "status"): ("SUCCEEDED", "BLOCKED")},
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "a step has failed that should run": Case(
        "a succeeded",
        unrelease("b") + ";" + STEP + "status = 'FAILED', finished_at = now() WHERE step_key = 'b'",
        {("b", "status"): ("FAILED", "ENQUEUED")},
        "SUCCEEDED ENQUEUED BLOCKED ENQUEUED", RUNNING,
    ),
    "a decrement was lost": Case(
        "a succeeded",
        unrelease("b") + ";" + STEP + "dependency_count_pending = 1 WHERE step_key = 'b'",
        {
            ("b", "dependency_count_pending"): ("1", "0"),
            ("b", "status"): ("BLOCKED", "ENQUEUED"),
        },
        "SUCCEEDED ENQUEUED BLOCKED ENQUEUED", RUNNING,
    ),
    "a release was lost": Case(
        "a succeeded", unrelease("b"),
        {("b", "status"): ("BLOCKED", "ENQUEUED")},
        "SUCCEEDED ENQUEUED BLOCKED ENQUEUED", RUNNING,
    ),
    "a job was lost with the link to it": Case(
        "a succeeded", unrelease("b") + ";" + STEP + "status = 'ENQUEUED' WHERE step_key = 'b'",
        {("b", "job_status"): (None, "PENDING")},
        "SUCCEEDED ENQUEUED BLOCKED ENQUEUED", RUNNING,
    ),
    "a doom was lost": Case(
        "a failed", STEP + "status = 'BLOCKED', finished_at = NULL WHERE step_key = 'b'",
        {
            ("b", "status"): ("BLOCKED", "CANCELED"),
            ("c", "dependency_count_pending"): ("0", "1"),
            ("c", "dependency_count_unsatisfied"): ("1", "0"),
            (None, "steps_canceled"): ("2", "1"),
            (None, "steps_open"): ("1", "2"),
        },
        "FAILED CANCELED CANCELED ENQUEUED", RUNNING,
    ),
    "a step counts more prerequisites than it has": Case(
        "claimed", STEP + "dependency_count_total = 3 WHERE step_key = 'b'",
        {("b", "dependency_count_total"): ("3", "1")},
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "a step counts an unsatisfied prerequisite": Case(
        "claimed", STEP + "dependency_count_unsatisfied = 1 WHERE step_key = 'b'",
        {("b", "dependency_count_unsatisfied"): ("1", "0")},
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "the counters of a run are wrong": Case(
        "claimed",
        RUN + "steps_open = 9, steps_waiting_external = 9, steps_failed = 9, steps_canceled = 9",
        {
            (None, "steps_canceled"): ("9", "0"),
            (None, "steps_failed"): ("9", "0"),
            (None, "steps_open"): ("9", "4"),
            (None, "steps_waiting_external"): ("9", "0"),
        },
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "a run has ended without its steps": Case(
        "claimed", RUN + "status = 'SUCCEEDED', finished_at = '2026-01-01Z'",
        {
            (None, "finished_at"): ("2026-01-01 00:00:00+00", None),
            (None, "status"): ("SUCCEEDED", "RUNNING"),
        },
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
    "a run goes on without steps": Case(
        "all succeeded", RUN + "status = 'RUNNING', finished_at = NULL, result = NULL",
        {
            (None, "finished_at"): (None, "an instant"),
            (None, "status"): ("RUNNING", "SUCCEEDED"),
        },
        "SUCCEEDED SUCCEEDED SUCCEEDED SUCCEEDED", "SUCCEEDED",
    ),
    "a canceled run has an open job": Case(
        "canceled", "UPDATE runledger.job_queue SET status = 'PENDING', finished_at = NULL"
        " WHERE status = 'CANCELED'",
        {("a", "job_status"): ("PENDING", "CANCELED")},
        "CANCELED CANCELED CANCELED CANCELED", "CANCELED",
    ),
    "a canceled run has an open step": Case(
        "canceled", STEP + "status = 'BLOCKED', finished_at = NULL WHERE step_key = 'c'",
        {
            ("c", "status"): ("BLOCKED", "CANCELED"),
            (None, "steps_canceled"): ("4", "3"),
            (None, "steps_open"): ("0", "1"),
        },
        "CANCELED CANCELED CANCELED CANCELED", "CANCELED",
    ),
    "no step has a job of the run": Case(
        "claimed",
        "INSERT INTO runledger.job_queue (job_type, workflow_run_id, max_attempts)"
        " SELECT 'test.job', id, 1 FROM runledger.workflow_runs WHERE result_step_key = 'c'",
        {(None, "job_status"): ("PENDING", "CANCELED")},
        "ENQUEUED BLOCKED BLOCKED BLOCKED", RUNNING,
    ),
}  # fmt: skip


def prepared(workflows: Workflows, past: str) -> UUID:
    builder = WorkflowDagBuilder("test.workflow", {}).result_step("c")
    for key in KEYS:
        builder = builder.job(key, JOB_TYPE, {})
    builder = builder.after_success("b", ["a"]).after_success("c", ["b"])
    run_id = workflows.enqueue(builder.after_terminal("cleanup", ["a"]).build())
    match past:
        case "canceled":
            cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
        case "a succeeded":
            workflows.succeed(workflows.claim(1)["a"])
        case "a failed":
            workflows.fail(workflows.claim(1)["a"])
        case "all succeeded":
            while jobs := workflows.claim():
                for key, job in jobs.items():
                    workflows.succeed(job, key)
        case _:
            workflows.claim()
    return run_id


def as_found(differences: list[WorkflowDifference]) -> Found:
    found = {(one.step_key, one.field): (one.stored, one.expected) for one in differences}
    assert len(found) == len(differences)
    return found


@pytest.mark.parametrize("name", CASES)
def test_difference_is_found_and_put_right(workflows: Workflows, name: str):
    case = CASES[name]
    run_id = prepared(workflows, case.past)
    other = workflows.enqueue_jobs({"x": [], "y": ["x"]})
    workflows.look.execute("SET TIME ZONE 'UTC'")
    sql = case.sql
    if sql.startswith(RUN):
        sql += f" WHERE id = '{run_id}'"
    workflows.look.execute(sql.encode())

    seen = verify_workflow_runs(workflows.pool, scope=ADMIN)
    repaired = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    assert as_found(seen) == case.found
    assert {one.run_id for one in (*seen, *repaired)} == {run_id}
    assert not any(one.is_repaired for one in seen)
    assert case.found.items() <= as_found(repaired).items()
    assert all(one.is_repaired for one in repaired)
    assert verify_workflow_runs(workflows.pool, scope=ADMIN) == []
    assert workflows.steps(run_id) == dict(zip(KEYS, case.steps.split(), strict=True))
    assert workflows.status(run_id) == case.status
    assert workflows.steps(other) == {"x": "ENQUEUED", "y": "BLOCKED"}
    if name == "no step has a job of the run":
        workflows.look.execute(
            "DELETE FROM runledger.job_queue q WHERE NOT EXISTS"
            " (SELECT FROM runledger.workflow_steps s WHERE s.job_id = q.id)"
        )


# What is stored of jobs is believed, and so is the end of a gate and that a step was canceled.
COLUMNS = (
    "workflow_steps SET status = '{status}' WHERE execution_kind = 'JOB' AND status <> 'CANCELED'",
    "workflow_steps SET status = '{open}' WHERE status IN ('BLOCKED', 'WAITING_FOR_EXTERNAL')",
    "workflow_steps SET dependency_count_pending = {n} WHERE dependency_count_total >= {n}",
    "workflow_steps SET dependency_count_unsatisfied = {n} WHERE dependency_count_total >= {n}",
    "workflow_runs SET status = '{run}' WHERE true",
    "workflow_runs SET steps_open = {n} WHERE true",
    "workflow_runs SET steps_waiting_external = {n} WHERE true",
    "workflow_runs SET finished_at = now() WHERE finished_at IS NULL",
    "workflow_runs SET finished_at = NULL WHERE finished_at IS NOT NULL",
)
WIDER = {"a": [], "b": [], "c": ["a"], "d": {"a": "terminal", "b": "success"}, "gate": ["c"],
         "e": ["gate", "d"], "f": {"e": "terminal"}}  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_whatever_columns_are_wrong_one_repair_is_enough(workflows: Workflows, seed: int):
    chance = random.Random(seed)
    for _ in range(6):
        workflows.enqueue_jobs(WIDER, gates=("gate",))
        for job in workflows.claim(1 + chance.randrange(6)).values():
            chance.choice((workflows.succeed, workflows.fail))(job)
    for _ in range(3):
        table, rest = chance.choice(COLUMNS).split(" ", 1)
        rest = rest.format(
            status=chance.choice(("BLOCKED", "ENQUEUED", "RUNNING", "SUCCEEDED", "FAILED")),
            open=chance.choice(("BLOCKED", "WAITING_FOR_EXTERNAL", "ENQUEUED")),
            run=chance.choice(("RUNNING", "WAITING_FOR_EXTERNAL", "SUCCEEDED")),
            n=chance.randrange(3),
        )  # fmt: skip
        change, condition = rest.split(" WHERE ")
        workflows.look.execute(
            f"UPDATE runledger.{table} {change} WHERE id IN (SELECT id FROM runledger.{table}"
            f" WHERE {condition} ORDER BY md5(id::text || {seed}) LIMIT 2)".encode()
        )
    differing = {one.run_id for one in verify_workflow_runs(workflows.pool, scope=ADMIN)}

    repaired = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    assert {one.run_id for one in repaired} == differing
    assert all(one.is_repaired for one in repaired)
    assert verify_workflow_runs(workflows.pool, scope=ADMIN) == []


def gates(workflows: Workflows) -> UUID:
    return workflows.enqueue_jobs(
        {"a": [], "gate": ["a"], "after": ["gate"]}, gates=("gate",)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "found", "steps"),
    [
        (
            STEP + "status = 'BLOCKED' WHERE step_key = 'gate';"
            "UPDATE runledger.workflow_runs SET steps_waiting_external = 0",
            {("gate", "status"): ("BLOCKED", "WAITING_FOR_EXTERNAL")},
            "SUCCEEDED BLOCKED WAITING_FOR_EXTERNAL",
        ),
        (
            STEP + "status = 'ENQUEUED' WHERE step_key = 'gate'",
            {
                ("gate", "status"): ("ENQUEUED", "WAITING_FOR_EXTERNAL"),
                (None, "steps_waiting_external"): ("1", "0"),
            },
            "SUCCEEDED BLOCKED WAITING_FOR_EXTERNAL",
        ),
    ],
)
def test_gate_that_should_be_open_is_opened(
    workflows: Workflows, sql: str, found: Found, steps: str
):
    run_id = gates(workflows)
    workflows.succeed(workflows.claim()["a"])
    workflows.look.execute(sql.encode())

    repaired = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    assert as_found(repaired) == found
    assert workflows.steps(run_id) == dict(
        zip(("a", "after", "gate"), steps.split(), strict=True)
    )  # fmt: skip


def test_gate_that_opened_too_early_waits_again(workflows: Workflows):
    run_id = gates(workflows)
    workflows.look.execute(
        (STEP + "status = 'WAITING_FOR_EXTERNAL' WHERE step_key = 'gate'").encode()
    )

    repaired = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    assert as_found(repaired) == {
        ("gate", "status"): ("WAITING_FOR_EXTERNAL", "BLOCKED"),
        (None, "steps_waiting_external"): ("0", "1"),
    }
    assert workflows.steps(run_id)["gate"] == "BLOCKED"


@pytest.mark.core
def test_runs_of_the_engines_making_do_not_differ_whatever_is_under_way(workflows: Workflows):
    diamond = {"a": [], "b": ["a"], "c": {"a": "terminal"}, "d": ["b", "c"]}
    for past in ("canceled", "a succeeded", "a failed", "all succeeded", "claimed"):
        prepared(workflows, past)
        workflows.claim()
    gates(workflows)
    workflows.enqueue_jobs(diamond)
    retried, canceled = workflows.enqueue_jobs(diamond), workflows.enqueue_jobs(diamond)
    lease = workflows.claim()["a"].lease
    failure = JobFailure.retryable("test.busy", "later")
    complete_job_failure(workflows.pool, lease, failure, retry_delay_ms=60_000)
    cancel_workflow_run(workflows.pool, canceled, scope=ADMIN)
    under_way = workflows.database.connect()
    cancel_workflow_run(under_way, retried, scope=ADMIN)

    assert verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True) == []

    under_way.commit()
    assert verify_workflow_runs(workflows.pool, scope=ADMIN) == []


def test_released_step_whose_job_was_deleted_is_told_and_cannot_be_repaired(
    workflows: Workflows,
):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    workflows.succeed(workflows.claim()["a"])
    workflows.look.execute("DELETE FROM runledger.job_queue WHERE status = 'PENDING'")

    found = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    assert found == [
        WorkflowDifference(run_id, "b", field="job_status", stored=None, expected="PENDING")
    ]
    # Somebody who knows the payload puts it back.
    workflows.look.execute(
        "UPDATE runledger.workflow_steps SET job_id = NULL, payload = '7' WHERE step_key = 'b'"
    )
    (again,) = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)
    assert again.is_repaired
    assert workflows.claim()["b"].payload == 7


@pytest.mark.core
def test_result_of_a_run_whose_jobs_were_deleted_outlives_its_repair(workflows: Workflows):
    run_id = prepared(workflows, "all succeeded")
    workflows.look.execute("DELETE FROM runledger.job_queue")
    workflows.look.execute(
        (STEP + "dependency_count_unsatisfied = 1 WHERE step_key = 'b'").encode()
    )

    found = verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    repaired = {one.field for one in found if one.is_repaired}
    assert repaired == {"dependency_count_unsatisfied"}
    assert workflows.status(run_id) == "SUCCEEDED"
    assert workflows.value("SELECT result FROM runledger.workflow_runs") == "c"
    # That its jobs are gone stays told.
    workflows.look.execute("DELETE FROM runledger.workflow_runs")


def test_who_waits_is_told_of_a_run_whose_end_was_repaired(workflows: Workflows):
    run_id = prepared(workflows, "all succeeded")
    workflows.look.execute((RUN + "status = 'RUNNING', finished_at = NULL, result = NULL").encode())
    listener = workflows.database.connect_directly(autocommit=True)
    listener.execute(f"LISTEN {RUN_ENDED_CHANNEL}".encode())
    listener.execute("SELECT pg_advisory_lock_shared(%s)", [WAITERS_MARK])

    verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    told = next(listener.notifies(timeout=20))
    assert told.payload == str(run_id)
    assert workflows.value("SELECT result FROM runledger.workflow_runs") == "c"
