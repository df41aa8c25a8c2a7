"""Pruning of runs: what goes, and what stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from runledger_core import JobEnqueue, RunledgerError, Scope
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunStatus
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import cancel_workflow_run, claim_jobs
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_test_support import Interleaving, Session, permute

from ._pruning import (
    ADMIN,
    TABLES,
    age,
    canceled,
    delete_all,
    ended,
    prune,
    rows,
    runs,
    sessions_of,
)
from .conftest import JOB_TYPE, Workflows

MINE, OTHER = UUID(int=1), UUID(int=2)


@pytest.mark.core
def test_run_goes_with_all_that_belongs_to_it_and_with_nothing_else(workflows: Workflows):
    stays = ended(workflows)
    enqueue_job(
        workflows.pool, JobEnqueue(JOB_TYPE, {}, next_run_at=datetime(2900, 1, 1, tzinfo=UTC))
    )
    before = rows(workflows)
    goes = ended(workflows)
    age(workflows, goes)
    both = rows(workflows)

    assert prune(workflows.pool) == 1

    assert rows(workflows) == before
    assert runs(workflows) == [stays]
    assert all(len(both[table]) > len(before[table]) for table in TABLES)


@pytest.mark.parametrize(("days", "is_pruned"), [(0.99, False), (1.01, True)])
def test_age_is_the_time_since_the_end(workflows: Workflows, days: float, is_pruned: bool):
    canceled(workflows, days=days)

    assert prune(workflows.pool) == is_pruned


def test_run_that_goes_on_stays_however_old_it_is(workflows: Workflows):
    running = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    waiting = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    age(workflows, running, waiting, days=400)

    assert prune(workflows.pool) == 0

    assert set(runs(workflows)) == {running, waiting}


def test_statuses_decide_which_runs_go(workflows: Workflows):
    succeeded, failed = (workflows.enqueue_jobs({"a": []}) for _ in range(2))
    for run_id, end in ((succeeded, workflows.succeed), (failed, workflows.fail)):
        end(workflows.claim(1)["a"])
        age(workflows, run_id)
    given_up = canceled(workflows)

    pruned = prune(workflows.pool, statuses={WorkflowRunStatus.SUCCEEDED})
    left = set(runs(workflows))
    none = prune(workflows.pool, statuses=[])
    rest = prune(workflows.pool, statuses=["CANCELED", "COMPLETED_WITH_ERRORS"])

    assert (pruned, left, none, rest) == (1, {failed, given_up}, 0, 2)


@pytest.mark.parametrize(
    ("scope", "pruned"),
    [
        (Scope.organization(MINE), 1),
        (Scope.organization(OTHER), 0),
        (Scope.GLOBAL, 1),
        (ADMIN, 2),
    ],
)
def test_scope_decides_whose_runs_go(workflows: Workflows, scope: Scope, pruned: int):
    canceled(workflows, owner=MINE)
    canceled(workflows)

    assert prune(workflows.pool, scope=scope) == pruned


def test_those_that_ended_first_go_first_as_many_as_are_wanted(workflows: Workflows):
    # Of several transactions.
    made = [canceled(workflows, days=400 - number) for number in range(210)]

    pruned = prune(workflows.pool, limit=205)
    left = runs(workflows)

    assert (pruned, set(left)) == (205, set(made[205:]))
    assert prune(workflows.pool) == 5


@pytest.mark.parametrize("held", ["workflow_runs", "job_queue"])
def test_run_that_somebody_holds_is_left_without_waiting(workflows: Workflows, held: str):
    run_id, other = canceled(workflows, days=9), canceled(workflows)
    column = "id" if held == "workflow_runs" else "workflow_run_id"
    holder = workflows.database.connect()
    holder.execute(
        f"SELECT FROM runledger.{held} WHERE {column} = %s FOR NO KEY UPDATE".encode(), [run_id]
    )

    pruned = prune(workflows.pool, limit=1)
    left = runs(workflows)
    holder.rollback()

    assert (pruned, left) == (1, [run_id])
    assert other not in left
    assert prune(workflows.pool) == 1


@pytest.mark.core
def test_run_is_left_while_a_worker_has_one_of_its_jobs(workflows: Workflows):
    run_id, _ = canceled(workflows, days=9), canceled(workflows)
    workflows.look.execute(
        "UPDATE runledger.job_queue SET status = 'LEASED', worker_id = 'w', leased_at = now(),"
        " lease_expires_at = now() WHERE workflow_run_id = %s",
        [run_id],
    )

    assert (prune(workflows.pool), runs(workflows)) == (1, [run_id])

    workflows.look.execute(
        "UPDATE runledger.job_queue SET status = 'CANCELED' WHERE workflow_run_id = %s", [run_id]
    )
    assert (prune(workflows.pool), runs(workflows)) == (1, [])


def test_key_of_a_run_that_is_gone_is_free_again(workflows: Workflows):
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {})
    request = builder.idempotency_key("order-1").build()
    first = enqueue_workflow_run(workflows.pool, request)
    cancel_workflow_run(workflows.pool, first.id, scope=ADMIN)
    age(workflows, first.id)
    prune(workflows.pool)

    again = enqueue_workflow_run(workflows.pool, request)

    assert (again.id != first.id, again.disposition) == (True, "INSERTED")


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"older_than": timedelta(hours=23, minutes=59)}, "input.out_of_range", "older_than"),
        ({"older_than": timedelta(days=-1)}, "input.out_of_range", "older_than"),
        ({"older_than": timedelta.max}, "input.out_of_range", "older_than"),
        ({"older_than": 86_400}, "input.wrong_type", "older_than"),
        ({"statuses": ["SUCCEEDED", "RUNNING"]}, "input.out_of_range", "statuses[1]"),
        ({"statuses": "SUCCEEDED"}, "input.wrong_type", "statuses"),
        ({"limit": 0}, "input.out_of_range", "limit"),
        ({"scope": None}, "input.wrong_type", "scope"),
    ],
)
def test_arguments_are_refused_before_sql(arguments: dict[str, Any], code: str, field: str):
    with pytest.raises(RunledgerError) as refused:
        prune(None, **arguments)

    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.core
def test_joined_pruning_is_the_callers_to_undo(workflows: Workflows):
    age(workflows, ended(workflows))
    before = rows(workflows)
    connection = workflows.database.connect()

    assert prune(connection) == 1
    connection.rollback()

    assert rows(workflows) == before


def test_two_at_once_delete_each_run_once(workflows: Workflows):
    def sessions() -> list[Session]:
        delete_all(workflows)
        for _ in range(3):
            canceled(workflows)
        return sessions_of(
            workflows, dict.fromkeys(("one", "other"), lambda db: prune(db, limit=2))
        )

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        counts = {run.outcome(name, "write").value for name in ("one", "other")}
        assert counts == {1, 2}
        assert runs(workflows) == []

    permute(sessions, check)


def test_job_that_a_worker_claims_meanwhile_is_not_deleted(workflows: Workflows):
    def claim(db: psycopg.Connection[Any]) -> int:
        types = [JOB_TYPE]
        return len(claim_jobs(db, worker_id="w", limit=9, lease_ttl_seconds=60, job_types=types))

    def sessions() -> list[Session]:
        delete_all(workflows)
        canceled(workflows)
        # As a cancel leaves none.
        workflows.look.execute("UPDATE runledger.job_queue SET status = 'PENDING', is_ready = true")
        return sessions_of(workflows, {"claim": claim, "prune": prune})

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        claimed, pruned = (run.outcome(name, "write").value for name in ("claim", "prune"))
        assert (claimed, pruned) in {(1, 0), (0, 1)}
        assert workflows.value("SELECT count(*) FROM runledger.job_queue") == claimed

    permute(sessions, check)
    delete_all(workflows)
