"""Writes on runs whose connection breaks at COMMIT: nobody can tell, and a repeat is harmless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobLease, RunledgerError, WorkflowExternalCompletion
from runledger_core.workflows import WorkflowRunEnqueue, WorkflowStepEnqueue
from runledger_postgres import connect_pool
from runledger_postgres.lifecycle import cancel_job, cancel_workflow_run, complete_job_success
from runledger_postgres.workflows import (
    append_workflow_steps,
    complete_external_workflow_step,
    enqueue_workflow_run,
)
from runledger_test_support import CutPoint, FaultProxy

from ._appending import ADMIN, job, request
from .conftest import JOB_TYPE, Workflows

UNKEYED = WorkflowRunEnqueue("test.workflow", steps=[WorkflowStepEnqueue("one", JOB_TYPE)])
KEYED = replace(UNKEYED, idempotency_key="key")
RUNS = "SELECT count(*)::int4 FROM runledger.workflow_runs"
JOBS = "SELECT count(*)::int4 FROM runledger.job_queue"

Write = Callable[[Any, UUID, JobLease], object]
# What a repeat answers if the first was stored, and if it was not.
WRITES: dict[str, tuple[Write, object, object]] = {
    "keyed enqueue": (
        lambda db, _run_id, _lease: enqueue_workflow_run(db, KEYED).disposition,
        "EXISTING",
        "INSERTED",
    ),
    "append": (
        lambda db, run_id, _lease: (
            append_workflow_steps(db, request(run_id, job("new")), scope=ADMIN).disposition
        ),
        "ALREADY_APPLIED",
        "APPENDED",
    ),
    "gate": (
        lambda db, run_id, _lease: (
            complete_external_workflow_step(
                db, run_id, "gate", WorkflowExternalCompletion.succeeded(1), scope=ADMIN
            ).output
        ),
        1,
        1,
    ),
    "success": (
        lambda db, _run_id, lease: complete_job_success(db, lease, JobCompletion(1)).verdict,
        "REPEATED",
        "STORED",
    ),
    "cancel": (
        lambda db, run_id, _lease: cancel_workflow_run(db, run_id, scope=ADMIN).is_canceled_now,
        False,
        True,
    ),
    "cancel of a job": (
        lambda db, _run_id, lease: cancel_of(db, lease),
        "job.invalid_state_transition",
        "CANCELED",
    ),
}


def cancel_of(db: Any, lease: JobLease) -> str:
    try:
        return cancel_job(db, lease.job_id, scope=ADMIN).status
    except RunledgerError as error:
        if error.code != "job.invalid_state_transition":
            raise
        return error.code


def lost(workflows: Workflows, point: CutPoint, write: Callable[[Any], object]) -> str:
    """Write over a connection that breaks at its COMMIT; return the code of the error."""
    with (
        FaultProxy(workflows.database.direct_dsn) as proxy,
        connect_pool(proxy.dsn, max_size=1) as pool,
    ):
        proxy.cut_at_commit(point)
        with pytest.raises(RunledgerError) as caught:
            write(pool)
    return caught.value.code


@pytest.mark.parametrize("point", list(CutPoint))
@pytest.mark.parametrize("name", WRITES)
def test_write_on_a_run_may_be_repeated_after_an_unknown_outcome(
    workflows: Workflows, name: str, point: CutPoint
):
    write, after_stored, after_lost = WRITES[name]
    run_id = workflows.enqueue_jobs(
        {"gate": {}, "a": {}, "b": {"a": "terminal"}, "c": {"gate": "success"}}, gates=("gate",)
    )
    lease = workflows.claim()["a"].lease

    code = lost(workflows, point, lambda db: write(db, run_id, lease))
    answered = write(workflows.pool, run_id, lease)
    rows = (workflows.steps(run_id), workflows.value(RUNS), workflows.value(JOBS))

    assert code == "db.outcome_unknown"
    assert answered == (after_stored if point is CutPoint.AFTER_FORWARD else after_lost)
    # As if it had been sent once.
    released = {"append": 1, "gate": 1, "success": 1, "cancel of a job": 1, "keyed enqueue": 1}
    runs = 2 if name == "keyed enqueue" else 1
    assert rows[1:] == (runs, 1 + released.get(name, 0))


@pytest.mark.parametrize(
    ("point", "stored"), [(CutPoint.BEFORE_FORWARD, 0), (CutPoint.AFTER_FORWARD, 1)]
)
def test_unkeyed_run_whose_commit_was_lost_is_not_enqueued_a_second_time_by_us(
    workflows: Workflows, point: CutPoint, stored: int
):
    code = lost(workflows, point, lambda db: enqueue_workflow_run(db, UNKEYED))

    assert code == "db.outcome_unknown"
    assert workflows.value(RUNS) == stored
