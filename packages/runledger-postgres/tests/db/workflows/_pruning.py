"""What tests of pruning speak of: runs that ended long ago, and all of their rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from runledger_core import Scope
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import insert_job_log
from runledger_postgres.lifecycle import cancel_workflow_run
from runledger_postgres.workflows import prune_workflow_runs
from runledger_test_support import Session, Step

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
DAY = timedelta(days=1)
# What belongs to runs and jobs.
TABLES = (
    "workflow_runs", "workflow_steps", "workflow_step_dependencies", "workflow_run_mutations",
    "job_queue", "job_attempts", "job_events", "job_dead_letters", "job_logs",
)  # fmt: skip


def prune(db: Any, **arguments: Any) -> int:
    return prune_workflow_runs(db, **{"older_than": DAY, "scope": ADMIN} | arguments)


def age(workflows: Workflows, *run_ids: UUID, days: float = 2) -> None:
    """Let runs have been enqueued and ended so long ago."""
    workflows.look.execute(
        "UPDATE runledger.workflow_runs SET finished_at = finished_at - %s,"
        " started_at = started_at - %s, created_at = created_at - %s WHERE id = ANY (%s)",
        [*[timedelta(days=days)] * 3, list(run_ids)],
    )


def canceled(workflows: Workflows, *, days: float = 2, owner: UUID | None = None) -> UUID:
    """Return a run of one step that was canceled so long ago."""
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {})
    builder = builder if owner is None else builder.organization_id(owner)
    run_id = workflows.enqueue(builder.build())
    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
    age(workflows, run_id, days=days)
    return run_id


def ended(workflows: Workflows, *, has_result: bool = True) -> UUID:
    """Return a run that has left a row in every table, and has just ended."""
    builder = (
        WorkflowDagBuilder("test.workflow", {})
        .job("a", JOB_TYPE, {})
        .job("b", JOB_TYPE, {})
        .after_terminal("b", ["a"])
        .idempotency_key(str(uuid4()))
    )
    run_id = workflows.enqueue((builder.result_step("b") if has_result else builder).build())
    job = workflows.claim()["a"]
    insert_job_log(workflows.pool, job.id, scope=ADMIN, level="INFO", message="on the way")
    workflows.fail(job)
    workflows.succeed(workflows.claim()["b"], 1)
    workflows.look.execute(
        "INSERT INTO runledger.workflow_run_mutations (workflow_run_id, mutation_key, request)"
        " VALUES (%s, 'more', '{}')",
        [run_id],
    )
    return run_id


def runs(workflows: Workflows) -> list[UUID]:
    return [row[0] for row in workflows.look.execute("SELECT id FROM runledger.workflow_runs")]


def rows(workflows: Workflows) -> dict[str, list[Any]]:
    return {
        table: workflows.look.execute(
            f"SELECT t::text FROM runledger.{table} t ORDER BY 1".encode()
        ).fetchall()
        for table in TABLES
    }


def sessions_of(workflows: Workflows, writes: dict[str, Any]) -> list[Session]:
    return [
        Session(
            name,
            workflows.database.connect_directly,
            steps=[
                Step("write", lambda context, w=write: w(context.connection)),
                Step("end", lambda context: context.connection.commit()),
            ],
        )
        for name, write in writes.items()
    ]


def delete_all(workflows: Workflows) -> None:
    workflows.look.execute("DELETE FROM runledger.workflow_runs")
    workflows.look.execute("DELETE FROM runledger.job_queue")
