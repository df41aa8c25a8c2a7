"""What the soaks of workflows judge by sees every kind of offence; they prove nothing otherwise."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest
from _crowd import run_to_the_end
from _faults import define
from _workflows import JOB_TYPE, Plan, disagreements, enqueue

from runledger_core import JobFailure
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import claim_jobs, complete_job_failure

GO_ON = {"end": "SUCCEEDED", "failures": 0, "milliseconds": 0}
FAIL = GO_ON | {"end": "FAILED"}


class Match:
    """A run that has ended as planned: its first step failed, which doomed the second."""

    def __init__(self, db: psycopg.Connection[Any]) -> None:
        define(db, JOB_TYPE)
        self.db = db
        steps = (
            WorkflowDagBuilder("workflow.soak", {})
            .job("first", JOB_TYPE, FAIL)
            .job("doomed", JOB_TYPE, GO_ON, after_success=["first"])
            .job("last", JOB_TYPE, GO_ON, after_terminal=["doomed"])
            .build()
            .steps
        )
        plan = Plan(list(steps))
        self.plans: dict[UUID, Plan] = {enqueue(db, plan): plan}
        (job,) = claim_jobs(db, worker_id="worker", limit=9, lease_ttl_seconds=60)
        complete_job_failure(db, job.lease, JobFailure.terminal("test.failed", "as planned"))
        run_to_the_end(db)

    def judge(self, *, is_as_planned: bool = True) -> list[str]:
        return disagreements(self.db, self.plans, is_as_planned=is_as_planned)

    def break_(self, *statements: str) -> None:
        for statement in statements:
            self.db.execute(statement.encode())


@pytest.fixture
def match(runledger_database: Any) -> Match:
    return Match(runledger_database.connect_directly(autocommit=True))


def test_run_that_ended_as_its_edges_say_is_no_offence(match: Match) -> None:
    assert match.judge() == []
    assert match.judge(is_as_planned=False) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runledger.workflow_runs SET steps_failed = 2",
        "UPDATE runledger.workflow_runs SET status = 'SUCCEEDED'",
        "UPDATE runledger.workflow_runs SET status = 'RUNNING', finished_at = NULL",
        "UPDATE runledger.workflow_steps SET status = 'SUCCEEDED' WHERE step_key = 'doomed'",
        "UPDATE runledger.workflow_steps SET status = 'BLOCKED' WHERE step_key = 'last'",
        "UPDATE runledger.job_queue SET status = 'CANCELED' WHERE status = 'SUCCEEDED'",
        "UPDATE runledger.workflow_steps SET job_id = NULL, payload = '{}'",
    ],
)
def test_offence_is_seen(match: Match, statement: str) -> None:
    match.break_(
        "ALTER TABLE runledger.workflow_runs DISABLE TRIGGER ALL",
        "ALTER TABLE runledger.workflow_steps DISABLE TRIGGER ALL",
        statement,
    )

    assert match.judge()
    assert match.judge(is_as_planned=False)


def test_step_that_ended_otherwise_than_planned_is_seen(match: Match) -> None:
    ((plan),) = match.plans.values()
    plan.steps[0] = WorkflowDagBuilder("x", {}).job("first", JOB_TYPE, GO_ON).build().steps[0]

    assert match.judge()
    assert match.judge(is_as_planned=False) == []
