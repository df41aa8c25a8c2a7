"""Jobs that belong to steps: what is refused of them, and what becomes of one that is deleted."""

from __future__ import annotations

from uuid import UUID

import pytest

from runledger_core import RunledgerError, Scope
from runledger_postgres import (
    PayloadRejected,
    PayloadRejection,
    update_job_payload_uuid_array_field,
)
from runledger_postgres.lifecycle import (
    OperatorVerdict,
    cancel_job,
    cancel_workflow_run,
    complete_jobs,
    requeue_job,
    requeue_jobs,
)

from ._appending import ROWS
from .conftest import JOB_TYPE, Workflows
from .engine import Engine, success

ADMIN = Scope.ADMIN
EMPTY = "TRUNCATE runledger.workflow_runs, runledger.job_queue CASCADE"


def ended(workflows: Workflows, end: str) -> UUID:
    """End the job of a step; return its id."""
    run_id = workflows.enqueue_jobs({"a": {}, "b": {"a": "terminal"}})
    job = workflows.claim()["a"]
    match end:
        case "success":
            workflows.succeed(job)
        case "failure":
            workflows.fail(job)
        case "cancel":
            cancel_job(workflows.pool, job.id, scope=ADMIN)
        case _:
            cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
    return job.id


@pytest.mark.parametrize("end", ["success", "failure", "cancel", "cancel of the run"])
def test_job_of_a_step_is_not_requeued_past_its_run(workflows: Workflows, end: str):
    job_id = ended(workflows, end)
    before = workflows.value(ROWS)

    with pytest.raises(RunledgerError) as refused:
        requeue_job(workflows.pool, job_id, scope=ADMIN)
    verdicts = requeue_jobs(workflows.pool, [job_id], scope=ADMIN)

    assert refused.value.code == "job.workflow_requeue_not_supported"
    assert [verdict is OperatorVerdict.DONE for verdict in verdicts] == [False]
    assert workflows.value(ROWS) == before


def test_payload_of_a_step_is_not_edited_as_that_of_a_direct_job(workflows: Workflows):
    workflows.enqueue_jobs({"a": []})
    job_id = workflows.value("SELECT id FROM runledger.job_queue")
    before = workflows.value(ROWS)

    result = update_job_payload_uuid_array_field(
        workflows.pool, job_id, scope=ADMIN, job_type=JOB_TYPE, field="ids", values=[job_id]
    )

    assert result == PayloadRejected(PayloadRejection.WORKFLOW_MANAGED)
    assert workflows.value(ROWS) == before


@pytest.mark.parametrize("is_round", [True, False], ids=["round", "batch"])
def test_job_that_was_deleted_while_its_step_ran_costs_no_other(
    workflows: Workflows, *, is_round: bool
):
    workflows.enqueue_jobs({"a": [], "b": ["a"]})
    other = workflows.enqueue_jobs({"a": [], "b": ["a"]})
    engine = Engine(workflows.database)
    deleted, kept = engine.claim()
    workflows.look.execute("DELETE FROM runledger.job_queue WHERE id = %s", [deleted.id])
    entries = [success(deleted), success(kept)]

    found = engine.round(entries).successes if is_round else complete_jobs(workflows.pool, entries)

    assert [outcome.verdict for outcome in found] == ["LEASE_OWNER_MISMATCH", "STORED"]
    assert workflows.steps(other) == {"a": "SUCCEEDED", "b": "ENQUEUED"}
    # What is left of the other run is nothing that the API makes.
    workflows.look.execute(EMPTY)
