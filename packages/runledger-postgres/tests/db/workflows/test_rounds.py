"""Rounds of workers that end steps: what they store, release and claim in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from runledger_core import JobEnqueue, Scope
from runledger_postgres import enqueue_job
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    ClaimedJob,
    SuccessEntry,
    WriteVerdict,
    _misses,
    cancel_job,
    heartbeat_jobs,
    run_worker_round,
)
from runledger_test_support import expire_lease

from .conftest import JOB_TYPE, Workflows
from .engine import (
    Engine,
    counted_statements,
    dead_letter,
    held,
    retry,
    success,
    until_waiting,
)

STORED, REPEATED, BUSY = WriteVerdict.STORED, WriteVerdict.REPEATED, WriteVerdict.BUSY
MISMATCH = WriteVerdict.LEASE_OWNER_MISMATCH
PAIR = {"a": [], "b": ["a"]}
JOIN = {"a": [], "b": [], "join": ["a", "b"]}
RUNS = """
SELECT array_agg(t.line ORDER BY t.line) FROM (
    SELECT s.ctid::text || s::text AS line FROM runledger.workflow_steps s
    UNION ALL SELECT w.ctid::text || w::text FROM runledger.workflow_runs w
    UNION ALL SELECT q.ctid::text || q::text FROM runledger.job_queue q
) t
"""
DAMAGE = """
UPDATE runledger.workflow_steps SET dependency_count_pending = 0
WHERE workflow_run_id = %s AND step_key = 'b'
"""
REPAIR = DAMAGE.replace("= 0", "= 1")


@pytest.fixture
def engine(workflows: Workflows) -> Iterator[Engine]:
    """A worker's connection; no round may leave it in a transaction."""
    engine = Engine(workflows.database)
    yield engine
    assert engine.connection.info.transaction_status.name == "IDLE"


def by_key(workflows: Workflows, jobs: list[ClaimedJob]) -> dict[str, ClaimedJob]:
    return {workflows.key_of(job.id): job for job in jobs}


def jobs_of_runs(engine: Engine) -> dict[UUID | None, ClaimedJob]:
    return {job.workflow_run_id: job for job in engine.claim()}


@pytest.mark.core
def test_what_a_round_releases_it_claims_in_the_same_commit(workflows: Workflows, engine):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"], "c": ["a"]})
    (job,) = engine.claim()

    result = engine.round([success(job)], claim=10)

    assert [outcome.verdict for outcome in result.successes] == [STORED]
    assert [workflows.key_of(job.id) for job in result.claimed] == ["b", "c"]
    assert [job.workflow_run_id for job in result.claimed] == [run_id] * 2


def test_jobs_that_are_no_workflows_take_one_trip_and_do_not_look_at_runs(
    workflows: Workflows, engine, monkeypatch
):
    enqueue_job(workflows.pool, JobEnqueue(JOB_TYPE, {}))
    (job,) = engine.claim()

    with counted_statements(monkeypatch) as sent:
        run_worker_round(engine.connection, successes=[success(job)])

    assert [words.split()[0] for words in sent] == ["BEGIN", "WITH", "COMMIT"]


def test_round_in_workflows_without_outcomes_is_one_trip(workflows: Workflows, engine, monkeypatch):
    with counted_statements(monkeypatch) as sent:
        run_worker_round(engine.connection, in_workflows=True)

    assert sent == []


def test_both_prerequisites_of_a_join_in_one_round_release_it_once(workflows: Workflows, engine):
    run_id = workflows.enqueue_jobs(JOIN)

    result = engine.round([success(job) for job in engine.claim()], claim=10)

    assert [workflows.key_of(job.id) for job in result.claimed] == ["join"]
    assert workflows.steps(run_id) == {"a": "SUCCEEDED", "b": "SUCCEEDED", "join": "ENQUEUED"}


def test_success_and_dead_letter_in_one_round_doom_their_join(workflows: Workflows, engine):
    run_id = workflows.enqueue_jobs(JOIN)
    jobs = by_key(workflows, engine.claim())

    result = engine.round([success(jobs["a"])], [dead_letter(jobs["b"])])

    assert [result.successes[0].verdict, result.failures[0].verdict] == [STORED, STORED]
    assert workflows.steps(run_id) == {"a": "SUCCEEDED", "b": "FAILED", "join": "CANCELED"}
    assert workflows.status(run_id) == "COMPLETED_WITH_ERRORS"


def test_retry_in_a_round_changes_no_step(workflows: Workflows, engine):
    workflows.enqueue_jobs(PAIR)
    (job,) = engine.claim()
    steps = "SELECT array_agg(ctid::text ORDER BY ctid) FROM runledger.workflow_steps"
    before = workflows.value(steps)

    result = engine.round(failures=[retry(job)])

    assert result.failures[0].verdict is STORED
    assert workflows.value(steps) == before


def test_round_that_knows_nothing_of_workflows_leaves_their_jobs_busy(workflows: Workflows, engine):
    enqueue_job(workflows.pool, JobEnqueue(JOB_TYPE, {}))
    run_id = workflows.enqueue_jobs(PAIR)
    jobs = jobs_of_runs(engine)

    result = run_worker_round(
        engine.connection, successes=[success(jobs[run_id]), success(jobs[None])]
    )

    assert [outcome.verdict for outcome in result.successes] == [BUSY, STORED]
    assert workflows.steps(run_id)["a"] == "ENQUEUED"


