"""A trigger of the host keeps a write from its row: the end of a step is whole, or is not."""

from __future__ import annotations

from contextlib import closing

import pytest

from runledger_core import RunledgerError, Scope
from runledger_core.workflows import WorkflowExternalCompletion
from runledger_postgres import QueryError
from runledger_postgres.lifecycle import cancel_workflow_run, complete_jobs, reap_expired_leases
from runledger_postgres.workflows import complete_external_workflow_step
from runledger_test_support import expire_lease

from .conftest import Workflows
from .engine import Engine, keep_writes, success

PAIR = {"a": [], "b": ["a"]}
# What is released behind `a`: the step, and the job that is made of it; and the counts of the run.
KEPT = {
    "step": keep_writes("UPDATE ON runledger.workflow_steps", "OLD.step_key = 'b'"),
    "job": keep_writes("INSERT ON runledger.job_queue", "true"),
    "run": keep_writes("UPDATE ON runledger.workflow_runs", "true"),
}
# What a cancel of a run writes.
CANCELED = {
    "blocked step": KEPT["step"],
    "gate": keep_writes("UPDATE ON runledger.workflow_steps", "OLD.step_key = 'gate'"),
    "step that runs": keep_writes("UPDATE ON runledger.workflow_steps", "OLD.step_key = 'a'"),
    "job": keep_writes("UPDATE ON runledger.job_queue", "true"),
    "run": KEPT["run"],
}
every_write = pytest.mark.parametrize("write", KEPT.values(), ids=KEPT)
ROWS = """
    SELECT array_agg(r.line ORDER BY r.line) FROM (
        SELECT w::text FROM runledger.workflow_runs AS w
        UNION ALL SELECT s::text FROM runledger.workflow_steps AS s
        UNION ALL SELECT q::text FROM runledger.job_queue AS q
    ) AS r(line)
"""


def run(workflows: Workflows, sql: str) -> None:
    workflows.look.execute(sql.encode())


def let_go(workflows: Workflows) -> None:
    run(workflows, "DROP FUNCTION public.keep CASCADE")


@pytest.mark.core
@every_write
@pytest.mark.parametrize("is_joined", [False, True], ids=["own", "joined"])
def test_released_step_and_its_job_are_written_both_or_neither(
    workflows: Workflows, write: str, is_joined: bool
):
    run_id = workflows.enqueue_jobs(PAIR)
    job = workflows.claim()["a"]
    run(workflows, write)
    before = workflows.value(ROWS)

    with closing(workflows.database.connect(autocommit=not is_joined)) as connection:
        with pytest.raises(RunledgerError) as refused:
            complete_jobs(connection, [success(job)])
        usable = connection.execute("SELECT 1").fetchone()
        connection.commit()
    after = workflows.value(ROWS)
    let_go(workflows)
    workflows.succeed(job)

    assert (refused.value.code, usable) == ("db.rows_kept_back", (1,))
    assert after == before
    assert workflows.steps(run_id) == {"a": "SUCCEEDED", "b": "ENQUEUED"}


@every_write
def test_round_is_refused_and_the_run_beside_it_is_stored_apart(workflows: Workflows, write: str):
    good = workflows.enqueue_jobs({"a": [], "c": ["a"]})
    bad = workflows.enqueue_jobs(PAIR)
    engine = Engine(workflows.database)
    jobs = {job.workflow_run_id: job for job in engine.claim()}
    run_id = "id" if "workflow_runs" in write else "workflow_run_id"
    run(workflows, write.replace("(true)", f"(NEW.{run_id} = '{bad}')"))

    with pytest.raises(QueryError) as refused:
        engine.round([success(jobs[good]), success(jobs[bad])], claim=10)
    engine.round([success(jobs[good])])
    stored = [workflows.steps(run_id)["a"] for run_id in (good, bad)]
    let_go(workflows)
    engine.round([success(jobs[bad])])

    assert (refused.value.code, refused.value.is_transient) == ("db.rows_kept_back", False)
    assert stored == ["SUCCEEDED", "ENQUEUED"]
    assert workflows.steps(bad) == {"a": "SUCCEEDED", "b": "ENQUEUED"}


@every_write
def test_gate_stays_open_while_what_it_releases_cannot_be_written(workflows: Workflows, write: str):
    run_id = workflows.enqueue_jobs(PAIR, gates=("a",))
    run(workflows, write)

    def complete() -> object:
        succeeded = WorkflowExternalCompletion.succeeded()
        return complete_external_workflow_step(
            workflows.pool, run_id, "a", succeeded, scope=Scope.ADMIN
        )

    with pytest.raises(QueryError) as refused:
        complete()
    before = workflows.steps(run_id)
    let_go(workflows)
    complete()

    assert refused.value.code == "db.rows_kept_back"
    assert before == {"a": "WAITING_FOR_EXTERNAL", "b": "BLOCKED"}
    assert workflows.steps(run_id) == {"a": "SUCCEEDED", "b": "ENQUEUED"}


@pytest.mark.parametrize("part", CANCELED)
@pytest.mark.parametrize("is_joined", [False, True], ids=["own", "joined"])
def test_run_of_which_a_part_cannot_be_canceled_is_not_canceled(
    workflows: Workflows, part: str, is_joined: bool
):
    edges = {"a": [], "gate": [], "b": ["a"]}
    run_id = workflows.enqueue_jobs(edges, gates=("gate",))
    workflows.claim()
    run(workflows, CANCELED[part])
    before = workflows.value(ROWS)

    with closing(workflows.database.connect(autocommit=not is_joined)) as connection:
        with pytest.raises(RunledgerError) as refused:
            cancel_workflow_run(connection, run_id, scope=Scope.ADMIN)
        usable = connection.execute("SELECT 1").fetchone()
        connection.commit()
    after = workflows.value(ROWS)
    let_go(workflows)
    cancel_workflow_run(workflows.pool, run_id, scope=Scope.ADMIN)

    assert (refused.value.code, usable) == ("db.rows_kept_back", (1,))
    assert after == before
    assert workflows.steps(run_id) == dict.fromkeys(edges, "CANCELED")


def test_reaper_defers_the_run_whose_step_cannot_be_written_and_ends_the_others(
    workflows: Workflows,
):
    bad, good = workflows.enqueue_jobs(PAIR), workflows.enqueue_jobs({"a": [], "c": ["a"]})
    run(workflows, "UPDATE runledger.job_queue SET max_attempts = 1")
    for job in Engine(workflows.database).claim():
        expire_lease(workflows.pool, job.id)
    run(workflows, KEPT["step"])

    result = reap_expired_leases(workflows.pool, limit=10, retry_delay_ms=60_000)

    assert [error.error.code for error in result.deferred] == ["db.rows_kept_back"]
    assert len(result.reaped) == 1
    assert workflows.steps(bad) == {"a": "ENQUEUED", "b": "BLOCKED"}
    assert workflows.steps(good) == {"a": "FAILED", "c": "CANCELED"}
