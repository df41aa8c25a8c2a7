"""Ends of steps beside each other and beside other writers: none is lost, none deadlocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest

from runledger_core import JobCompletion, JobFailure, Scope
from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowRunEnqueue,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
)
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    ClaimedJob,
    cancel_job,
    cancel_jobs,
    complete_job_failure,
    complete_job_success,
    heartbeat_job,
    reap_expired_leases,
)
from runledger_test_support import expire_lease

from .conftest import JOB_TYPE, Workflows
from .engine import Engine, dead_letter, held, success, until_waiting

ADMIN = Scope.ADMIN
PAIR = {"a": [], "b": ["a"]}
JOIN = {"a": [], "b": [], "join": ["a", "b"]}
TERMINAL = JobFailure.terminal("test.failed", "no")
JOBS_OF = "SELECT count(*)::int4 FROM runledger.job_queue WHERE workflow_run_id = %s"

End = Callable[[Any, ClaimedJob], object]
ENDS: dict[str, End] = {
    "success": lambda db, job: complete_job_success(db, job.lease, JobCompletion(1)),
    "failure": lambda db, job: complete_job_failure(db, job.lease, TERMINAL),
    "cancel": lambda db, job: cancel_job(db, job.id, scope=ADMIN),
}
every_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@every_end
def test_end_waits_for_the_run_then_releases_what_waits(workflows: Workflows, end):
    run_id = workflows.enqueue_jobs({"a": {}, "b": {"a": "terminal"}})
    job = workflows.claim()["a"]

    with held(workflows, run_id) as host, ThreadPoolExecutor(1) as background:
        waiting = background.submit(end, workflows.pool, job)
        until_waiting(workflows)
        # It holds nothing yet: whoever has the job goes on with it.
        heartbeat_job(workflows.pool, job.lease, lease_ttl_seconds=60)
        host.rollback()
        waiting.result()

    assert workflows.steps(run_id)["b"] == "ENQUEUED"


@every_end
def test_end_that_waited_reads_what_the_holder_has_changed(workflows: Workflows, end):
    # What the holder adds while the end waits is behind the step that ends.
    run_id = workflows.enqueue_jobs({"a": {}, "b": {"a": "terminal"}})
    job = workflows.claim()["a"]

    with held(workflows, run_id) as host, ThreadPoolExecutor(1) as background:
        waiting = background.submit(end, workflows.pool, job)
        until_waiting(workflows)
        host.execute("""
            WITH step AS (
                INSERT INTO runledger.workflow_steps (
                    workflow_run_id, step_key, job_type, priority, max_attempts, timeout_seconds,
                    stage, payload, dependency_count_total, dependency_count_pending
                )
                SELECT workflow_run_id, 'late', job_type, priority, max_attempts, timeout_seconds,
                    stage, payload, 1, 1
                FROM runledger.workflow_steps WHERE step_key = 'b'
                RETURNING id, workflow_run_id
            ), edge AS (
                INSERT INTO runledger.workflow_step_dependencies (
                    workflow_run_id, prerequisite_step_id, dependent_step_id
                )
                SELECT a.workflow_run_id, a.id, step.id
                FROM step, runledger.workflow_steps a WHERE a.step_key = 'a'
            )
            UPDATE runledger.workflow_runs SET steps_open = steps_open + 1
        """)
        host.commit()
        waiting.result()

    assert workflows.steps(run_id)["late"] == "ENQUEUED"


@every_end
def test_run_that_stays_locked_ends_the_wait_and_changes_nothing(workflows: Workflows, end):
    run_id = workflows.enqueue_jobs(PAIR)
    job = workflows.claim()["a"]

    with held(workflows, run_id), closing(workflows.database.connect()) as connection:
        connection.execute("SET lock_timeout = '30ms'")
        with pytest.raises(QueryError) as refused:
            end(connection, job)
        kept = connection.execute("SHOW lock_timeout").fetchone()
        connection.commit()

    assert (refused.value.code, refused.value.sqlstate) == ("db.lock_timeout", "55P03")
    assert kept == ("30ms",)
    assert workflows.value("SELECT worker_id FROM runledger.job_queue") == "worker"
    assert workflows.steps(run_id) == {"a": "ENQUEUED", "b": "BLOCKED"}


@pytest.mark.core
@pytest.mark.parametrize("end", ENDS)
def test_last_two_prerequisites_that_end_together_release_their_join_once(
    workflows: Workflows, end
):
    run_id = workflows.enqueue_jobs({"a": {}, "b": {}, "join": {"a": "terminal", "b": "terminal"}})
    jobs = workflows.claim()

    with closing(workflows.database.connect()) as one, ThreadPoolExecutor(1) as background:
        ENDS[end](one, jobs["a"])
        other = background.submit(ENDS["success"], workflows.pool, jobs["b"])
        until_waiting(workflows)
        one.commit()
        other.result()

    assert workflows.steps(run_id)["join"] == "ENQUEUED"
    assert workflows.value(JOBS_OF, run_id) == 3


@pytest.mark.core
def test_shared_dependents_are_decremented_once_by_each_prerequisite(workflows: Workflows):
    edges = {"a": [], "b": []} | {f"shared-{number:02}": ["a", "b"] for number in range(16)}
    runs = [workflows.enqueue_jobs(edges) for _ in range(4)]
    jobs = Engine(workflows.database).claim()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda job: ENDS["success"](workflows.pool, job), jobs))

    for run_id in runs:
        assert set(workflows.steps(run_id).values()) == {"SUCCEEDED", "ENQUEUED"}
        assert workflows.value(JOBS_OF, run_id) == 18


def two_runs(workflows: Workflows) -> tuple[list[UUID], list[ClaimedJob]]:
    runs = [workflows.enqueue_jobs(JOIN) for _ in range(2)]
    return runs, Engine(workflows.database).claim()


@pytest.mark.parametrize("make", [success, dead_letter])
def test_rounds_in_opposite_orders_neither_wait_nor_deadlock(workflows: Workflows, make):
    runs, jobs = two_runs(workflows)
    # Each worker has one prerequisite in each run.
    mine, theirs = jobs[::2], jobs[1::2][::-1]
    engines = [Engine(workflows.database), Engine(workflows.database)]

    def store(engine: Engine, jobs: list[ClaimedJob]) -> None:
        left = [make(job) for job in jobs]
        while left:
            outcomes = (left, []) if make is success else ([], left)
            result = engine.round(*outcomes)
            found = [*result.successes, *result.failures]
            left = [e for e, o in zip(left, found, strict=True) if o.verdict == "BUSY"]

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(store, engines, [mine, theirs]))

    joined = "ENQUEUED" if make is success else "CANCELED"
    assert [workflows.steps(run_id)["join"] for run_id in runs] == [joined] * 2


def test_operators_batches_in_opposite_orders_do_not_deadlock(workflows: Workflows):
    runs, jobs = two_runs(workflows)
    mine, theirs = [job.id for job in jobs[::2]], [job.id for job in jobs[1::2]][::-1]

    with held(workflows, runs[1]) as host, ThreadPoolExecutor(2) as background:
        # Both are in the middle of the runs when the host lets go of the second.
        forward = background.submit(cancel_jobs, workflows.pool, mine, scope=ADMIN)
        until_waiting(workflows, 1)
        backward = background.submit(cancel_jobs, workflows.pool, theirs, scope=ADMIN)
        until_waiting(workflows, 2)
        host.rollback()
        results = [forward.result(), backward.result()]

    assert results == [["DONE"] * 2] * 2
    assert [workflows.status(run_id) for run_id in runs] == ["COMPLETED_WITH_ERRORS"] * 2


def test_reaper_gets_past_a_wide_run_that_a_host_holds(workflows: Workflows):
    held_run = workflows.enqueue_jobs({str(number): [] for number in range(5)})
    first = Engine(workflows.database).claim()
    other_run = workflows.enqueue_jobs(PAIR)
    second = Engine(workflows.database).claim()
    for job in (*first, *second):
        expire_lease(workflows.pool, job.id)

    with held(workflows, held_run):
        beside = reap_expired_leases(workflows.pool, limit=3, retry_delay_ms=1).reaped
    later = reap_expired_leases(workflows.pool, limit=3, retry_delay_ms=1).reaped

    assert [job.lease.job_id for job in beside] == [job.id for job in second]
    assert workflows.steps(other_run)["a"] == "ENQUEUED"
    assert len(later) == 3


def test_reaper_defers_a_run_that_contradicts_itself_and_ends_the_others(workflows: Workflows):
    bad, good = (workflows.enqueue_jobs(PAIR) for _ in range(2))
    workflows.look.execute("UPDATE runledger.job_queue SET max_attempts = 1")
    for job in Engine(workflows.database).claim():
        expire_lease(workflows.pool, job.id)
    damage = "UPDATE runledger.workflow_runs SET steps_open = %s WHERE id = %s"
    workflows.look.execute(damage, [0, bad])

    result = reap_expired_leases(workflows.pool, limit=10, retry_delay_ms=60_000)
    workflows.look.execute(damage, [2, bad])

    assert [error.error.code for error in result.deferred] == ["workflow.internal_state"]
    assert len(result.reaped) == 1
    assert [workflows.steps(run_id)["a"] for run_id in (bad, good)] == ["ENQUEUED", "FAILED"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_many_workers_bring_dense_graphs_to_their_end(workflows: Workflows, seed):
    chance = random.Random(seed)
    modes = list(WorkflowDependencyReleaseMode)
    steps = [
        WorkflowStepEnqueue(
            str(place),
            JOB_TYPE,
            dependencies=[
                WorkflowStepDependencySpec(str(key), chance.choice(modes))
                for key in chance.sample(range(place), min(place, chance.randrange(4)))
            ],
        )
        for place in range(60)
    ]
    runs = [workflows.enqueue(WorkflowRunEnqueue("test.workflow", steps=steps)) for _ in range(4)]

    def work(number: int) -> None:
        engine, chance = Engine(workflows.database, f"worker-{number}"), random.Random(number)
        jobs = engine.claim(8)
        while any(workflows_open(engine)):
            ends = [(job, chance.random() < 0.8) for job in jobs]
            successes = [success(job) for job, is_good in ends if is_good]
            failures = [dead_letter(job) for job, is_good in ends if not is_good]
            result = engine.round(successes, failures, claim=8)
            outcomes = [*result.successes, *result.failures]
            entries = [*successes, *failures]
            busy = {
                entry.lease.job_id
                for entry, outcome in zip(entries, outcomes, strict=True)
                if outcome.verdict == "BUSY"
            }
            jobs = [job for job in jobs if job.id in busy] + result.claimed

    def workflows_open(engine: Engine) -> list[Any]:
        open_runs = "SELECT id FROM runledger.workflow_runs WHERE finished_at IS NULL"
        return engine.connection.execute(open_runs).fetchall()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))

    assert {workflows.status(run_id) for run_id in runs} == {"COMPLETED_WITH_ERRORS"}
