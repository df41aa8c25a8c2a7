"""Verification of runs: which are looked at, and what a repair does beside others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import IsolationLevel

from runledger_core import JobCompletion, RunledgerError, Scope
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.lifecycle import (
    ClaimedJob,
    complete_job_success,
    verify_workflow_runs,
)
from runledger_postgres.workflows import WorkflowDifference
from runledger_test_support import Interleaving, Session, Step, StepContext, permute

from .conftest import JOB_TYPE, Workflows
from .test_verify import prepared, unrelease

ADMIN = Scope.ADMIN
MINE, OTHER = UUID(int=1), UUID(int=2)


def broken(workflows: Workflows, count: int = 1, *, owner: UUID | None = None) -> list[UUID]:
    """Enqueue runs with a wrong counter."""
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {})
    builder = builder if owner is None else builder.organization_id(owner)
    runs = [workflows.enqueue(builder.build()) for _ in range(count)]
    workflows.look.execute(
        "UPDATE runledger.workflow_runs SET steps_failed = 1 WHERE id = ANY (%s)", [runs]
    )
    return runs


def mend(workflows: Workflows) -> None:
    workflows.look.execute("UPDATE runledger.workflow_runs SET steps_failed = 0")


def test_scope_and_ids_decide_which_runs_are_looked_at(workflows: Workflows):
    (mine,), (everybodys, other) = broken(workflows, owner=MINE), broken(workflows, 2)

    def seen(**arguments: Any) -> list[UUID]:
        found = verify_workflow_runs(workflows.pool, **arguments)
        return [one.run_id for one in found]

    assert seen(scope=ADMIN) == [mine, everybodys, other]
    assert seen(scope=Scope.GLOBAL) == [everybodys, other]
    assert seen(scope=Scope.organization(MINE)) == [mine]
    assert seen(scope=Scope.organization(OTHER)) == []
    assert seen(scope=ADMIN, run_ids=[other, mine]) == [mine, other]
    assert seen(scope=ADMIN, run_ids=[]) == []
    assert seen(scope=ADMIN, limit=2) == [mine, everybodys]
    mend(workflows)


def test_more_runs_than_one_read_brings_are_looked_at(workflows: Workflows):
    runs = broken(workflows, 120)

    found = verify_workflow_runs(workflows.pool, scope=ADMIN, limit=1_000, repair=True)

    assert [one.run_id for one in found] == runs
    assert verify_workflow_runs(workflows.pool, scope=ADMIN) == []


def test_run_out_of_scope_is_not_found(workflows: Workflows):
    (run_id,) = broken(workflows, owner=MINE)

    for runs, scope in (([run_id, uuid4()], ADMIN), ([run_id, run_id], Scope.GLOBAL)):
        with pytest.raises(RunledgerError) as refused:
            verify_workflow_runs(workflows.pool, scope=scope, run_ids=runs, repair=True)
        assert (refused.value.code, refused.value.field) == ("workflow.run_not_found", "run_ids")
        assert refused.value.entry_index == (0 if scope == Scope.GLOBAL else 1)
    mend(workflows)


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"limit": 0}, "input.out_of_range", "limit"),
        ({"limit": 1_001}, "input.out_of_range", "limit"),
        ({"repair": 1}, "input.wrong_type", "repair"),
        ({"run_ids": ["1"]}, "input.wrong_type", "run_ids[0]"),
        ({"scope": None}, "input.wrong_type", "scope"),
        ({"lock_timeout_ms": 0}, "input.out_of_range", "lock_timeout_ms"),
    ],
)
def test_arguments_are_refused_before_sql(arguments: dict[str, Any], code: str, field: str):
    with pytest.raises(RunledgerError) as refused:
        verify_workflow_runs(None, **{"scope": ADMIN} | arguments)  # pyright: ignore[reportArgumentType]  # never used

    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.core
def test_joined_repair_is_the_callers_to_undo(workflows: Workflows):
    broken(workflows)
    connection = workflows.database.connect()

    repaired = verify_workflow_runs(connection, scope=ADMIN, repair=True)
    then = verify_workflow_runs(connection, scope=ADMIN)
    connection.rollback()

    assert ([one.is_repaired for one in repaired], then) == ([True], [])
    assert len(verify_workflow_runs(workflows.pool, scope=ADMIN)) == 1
    mend(workflows)


def test_repair_with_one_snapshot_is_refused(workflows: Workflows):
    broken(workflows)
    connection = workflows.database.connect()
    connection.isolation_level = IsolationLevel.REPEATABLE_READ

    with pytest.raises(RunledgerError) as refused:
        verify_workflow_runs(connection, scope=ADMIN, repair=True)

    assert refused.value.code == "workflow.terminal_completion_unsupported_isolation"
    assert len(verify_workflow_runs(connection, scope=ADMIN)) == 1
    connection.rollback()
    mend(workflows)


def repair_beside(workflows: Workflows, run_id: UUID, *, is_joined: bool, code: str) -> None:
    """Repair what differs, and see one run left with its error and all others put right."""
    with closing(workflows.database.connect(autocommit=not is_joined)) as connection:
        found = verify_workflow_runs(connection, scope=ADMIN, repair=True, lock_timeout_ms=50)
        connection.commit()
    assert [(one.run_id, one.is_repaired) for one in found] == [
        (one.run_id, one.run_id != run_id) for one in found
    ]
    assert [one.error and one.error.code for one in found if one.run_id == run_id] == [code]
    assert [one.error for one in found if one.run_id != run_id] == [None, None]
    left = verify_workflow_runs(workflows.pool, scope=ADMIN)
    assert left == [
        WorkflowDifference(run_id, None, field="steps_failed", stored="1", expected="0")
    ]


@pytest.mark.core
@pytest.mark.parametrize("is_joined", [False, True], ids=["own", "joined"])
def test_run_that_stays_locked_is_left_and_those_behind_it_are_repaired(
    workflows: Workflows, is_joined: bool
):
    first, *_ = broken(workflows, 3)
    holder = workflows.database.connect()
    holder.execute("SELECT FROM runledger.workflow_runs WHERE id = %s FOR UPDATE", [first])

    repair_beside(workflows, first, is_joined=is_joined, code="db.lock_timeout")

    holder.rollback()
    mend(workflows)


@pytest.mark.core
@pytest.mark.parametrize(
    ("trigger", "is_joined"),
    [("TRIGGER", False), ("TRIGGER", True), ("CONSTRAINT TRIGGER", False)],
    ids=["own", "joined", "deferred"],
)
def test_run_whose_repair_a_trigger_refuses_is_left_and_those_behind_it_are_repaired(
    workflows: Workflows, trigger: str, is_joined: bool
):
    first, *_ = broken(workflows, 3)
    deferred = "" if trigger == "TRIGGER" else "DEFERRABLE INITIALLY DEFERRED"
    sql = f"""
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
            AS 'BEGIN RAISE ''secret''; END';
        CREATE {trigger} refuse AFTER UPDATE ON runledger.workflow_runs {deferred}
            FOR EACH ROW WHEN (NEW.id = '{first}') EXECUTE FUNCTION public.refuse()
    """
    workflows.look.execute(sql.encode())

    repair_beside(workflows, first, is_joined=is_joined, code="db.query_failed")

    workflows.look.execute("DROP FUNCTION public.refuse CASCADE")
    mend(workflows)


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ("PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW", "db.unavailable"),
        ("RAISE disk_full", "db.out_of_resources"),
    ],
    ids=["lost connection", "full disk"],
)
def test_trouble_of_the_server_ends_a_repair_and_is_no_runs_fault(
    workflows: Workflows, trouble: str, code: str
):
    broken(workflows, 2)
    sql = f"""
        CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {trouble}; END';
        CREATE TRIGGER fail BEFORE UPDATE ON runledger.workflow_runs
            FOR EACH ROW EXECUTE FUNCTION public.fail()
    """
    workflows.look.execute(sql.encode())

    with pytest.raises(RunledgerError) as ended:
        verify_workflow_runs(workflows.pool, scope=ADMIN, repair=True)

    assert ended.value.code == code
    workflows.look.execute("DROP FUNCTION public.fail CASCADE")
    assert len(verify_workflow_runs(workflows.pool, scope=ADMIN)) == 2
    mend(workflows)


def complete(job: ClaimedJob) -> Callable[[StepContext], object]:
    return lambda context: complete_job_success(
        context.connection, job.lease, JobCompletion(1)
    ).verdict  # fmt: skip


def repair(context: StepContext) -> list[WorkflowDifference]:
    return verify_workflow_runs(context.connection, scope=ADMIN, repair=True)


def check_races(
    workflows: Workflows, writes: Callable[[ClaimedJob], dict[str, Callable[..., object]]]
) -> list[Interleaving]:
    """Play two writes in every order, on a run whose cleanup lost its release."""

    def sessions() -> list[Session]:
        workflows.look.execute("DELETE FROM runledger.workflow_runs")
        workflows.look.execute("DELETE FROM runledger.job_queue")
        prepared(workflows, "a succeeded")
        job = workflows.claim()["b"]
        workflows.look.execute(unrelease("cleanup").encode())
        end = Step("end", lambda context: context.connection.commit())
        return [
            Session(name, workflows.database.connect_directly, steps=[Step("write", write), end])
            for name, write in writes(job).items()
        ]

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        assert verify_workflow_runs(workflows.pool, scope=ADMIN) == []
        run_id = workflows.value("SELECT id FROM runledger.workflow_runs")
        ready = [step for step, status in workflows.steps(run_id).items() if status == "ENQUEUED"]
        jobs = "SELECT count(*) FROM runledger.job_queue WHERE status IN ('PENDING', 'LEASED')"
        assert len(ready) == workflows.value(jobs)
        assert "cleanup" in ready

    return permute(sessions, check)


def test_repair_beside_the_end_of_a_job(workflows: Workflows):
    played = check_races(workflows, lambda job: {"complete": complete(job), "repair": repair})

    assert {run.outcome("complete", "write").value for run in played} == {"STORED"}
    assert all(run.outcome("repair", "write").value for run in played)


def test_two_repairs_at_once_do_nothing_twice(workflows: Workflows):
    played = check_races(workflows, lambda _: {"one": repair, "other": repair})

    for run in played:
        found = [run.outcome(name, "write").value for name in ("one", "other")]
        assert sorted(map(bool, found)) == [False, True]
