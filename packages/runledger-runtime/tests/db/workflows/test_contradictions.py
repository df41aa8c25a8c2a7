"""A run whose rows contradict themselves waits for a repair, and costs no other run anything."""

from __future__ import annotations

from typing import Any

import pytest

from runledger_core import JobContext, JobEnqueue, Scope
from runledger_postgres import enqueue_job
from runledger_postgres.lifecycle import verify_workflow_runs

from .conftest import Runs

KEPT = "outcome refused by the server; kept and tried again"

# The step waits for nobody, says the row; its edge says that it waits for one.
CONTRADICT = """
UPDATE runledger.workflow_steps SET dependency_count_pending = 0
WHERE workflow_run_id = %s AND status = 'BLOCKED' RETURNING 1
"""

KEEP_STEPS_BACK = """
CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE UPDATE ON runledger.workflow_steps FOR EACH ROW
    WHEN (OLD.status = 'BLOCKED') EXECUTE FUNCTION public.keep();
"""


def test_outcome_is_kept_until_the_run_is_repaired(runs: Runs) -> None:
    ran: list[str] = []

    def handler(_context: JobContext, payload: Any) -> None:
        ran.append(payload["of"])

    runs.catalog.job("jobs.one", handler)
    runs.sync()
    broken, sound = (
        runs.enqueue(
            runs.dag()
            .job("first", "jobs.one", {"of": name})
            .job("second", "jobs.one", {"of": name}, after_success=["first"])
        )
        for name in ("broken", "sound")
    )
    assert runs.value(CONTRADICT, broken) == 1
    runs.start()

    assert runs.ended(sound) == "SUCCEEDED"
    alone = enqueue_job(runs.pool, JobEnqueue("jobs.one", {"of": "nobody"})).id
    runs.wait_until(
        lambda: (
            runs.value("SELECT status FROM runledger.job_queue WHERE id = %s", alone) == "SUCCEEDED"
        )
    )
    assert runs.steps(broken) == {"first": "ENQUEUED", "second": "BLOCKED"}

    (difference,) = verify_workflow_runs(runs.pool, scope=Scope.ADMIN, repair=True)

    assert (difference.run_id, difference.step_key) == (broken, "second")
    assert runs.ended(broken) == "SUCCEEDED"
    assert sorted(ran) == ["broken", "broken", "nobody", "sound", "sound"]


def test_outcome_is_kept_while_a_trigger_keeps_rows_of_its_run_back(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    def handler(context: JobContext, _payload: Any) -> None:
        ran.append(context.step_key or "")

    runs.catalog.job("jobs.one", handler)
    runs.sync()
    run_id = runs.enqueue(
        runs.dag()
        .job("first", "jobs.one", {})
        .job("second", "jobs.one", {}, after_success=["first"])
    )
    with runs.pool.connection() as connection:
        connection.execute(KEEP_STEPS_BACK)
    runs.start()

    runs.wait_until(lambda: KEPT in caplog.messages)
    alone = enqueue_job(runs.pool, JobEnqueue("jobs.one", {})).id
    runs.wait_until(
        lambda: (
            runs.value("SELECT status FROM runledger.job_queue WHERE id = %s", alone) == "SUCCEEDED"
        )
    )
    assert runs.steps(run_id) == {"first": "ENQUEUED", "second": "BLOCKED"}
    with runs.pool.connection() as connection:
        connection.execute("DROP FUNCTION public.keep CASCADE")

    assert runs.ended(run_id) == "SUCCEEDED"
    assert sorted(ran) == ["", "first", "second"]
