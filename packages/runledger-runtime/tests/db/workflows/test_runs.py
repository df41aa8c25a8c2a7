"""Whole runs: a Supervisor takes each from its first step to its end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from runledger_core import JobCompletion, JobContext, JobFailure, Scope
from runledger_core.workflows import WorkflowExternalCompletion
from runledger_postgres import cancel_job
from runledger_postgres.workflows import complete_external_workflow_step
from runledger_runtime.testing import DrainDisposition, drain
from runledger_test_support import TemporaryDatabase
from runledger_test_support.ageing import expire_lease, make_due
from runledger_test_support.drain import drain as drain_of_test_support

from .conftest import ASLEEP_MS, Runs

# A sleeping worker holds a shared advisory lock for each of its types.
MARKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
# It looks again for a while after it fell asleep; then its connection rests.
IS_AT_REST = """
SELECT bool_and(state = 'idle' AND state_change < clock_timestamp() - interval '1 second')
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'runledger pump'
"""
RESULT = "SELECT result FROM runledger.workflow_runs WHERE id = %s"
JOB_STATUS = "SELECT status::text FROM runledger.job_queue WHERE id = %s"
JOB_ERROR = "SELECT last_error_code FROM runledger.job_queue WHERE id = %s"
# None once it has ended.
DRAIN_ASKED_AT = """
SELECT query_start FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'runledger drain'
"""
REASON = """
SELECT status_reason FROM runledger.workflow_steps WHERE workflow_run_id = %s AND step_key = %s
"""


def refuse(_context: JobContext, _payload: Any) -> None:
    raise JobFailure.terminal("test.refused", "no")


def double(_context: JobContext, payload: Any) -> JobCompletion:
    return JobCompletion.with_output(payload["n"] * 2)


def add(context: JobContext, _payload: Any) -> JobCompletion:
    return JobCompletion.with_output(sum(context.prerequisite_outputs.values()))  # pyright: ignore[reportArgumentType, reportCallIssue]  # numbers


@pytest.mark.core
def test_diamond_runs_to_the_result_of_its_join(runs: Runs) -> None:
    def crawl(_context: JobContext, _payload: Any) -> JobCompletion:
        return JobCompletion.with_output(1)

    runs.catalog.job("jobs.crawl", crawl).job("jobs.double", double).job("jobs.add", add)
    runs.start()
    dag = runs.dag().job("crawl", "jobs.crawl", {})
    for number in (1, 2, 3):
        dag.job(f"double-{number}", "jobs.double", {"n": number}, after_success=["crawl"])
    dag.job("sum", "jobs.add", {}, after_success=["double-1", "double-2", "double-3"])

    run_id = runs.enqueue(dag.result_step("sum"))

    assert runs.ended(run_id) == "SUCCEEDED"
    assert runs.value(RESULT, run_id) == 12
    assert set(runs.steps(run_id).values()) == {"SUCCEEDED"}


@pytest.mark.core
def test_failed_branch_dooms_what_needs_it_and_the_cleanup_runs(runs: Runs) -> None:
    cleaned: list[Any] = []

    def clean(context: JobContext, _payload: Any) -> None:
        cleaned.append(dict(context.prerequisite_outputs))

    runs.catalog.job("jobs.double", double).job("jobs.refuse", refuse).job("jobs.clean", clean)
    runs.start()
    dag = (
        runs.dag()
        .job("good", "jobs.double", {"n": 1})
        .job("bad", "jobs.refuse", {})
        .job("join", "jobs.double", {"n": 2}, after_success=["good", "bad"])
        .job("behind", "jobs.double", {"n": 3}, after_success=["join"])
        .job("cleanup", "jobs.clean", {}, after_terminal=["good", "bad", "behind"])
    )

    run_id = runs.enqueue(dag.result_step("good"))

    assert runs.ended(run_id) == "COMPLETED_WITH_ERRORS"
    assert runs.steps(run_id) == {
        "good": "SUCCEEDED",
        "bad": "FAILED",
        "join": "CANCELED",
        "behind": "CANCELED",
        "cleanup": "SUCCEEDED",
    }
    assert runs.value(REASON, run_id, "join") == "workflow.dependency_unsatisfied"
    assert cleaned == [{"good": 2}]
    assert runs.value(RESULT, run_id) is None


def test_step_behind_a_gate_is_woken_and_not_polled_for(runs: Runs) -> None:
    seen: list[Any] = []

    def publish(context: JobContext, _payload: Any) -> JobCompletion:
        seen.append(dict(context.prerequisite_outputs))
        return JobCompletion.with_output("published")

    runs.catalog.job("jobs.double", double).job("jobs.publish", publish)
    runs.start(poll_interval_ms=ASLEEP_MS)
    dag = runs.dag().job("draft", "jobs.double", {"n": 4}).external("approval")
    dag.after_success("approval", ["draft"])
    dag.job("publish", "jobs.publish", {}, after_success=["draft", "approval"])
    run_id = runs.enqueue(dag.result_step("publish"))
    runs.wait_until(lambda: runs.steps(run_id)["approval"] == "WAITING_FOR_EXTERNAL")
    # RUNNING, since a step is blocked behind the gate.
    assert runs.status(run_id) == "RUNNING"
    runs.wait_until(lambda: runs.value(MARKS) == 2 and runs.value(IS_AT_REST))

    complete_external_workflow_step(
        runs.pool,
        run_id,
        "approval",
        WorkflowExternalCompletion.succeeded({"by": "ops"}),
        scope=Scope.GLOBAL,
    )

    assert runs.ended(run_id) == "SUCCEEDED"
    assert seen == [{"draft": 8, "approval": {"by": "ops"}}]
    assert runs.value(RESULT, run_id) == "published"


@pytest.mark.core
def test_released_step_is_claimed_with_the_commit_that_releases_it(runs: Runs) -> None:
    order: list[str] = []

    def note(context: JobContext, _payload: Any) -> None:
        order.append(context.step_key or "")

    runs.catalog.job("jobs.note", note)
    runs.start(poll_interval_ms=ASLEEP_MS)
    dag = runs.dag().job("step-00", "jobs.note", {})
    for number in range(1, 20):
        dag.job(f"step-{number:02}", "jobs.note", {}, after_success=[f"step-{number - 1:02}"])

    run_id = runs.enqueue(dag)

    assert runs.ended(run_id) == "SUCCEEDED"
    assert order == [f"step-{number:02}" for number in range(20)]


def test_retries_of_a_step_keep_its_job_and_hold_up_what_waits(runs: Runs) -> None:
    jobs: list[Any] = []
    statuses: list[str] = []

    def flaky(context: JobContext, _payload: Any) -> JobCompletion:
        jobs.append((context.job_id, context.attempt))
        statuses.append(runs.steps(run_id)["join"])
        if context.attempt < 3:
            raise JobFailure.retryable("test.again", "not yet")
        return JobCompletion.with_output(5)

    runs.catalog.job("jobs.flaky", flaky, max_attempts=3).job("jobs.add", add)
    runs.catalog.retry_delay_override("jobs.flaky", "test.again", 1)
    runs.sync()
    dag = runs.dag().job("flaky", "jobs.flaky", {})
    run_id = runs.enqueue(
        dag.job("join", "jobs.add", {}, after_success=["flaky"]).result_step("join")
    )
    runs.start()

    assert runs.ended(run_id) == "SUCCEEDED"
    job_id = runs.job_of(run_id, "flaky")
    assert jobs == [(job_id, 1), (job_id, 2), (job_id, 3)]
    assert statuses == ["BLOCKED"] * 3
    assert runs.value(RESULT, run_id) == 5


def test_step_whose_attempts_are_used_up_fails_and_the_run_ends(runs: Runs) -> None:
    told: list[Any] = []

    class Flaky:
        job_type = "jobs.flaky"

        def execute(self, _context: JobContext, _payload: Any) -> None:
            raise JobFailure.retryable("test.again", "not yet")

        def on_dead_letter(self, context: JobContext, _payload: Any, info: Any) -> None:
            told.append((context.job_id, info.failure.code, runs.status(run_id)))

    runs.catalog.job("jobs.flaky", Flaky(), max_attempts=2).job("jobs.add", add)
    runs.catalog.retry_delay_override("jobs.flaky", "test.again", 1)
    runs.sync()
    dag = runs.dag().job("flaky", "jobs.flaky", {})
    run_id = runs.enqueue(dag.job("join", "jobs.add", {}, after_success=["flaky"]))
    runs.start()

    assert runs.ended(run_id) == "COMPLETED_WITH_ERRORS"
    assert runs.steps(run_id) == {"flaky": "FAILED", "join": "CANCELED"}
    runs.wait_until(lambda: bool(told))
    # The hook comes after the commit that ended job, step and run.
    assert told == [(runs.job_of(run_id, "flaky"), "test.again", "COMPLETED_WITH_ERRORS")]


@pytest.mark.core
def test_reaped_step_is_run_again_and_the_late_result_counts_for_nothing(runs: Runs) -> None:
    entered = threading.Semaphore(0)
    let_go = threading.Event()

    def slow(context: JobContext, _payload: Any) -> JobCompletion:
        entered.release()
        if context.attempt == 1:
            let_go.wait(30)
            return JobCompletion.with_output("late")
        return JobCompletion.with_output("second")

    runs.catalog.job("jobs.slow", slow, max_attempts=2).job(
        "jobs.collect",
        lambda context, _payload: JobCompletion.with_output(dict(context.prerequisite_outputs)),
    )
    # No heartbeat comes before the test is over.
    runs.start(lease_ttl_seconds=600, reaper_interval_seconds=1)
    dag = runs.dag().job("slow", "jobs.slow", {})
    dag.job("collect", "jobs.collect", {}, after_success=["slow"]).result_step("collect")
    run_id = runs.enqueue(dag)
    assert entered.acquire(timeout=30)
    job_id = runs.job_of(run_id, "slow")
    expire_lease(runs.pool, job_id)
    runs.wait_until(lambda: runs.value(JOB_STATUS, job_id) == "PENDING")

    let_go.set()
    make_due(runs.pool, job_id)

    assert runs.ended(run_id) == "SUCCEEDED"
    assert runs.value(RESULT, run_id) == {"slow": "second"}
    outcomes = """
    SELECT array_agg(outcome::text ORDER BY claim_number) FROM runledger.job_attempts
    WHERE job_id = %s
    """
    assert runs.value(outcomes, job_id) == ["LEASE_EXPIRED", "SUCCEEDED"]


def test_step_whose_last_lease_is_reaped_fails_and_dooms_what_needs_it(runs: Runs) -> None:
    entered, let_go = threading.Event(), threading.Event()

    def hang(_context: JobContext, _payload: Any) -> None:
        entered.set()
        let_go.wait(30)

    runs.catalog.job("jobs.hang", hang, max_attempts=1).job("jobs.add", add)
    runs.start(lease_ttl_seconds=600, reaper_interval_seconds=1)
    dag = runs.dag().job("hang", "jobs.hang", {})
    dag.job("needs", "jobs.add", {}, after_success=["hang"])
    run_id = runs.enqueue(dag.job("cleanup", "jobs.add", {}, after_terminal=["hang"]))
    assert entered.wait(30)

    expire_lease(runs.pool, runs.job_of(run_id, "hang"))

    assert runs.ended(run_id) == "COMPLETED_WITH_ERRORS"
    let_go.set()
    assert runs.steps(run_id) == {"hang": "FAILED", "needs": "CANCELED", "cleanup": "SUCCEEDED"}


@pytest.mark.core
def test_steps_that_are_coroutines_run_together_and_hand_on_their_outputs(runs: Runs) -> None:
    together = threading.Barrier(2)

    async def fetch(_context: JobContext, payload: Any) -> JobCompletion:
        await asyncio.to_thread(together.wait, 30)
        return JobCompletion.with_output(payload["n"])

    async def total(context: JobContext, _payload: Any) -> JobCompletion:
        outputs: Any = await asyncio.to_thread(lambda: context.prerequisite_outputs)
        return JobCompletion.with_output(sum(outputs.values()))

    runs.catalog.job("jobs.fetch", fetch).job("jobs.total", total)
    runs.start()
    dag = runs.dag().job("one", "jobs.fetch", {"n": 1}).job("two", "jobs.fetch", {"n": 2})
    dag.job("total", "jobs.total", {}, after_success=["one", "two"]).result_step("total")

    run_id = runs.enqueue(dag)

    assert runs.ended(run_id) == "SUCCEEDED"
    assert runs.value(RESULT, run_id) == 3


def test_job_of_a_step_that_is_cancelled_ends_its_step_and_the_run_goes_on(runs: Runs) -> None:
    started, told = threading.Event(), threading.Event()

    def endless(context: JobContext, _payload: Any) -> None:
        started.set()
        if context.wait(30):
            told.set()

    runs.catalog.job("jobs.endless", endless).job("jobs.double", double)
    # The next beat of its own would come after 200 seconds.
    runs.start(lease_ttl_seconds=600)
    dag = runs.dag().job("endless", "jobs.endless", {})
    dag.job("needs", "jobs.double", {"n": 1}, after_success=["endless"])
    dag.job("cleanup", "jobs.double", {"n": 2}, after_terminal=["endless"])
    run_id = runs.enqueue(dag)
    assert started.wait(30)

    cancel_job(runs.pool, runs.job_of(run_id, "endless"), scope=Scope.ADMIN, reason="test")

    assert told.wait(30)
    assert runs.ended(run_id) == "COMPLETED_WITH_ERRORS"
    assert runs.steps(run_id) == {
        "endless": "CANCELED",
        "needs": "CANCELED",
        "cleanup": "SUCCEEDED",
    }


def test_many_runs_at_once_all_end_and_every_step_runs_once(runs: Runs) -> None:
    ran: Counter[tuple[Any, Any]] = Counter()
    lock = threading.Lock()

    def count(context: JobContext, _payload: Any) -> None:
        with lock:
            ran[context.workflow_run_id, context.job_id] += 1

    runs.catalog.job("jobs.count", count)
    runs.start(max_global_concurrency=8)
    runs.start(max_global_concurrency=8)
    run_ids: list[Any] = []
    for _ in range(20):
        dag = runs.dag().job("first", "jobs.count", {})
        middle = [f"middle-{number}" for number in range(4)]
        for key in middle:
            dag.job(key, "jobs.count", {}, after_success=["first"])
        run_ids.append(runs.enqueue(dag.job("last", "jobs.count", {}, after_success=middle)))

    assert {runs.ended(run_id) for run_id in run_ids} == {"SUCCEEDED"}
    assert Counter(run_id for run_id, _ in ran) == dict.fromkeys(run_ids, 6)
    assert set(ran.values()) == {1}


@pytest.mark.core
def test_drain_runs_a_whole_run_in_the_calling_thread(runs: Runs) -> None:
    threads: set[int] = set()

    def note(context: JobContext, payload: Any) -> JobCompletion:
        threads.add(threading.get_ident())
        return double(context, payload)

    runs.catalog.job("jobs.double", note).job("jobs.refuse", refuse).job("jobs.add", add)
    runs.sync()
    dag = runs.dag().job("one", "jobs.double", {"n": 1}).job("two", "jobs.double", {"n": 2})
    dag.job("bad", "jobs.refuse", {}, after_success=["one"])
    dag.job("needs", "jobs.double", {"n": 9}, after_success=["bad"])
    dag.job("sum", "jobs.add", {}, after_terminal=["one", "two", "needs"])
    run_id = runs.enqueue(dag)

    report = drain(runs.pool, runs.catalog)

    assert threads == {threading.get_ident()}
    assert (report.succeeded, report.dead_lettered) == (3, 1)
    assert [attempt.job_type for attempt in report.attempts][-1] == "jobs.add"
    assert runs.status(run_id) == "COMPLETED_WITH_ERRORS"
    output = "SELECT output FROM runledger.job_queue WHERE id = %s"
    assert runs.value(output, runs.job_of(run_id, "sum")) == 6


def test_drain_stops_at_a_gate_and_goes_on_behind_it(runs: Runs) -> None:
    runs.catalog.job("jobs.double", double)
    runs.sync()
    dag = runs.dag().external("gate").job("step", "jobs.double", {"n": 1}, after_success=["gate"])
    run_id = runs.enqueue(dag)

    before = drain(runs.pool, runs.catalog)
    complete_external_workflow_step(
        runs.pool, run_id, "gate", WorkflowExternalCompletion.succeeded(), scope=Scope.GLOBAL
    )
    after = drain(runs.pool, runs.catalog)

    assert before.attempts == ()
    assert [attempt.disposition for attempt in after.attempts] == [DrainDisposition.SUCCEEDED]
    assert runs.status(run_id) == "SUCCEEDED"


def test_step_cancelled_while_a_drain_runs_it_is_refused(runs: Runs) -> None:
    def cancel_itself(context: JobContext, _payload: Any) -> None:
        cancel_job(runs.pool, context.job_id, scope=Scope.ADMIN)

    runs.catalog.job("jobs.one", cancel_itself)
    runs.sync()
    run_id = runs.enqueue(runs.dag().job("a", "jobs.one", {}))

    assert drain(runs.pool, runs.catalog).refused == 1
    assert runs.status(run_id) == "COMPLETED_WITH_ERRORS"


@pytest.mark.parametrize("is_drained", [True, False])
def test_payload_that_python_cannot_read_fails_its_step(runs: Runs, is_drained: bool) -> None:
    runs.catalog.job("jobs.double", double)
    runs.sync()
    dag = runs.dag().job("a", "jobs.double", {"n": 1})
    run_id = runs.enqueue(dag.job("b", "jobs.double", {"n": 1}, after_success=["a"]))
    digits = "9" * 5_000
    runs.value("UPDATE runledger.job_queue SET payload = %s RETURNING 1", digits)

    if is_drained:
        assert drain_of_test_support(runs.pool, runs.catalog).attempts == ()
    else:
        runs.start()

    assert runs.ended(run_id) == "COMPLETED_WITH_ERRORS"
    assert runs.steps(run_id) == {"a": "FAILED", "b": "CANCELED"}


def test_drain_waits_for_a_run_that_is_held_to_fail_the_step_that_python_cannot_read(
    runs: Runs, runledger_database: TemporaryDatabase
) -> None:
    runs.catalog.job("jobs.double", double)
    runs.sync()
    run_id = runs.enqueue(runs.dag().job("a", "jobs.double", {"n": 1}))
    runs.value("UPDATE runledger.job_queue SET payload = repeat('9', 5000)::jsonb RETURNING 1")
    holder = runledger_database.connect()
    holder.execute("SELECT FROM runledger.workflow_runs FOR UPDATE")
    draining = threading.Thread(target=drain, args=(runs.pool, runs.catalog), daemon=True)

    draining.start()
    runs.wait_until(lambda: runs.value(JOB_STATUS, runs.job_of(run_id, "a")) == "LEASED")
    for _ in range(3):
        # It ends at once if it takes the held run for an answer.
        before = runs.value(DRAIN_ASKED_AT)
        runs.wait_until(lambda before=before: not before or runs.value(DRAIN_ASKED_AT) != before)
    holder.rollback()
    draining.join(30)

    assert runs.steps(run_id) == {"a": "FAILED"}
    assert runs.value(JOB_ERROR, runs.job_of(run_id, "a")) == "job.undecodable_row"
