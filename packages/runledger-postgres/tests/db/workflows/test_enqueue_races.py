"""Enqueues of one key at the same time make one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from runledger_core import ConflictError, EnqueueDisposition
from runledger_core.workflows import (
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
)
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import ClaimedJob
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_test_support import Interleaving, Session, Step, permute

from .conftest import JOB_TYPE, Workflows
from .engine import Engine, success, until_waiting

INSERTED, EXISTING = EnqueueDisposition.INSERTED, EnqueueDisposition.EXISTING
REQUEST = WorkflowRunEnqueue(
    "test.workflow", steps=[WorkflowStepEnqueue("one", JOB_TYPE)], idempotency_key="key"
)
OTHER = replace(REQUEST, metadata={"other": True})
OWNED = replace(REQUEST, organization_id=UUID(int=1))
EMPTY = "TRUNCATE runledger.workflow_runs, runledger.job_queue CASCADE"


@pytest.mark.parametrize("request_", [REQUEST, OWNED], ids=["global", "owned"])
@pytest.mark.parametrize("ends", [("commit", "commit"), ("rollback", "commit")], ids="-".join)
def test_second_of_two_waits_and_gets_the_run_of_the_first_or_its_own(
    workflows: Workflows, request_, ends
):
    def session(name: str, end: str) -> Session:
        return Session(
            name,
            workflows.database.connect,
            steps=[
                Step("enqueue", lambda c: enqueue_workflow_run(c.connection, request_)),
                Step("end", lambda c: getattr(c.connection, end)()),
            ],
        )

    def sessions() -> list[Session]:
        workflows.look.execute(EMPTY)
        return [session("a", ends[0]), session("b", ends[1])]

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        results: list[Any] = [run.outcome(name, "enqueue").value for name in ("a", "b")]
        stored = workflows.look.execute("SELECT id FROM runledger.workflow_runs").fetchall()
        lasting = [result for result, end in zip(results, ends, strict=True) if end == "commit"]
        assert {(result.id,) for result in lasting} == set(stored)
        assert len(stored) == 1
        assert [result.disposition for result in lasting].count(INSERTED) == 1

    permute(sessions, check)


def test_second_of_two_different_requests_is_refused_and_its_transaction_goes_on(
    workflows: Workflows,
):
    with (
        closing(workflows.database.connect()) as one,
        closing(workflows.database.connect()) as other,
        ThreadPoolExecutor(1) as background,
    ):
        first = enqueue_workflow_run(one, REQUEST)
        second = background.submit(enqueue_workflow_run, other, OTHER)
        until_waiting(workflows)
        one.commit()
        with pytest.raises(ConflictError) as refused:
            second.result()
        enqueue_workflow_run(other, replace(OTHER, idempotency_key=None))
        other.commit()

    assert refused.value.code == "workflow.enqueue_conflicting_retry"
    assert workflows.value(
        "SELECT id FROM runledger.workflow_runs WHERE idempotency_key = 'key'"
    ) == first.id  # fmt: skip
    assert workflows.value("SELECT count(*)::int4 FROM runledger.workflow_runs") == 2


def test_hundred_enqueues_of_one_key_make_one_run(workflows: Workflows):
    with ThreadPoolExecutor(16) as threads:
        results = list(
            threads.map(lambda _: enqueue_workflow_run(workflows.pool, REQUEST), range(100))
        )

    assert len({result.id for result in results}) == 1
    assert [result.disposition for result in results].count(INSERTED) == 1
    assert workflows.value("SELECT count(*)::int4 FROM runledger.job_queue") == 1


@pytest.mark.core
def test_workers_that_claim_while_a_large_graph_is_enqueued_end_all_of_it(
    workflows: Workflows, scaled: Callable[..., int]
):
    size = scaled(ci=1_000, full=10_000)
    steps = [
        WorkflowStepEnqueue(
            str(place),
            JOB_TYPE,
            dependencies=[WorkflowStepDependencySpec(str(place - 100))] if place >= 100 else [],
        )
        for place in range(size)
    ]
    request = WorkflowRunEnqueue("test.workflow", steps=steps)
    is_over = threading.Event()

    def work(number: int) -> None:
        engine = Engine(workflows.database, f"worker-{number}")
        jobs: list[ClaimedJob] = []
        while jobs or not is_over.is_set():
            result = engine.round([success(job) for job in jobs], claim=200)
            outcomes = zip(jobs, result.successes, strict=True)
            jobs = [job for job, outcome in outcomes if outcome.verdict == "BUSY"]
            jobs += result.claimed

    with ThreadPoolExecutor(4) as workers:
        working = [workers.submit(work, number) for number in range(4)]
        try:
            # What a worker could see of it before its end it would claim, and the run would hang.
            run_id = enqueue_workflow_run(workflows.pool, request).id
            deadline = time.monotonic() + 200
            while workflows.status(run_id) == "RUNNING":
                assert time.monotonic() < deadline, workflows.steps(run_id)
                time.sleep(0.02)
        finally:
            is_over.set()
        for one in working:
            one.result()

    assert workflows.status(run_id) == "SUCCEEDED"
    assert workflows.value("SELECT count(*)::int4 FROM runledger.job_queue") == size
    workflows.look.execute("ANALYZE")


def test_run_that_can_never_be_seen_is_told_so(workflows: Workflows):
    # The winner of each look is gone before the next one: here a trigger of the host keeps it out.
    workflows.look.execute(
        "CREATE FUNCTION public.suppress() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER suppress BEFORE INSERT ON runledger.workflow_runs"
        " FOR EACH ROW EXECUTE FUNCTION public.suppress()"
    )

    with pytest.raises(QueryError) as refused:
        enqueue_workflow_run(workflows.pool, REQUEST)

    assert (refused.value.code, refused.value.is_transient) == ("workflow.already_enqueued", True)