@pytest.mark.core
def test_run_that_a_host_holds_costs_only_its_own_outcomes(workflows: Workflows, engine):
    enqueue_job(workflows.pool, JobEnqueue(JOB_TYPE, {}))
    held_run, other_run = (workflows.enqueue_jobs(PAIR) for _ in range(2))
    jobs = jobs_of_runs(engine)
    entries = [success(jobs[run_id]) for run_id in (held_run, None, other_run)]

    with held(workflows, held_run):
        result = engine.round(entries, claim=10)
        beats = heartbeat_jobs(engine.connection, [jobs[held_run].lease], lease_ttl_seconds=60)
    later = engine.round(entries[:1], claim=10)

    assert [outcome.verdict for outcome in result.successes] == [BUSY, STORED, STORED]
    assert [job.workflow_run_id for job in result.claimed] == [other_run]
    assert beats == ["RENEWED"]
    assert later.successes[0].verdict is STORED
    assert [job.workflow_run_id for job in later.claimed] == [held_run]


@pytest.mark.parametrize("make", [success, dead_letter, retry])
def test_waiting_round_gets_the_run_when_its_holder_ends(workflows: Workflows, engine, make):
    first, second = (workflows.enqueue_jobs(PAIR) for _ in range(2))
    jobs = jobs_of_runs(engine)
    entries = [make(jobs[run_id]) for run_id in (first, second)]
    is_success = isinstance(entries[0], SuccessEntry)

    with held(workflows, first) as host, ThreadPoolExecutor(1) as background:
        outcomes = (entries, []) if is_success else ([], entries)
        waiting = background.submit(engine.waiting_round, *outcomes)
        until_waiting(workflows)
        host.rollback()
        result = waiting.result()

    stored = [outcome.verdict for outcome in (*result.successes, *result.failures)]
    assert stored == [STORED, STORED]


def test_waiting_round_gives_up_and_leaves_all_busy(workflows: Workflows, engine):
    first, second = (workflows.enqueue_jobs(PAIR) for _ in range(2))
    jobs = jobs_of_runs(engine)

    with held(workflows, first):
        result = engine.waiting_round(
            [success(jobs[first])], [dead_letter(jobs[second])], wait_ms=20
        )

    assert [result.successes[0].verdict, result.failures[0].verdict] == [BUSY, BUSY]
    assert [workflows.steps(run_id)["a"] for run_id in (first, second)] == ["ENQUEUED"] * 2


@pytest.mark.core
def test_round_that_is_repeated_after_a_lost_reply_counts_once(workflows: Workflows, engine):
    run_id = workflows.enqueue_jobs(JOIN | {"other": [], "strict": ["other"]})
    jobs = by_key(workflows, engine.claim())
    successes, failures = [success(jobs["a"], 1)], [dead_letter(jobs["other"])]
    engine.round(successes, failures)
    before = workflows.value(RUNS)

    again = Engine(workflows.database).round(successes, failures)

    assert [again.successes[0].verdict, again.failures[0].verdict] == [REPEATED, REPEATED]
    assert workflows.value(RUNS) == before
    assert workflows.steps(run_id)["join"] == "BLOCKED"


def test_entries_of_a_round_are_judged_one_by_one(workflows: Workflows, engine):
    runs = [workflows.enqueue_jobs(PAIR) for _ in range(3)]
    jobs = jobs_of_runs(engine)
    canceled, expired, live = (jobs[run_id] for run_id in runs)
    cancel_job(workflows.pool, canceled.id, scope=Scope.ADMIN)
    expire_lease(workflows.pool, expired.id)

    result = engine.round([success(canceled), success(expired), success(live)])

    assert [outcome.verdict for outcome in result.successes] == [MISMATCH, MISMATCH, STORED]
    assert [workflows.steps(run_id)["b"] for run_id in runs] == ["CANCELED", "BLOCKED", "ENQUEUED"]


def test_run_that_contradicts_itself_refuses_the_round_and_spares_the_others_apart(
    workflows: Workflows, engine
):
    good, bad = (workflows.enqueue_jobs(PAIR) for _ in range(2))
    jobs = jobs_of_runs(engine)
    workflows.look.execute(DAMAGE, [bad])
    before = workflows.value(RUNS)

    with pytest.raises(QueryError) as refused:
        engine.round([success(jobs[good]), success(jobs[bad])], claim=10)
    after = workflows.value(RUNS)
    apart = engine.round([success(jobs[good])], claim=10)
    with pytest.raises(QueryError) as refused_apart:
        engine.round([success(jobs[bad])])
    workflows.look.execute(REPAIR, [bad])
    repaired = engine.round([success(jobs[bad])])

    assert refused.value.code == refused_apart.value.code == "workflow.internal_state"
    assert not refused.value.is_transient
    assert after == before
    assert [job.workflow_run_id for job in apart.claimed] == [good]
    assert repaired.successes[0].verdict is STORED


def test_loss_of_the_connection_after_the_commit_hides_nothing_that_was_stored(
    workflows: Workflows, engine, monkeypatch
):
    run_id = workflows.enqueue_jobs(PAIR)
    (job,) = engine.claim()
    lost_run = workflows.enqueue_jobs(PAIR)
    (lost,) = engine.claim()
    expire_lease(workflows.pool, lost.id)

    def judge(db, misses):
        raise QueryError("db.unavailable", "gone")

    monkeypatch.setattr(_misses, "judge_misses", judge)
    monkeypatch.setattr(QueryError, "is_transient", True)
    result = engine.round([success(job), success(lost)], claim=1)

    assert [outcome.verdict for outcome in result.successes] == [STORED, BUSY]
    assert [claimed.workflow_run_id for claimed in result.claimed] == [run_id]
    assert workflows.steps(lost_run)["a"] == "ENQUEUED"
