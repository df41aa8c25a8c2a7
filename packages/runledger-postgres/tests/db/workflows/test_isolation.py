"""READ UNCOMMITTED, which PostgreSQL makes READ COMMITTED of, is taken wherever that is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobFailure, Scope, WorkflowExternalCompletion
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.lifecycle import (
    ClaimedJob,
    cancel_job,
    cancel_workflow_run,
    complete_job_failure,
    complete_job_success,
    verify_workflow_runs,
)
from runledger_postgres.workflows import (
    append_workflow_steps,
    complete_external_workflow_step,
    enqueue_workflow_run,
)

from ._appending import job, request
from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
KEYED = (
    WorkflowDagBuilder("test.workflow", {}).idempotency_key("key").job("a", JOB_TYPE, {}).build()
)
LEVEL = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
# Of all that a write of ours may change.
ROWS = """
    SELECT array_agg(t.line ORDER BY t.line) FROM (
        SELECT s.ctid::text || s::text AS line FROM runledger.workflow_steps s
        UNION ALL SELECT w.ctid::text || w::text FROM runledger.workflow_runs w
    ) t
"""

Write = Callable[[Any, UUID, ClaimedJob], object]
WRITES: dict[str, Write] = {
    "keyed enqueue": lambda db, _run_id, _job: enqueue_workflow_run(db, KEYED),
    "success": lambda db, _run_id, job: complete_job_success(db, job.lease, JobCompletion(1)),
    "failure": lambda db, _run_id, job: complete_job_failure(
        db, job.lease, JobFailure.terminal("test.failed", "no")
    ),
    "cancel of a job": lambda db, _run_id, job: cancel_job(db, job.id, scope=ADMIN),
    "gate": lambda db, run_id, _job: complete_external_workflow_step(
        db, run_id, "gate", WorkflowExternalCompletion.succeeded(), scope=ADMIN
    ),
    "append": lambda db, run_id, _job: append_workflow_steps(
        db, request(run_id, job("new")), scope=ADMIN
    ),
    "cancel": lambda db, run_id, _job: cancel_workflow_run(db, run_id, scope=ADMIN),
    "repair": lambda db, _run_id, _job: verify_workflow_runs(db, scope=ADMIN, repair=True),
}


@pytest.mark.parametrize("name", WRITES)
def test_write_on_a_run_is_taken_in_read_uncommitted(workflows: Workflows, name: str):
    run_id = workflows.enqueue_jobs({"gate": [], "a": [], "b": ["a"]}, gates=("gate",))
    claimed = workflows.claim()["a"]
    if name == "repair":
        workflows.look.execute("UPDATE runledger.workflow_runs SET steps_open = 2")
    before = workflows.value(ROWS)

    with closing(workflows.database.connect()) as connection:
        connection.execute(LEVEL)
        WRITES[name](connection, run_id, claimed)
        unseen = workflows.value(ROWS)
        connection.commit()

    assert unseen == before
    assert workflows.value(ROWS) != before
