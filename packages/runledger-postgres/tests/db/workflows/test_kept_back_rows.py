"""A trigger of the host keeps back rows of a new graph: all of it is stored, or nothing."""

from __future__ import annotations

from contextlib import closing

import pytest

from runledger_core import RunledgerError
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue
from runledger_postgres.workflows import enqueue_workflow_run, enqueue_workflow_runs

from ._appending import ROWS, SUCCESS, append, gate, job, request
from .conftest import JOB_TYPE, Workflows
from .engine import keep_writes

PARTS = {
    "run": keep_writes("INSERT ON runledger.workflow_runs", "NEW.workflow_type = 'test.kept'"),
    "step": keep_writes("INSERT ON runledger.workflow_steps", "NEW.step_key = 'b'"),
    "step that nothing refers to": keep_writes(
        "INSERT ON runledger.workflow_steps", "NEW.step_key = 'gate'"
    ),
    "edge": keep_writes("INSERT ON runledger.workflow_step_dependencies", "true"),
    "job": keep_writes("INSERT ON runledger.job_queue", "true"),
}
APPENDED_PARTS = {
    "mutation": keep_writes("INSERT ON runledger.workflow_run_mutations", "true"),
    "counters": keep_writes("UPDATE ON runledger.workflow_runs", "true"),
    **{part: trigger for part, trigger in PARTS.items() if part != "run"},
}
# A step that is missing may be missed by an edge first.
REFUSALS = {"db.rows_kept_back", "db.related_resource_missing"}


def graph(workflow_type: str, *, key: str | None = None) -> WorkflowRunEnqueue:
    builder = WorkflowDagBuilder(workflow_type, {}).job("a", JOB_TYPE, {}).external("gate", {})
    builder = builder.job("b", JOB_TYPE, {}, after_success=["a"])
    return (builder if key is None else builder.idempotency_key(key)).build()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("part", PARTS)
def test_graph_of_which_a_part_is_kept_back_is_not_stored(
    workflows: Workflows, part: str, count: int
):
    workflows.look.execute(PARTS[part].encode())
    requests = [graph("test.kept"), graph("test.workflow")][:count]

    with pytest.raises(RunledgerError) as refused:
        enqueue_workflow_runs(workflows.pool, requests)

    assert refused.value.code in REFUSALS
    assert workflows.value(ROWS) is None


@pytest.mark.parametrize("part", [part for part in PARTS if part != "run"])
def test_keyed_graph_of_which_a_part_is_kept_back_leaves_its_key(workflows: Workflows, part: str):
    workflows.look.execute(PARTS[part].encode())
    keyed = graph("test.kept", key="key")

    with pytest.raises(RunledgerError) as refused:
        enqueue_workflow_run(workflows.pool, keyed)
    workflows.look.execute("DROP FUNCTION public.keep CASCADE")
    again = enqueue_workflow_run(workflows.pool, keyed)

    assert refused.value.code in REFUSALS
    assert again.disposition == "INSERTED"


@pytest.mark.parametrize("part", APPENDED_PARTS)
def test_append_of_which_a_part_is_kept_back_changes_nothing(workflows: Workflows, part: str):
    run_id = workflows.enqueue_jobs({"window": [], "x": []}, gates=("window",))
    wanted = request(
        run_id, job("a"), gate("gate"), job("b", {"a": SUCCESS}), append_window_step_key="window"
    )
    workflows.look.execute(APPENDED_PARTS[part].encode())
    before = workflows.value(ROWS)

    with closing(workflows.database.connect()) as connection:
        with pytest.raises(RunledgerError) as refused:
            append(workflows, wanted, db=connection)
        usable = connection.execute("SELECT 1").fetchone()
        connection.commit()
    after = workflows.value(ROWS)
    workflows.look.execute("DROP FUNCTION public.keep CASCADE")
    again = append(workflows, wanted)

    assert (refused.value.code in REFUSALS, usable) == (True, (1,))
    assert after == before
    assert again.disposition == "APPENDED"
