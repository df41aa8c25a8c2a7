"""Appends to a run: what they add, what becomes of it at once, and what a repeat answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from runledger_core import ConflictError, WorkflowExternalCompletion
from runledger_core.workflows import WorkflowDagBuilder, WorkflowStepEnqueue
from runledger_postgres._rows import EngineCursor
from runledger_postgres.wakeup import SLEEP_MARK_CLASS, WAKE_CHANNEL
from runledger_postgres.workflows import complete_external_workflow_step, enqueue_workflow_run

from ._appending import (
    ADMIN,
    OWNER,
    ROWS,
    STRANGER,
    SUCCESS,
    TERMINAL,
    append,
    close,
    finish,
    gate,
    half_ended_run,
    job,
    owned_run,
    refused,
    request,
    statuses,
)
from .conftest import JOB_TYPE, Workflows

UNSATISFIED = "workflow.dependency_unsatisfied"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RUN_OF = "SELECT workflow_run_id FROM runledger.job_queue WHERE id = %s"


@pytest.fixture
def run_id(workflows: Workflows) -> UUID:
    return half_ended_run(workflows)


@pytest.mark.core
def test_each_appended_step_begins_where_its_prerequisites_stand(workflows: Workflows, run_id):
    steps = [
        job("free"),
        job("after-good", {"good": SUCCESS}),
        job("after-bad", {"bad": TERMINAL}),
        job("needs-bad", {"bad": SUCCESS, "good": SUCCESS}),
        job("needs-doomed", {"needs-bad": SUCCESS}),
        job("after-doomed", {"needs-doomed": TERMINAL}),
        job("needs-slow", {"slow": SUCCESS, "bad": TERMINAL}),
        job("doomed-later", {"slow": TERMINAL, "bad": SUCCESS}),
        job("after-gate", {"gate": SUCCESS}),
        gate("free-gate"),
        gate("gate-after-good", {"good": TERMINAL}),
        gate("blocked-gate", {"free": SUCCESS}),
    ]

    appended = append(workflows, request(run_id, *steps))

    assert (appended.run_id, appended.disposition) == (run_id, "APPENDED")
    assert statuses(appended) == {
        "free": "ENQUEUED",
        "after-good": "ENQUEUED",
        "after-bad": "ENQUEUED",
        "needs-bad": "CANCELED",
        "needs-doomed": "CANCELED",
        "after-doomed": "ENQUEUED",
        "needs-slow": "BLOCKED",
        "doomed-later": "BLOCKED",
        "after-gate": "BLOCKED",
        "free-gate": "WAITING_FOR_EXTERNAL",
        "gate-after-good": "WAITING_FOR_EXTERNAL",
        "blocked-gate": "BLOCKED",
    }
    assert statuses(appended).items() <= workflows.steps(run_id).items()
    doomed = workflows.look.execute(
        "SELECT DISTINCT status_reason, last_error_code FROM runledger.workflow_steps"
        " WHERE status = 'CANCELED'"
    ).fetchall()
    assert doomed == [(UNSATISFIED, UNSATISFIED)]


@pytest.mark.core
def test_appended_steps_run_to_the_end_of_the_run(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": [], "last": ["gate"]}, gates=("gate",))

    append(workflows, request(run_id, job("a"), job("b", {"a": SUCCESS, "gate": SUCCESS})))

    assert workflows.status(run_id) == "RUNNING"
    assert finish(workflows, run_id) == "SUCCEEDED"
    assert workflows.steps(run_id) == dict.fromkeys(("a", "b", "gate", "last"), "SUCCEEDED")


def test_steps_are_appended_and_their_gate_closed_in_one_transaction(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": [], "last": ["gate"]}, gates=("gate",))
    connection = workflows.database.connect()
    succeeded = WorkflowExternalCompletion.succeeded()

    for end in ("rollback", "commit"):
        append(workflows, request(run_id, job("a", {"gate": SUCCESS})), db=connection)
        complete_external_workflow_step(connection, run_id, "gate", succeeded, scope=ADMIN)
        before = workflows.steps(run_id)
        getattr(connection, end)()
        assert before == {"gate": "WAITING_FOR_EXTERNAL", "last": "BLOCKED"}

    assert workflows.steps(run_id) == {"a": "ENQUEUED", "gate": "SUCCEEDED", "last": "ENQUEUED"}


def test_run_waits_on_if_only_gates_are_appended(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))

    append(workflows, request(run_id, gate("second")))
    before = workflows.status(run_id)
    append(workflows, request(run_id, gate("third", {"second": SUCCESS}), mutation_key="other"))

    assert (before, workflows.status(run_id)) == ("WAITING_FOR_EXTERNAL", "RUNNING")


def test_run_waits_again_once_the_only_appended_job_is_doomed(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": [], "bad": []}, gates=("gate",))
    workflows.fail(workflows.claim()["bad"])

    append(workflows, request(run_id, job("new", {"bad": SUCCESS})))

    assert workflows.status(run_id) == "WAITING_FOR_EXTERNAL"
    close(workflows, run_id)
    assert workflows.status(run_id) == "COMPLETED_WITH_ERRORS"


def test_edges_are_stored_as_they_are_declared(workflows: Workflows, run_id):
    append(workflows, request(run_id, job("b", {"a": SUCCESS, "slow": TERMINAL}), job("a")))

    edges = workflows.look.execute(
        "SELECT p.step_key, d.step_key, e.release_mode::text"
        " FROM runledger.workflow_step_dependencies e"
        " JOIN runledger.workflow_steps p ON p.id = e.prerequisite_step_id"
        " JOIN runledger.workflow_steps d ON d.id = e.dependent_step_id ORDER BY 1"
    ).fetchall()
    assert edges == [("a", "b", SUCCESS), ("slow", "b", TERMINAL)]


def test_settings_come_from_the_definition_unless_they_are_given(workflows: Workflows, run_id):
    workflows.look.execute(
        "UPDATE runledger.job_definitions"
        " SET max_attempts = 7, default_timeout_seconds = 70, default_priority = 7"
    )
    given = {"max_attempts": 2, "timeout_seconds": 20, "priority": -2, "stage": "scheduled"}

    append(workflows, request(run_id, job("plain"), job("given", **given), gate("second")))

    settings = workflows.look.execute(
        "SELECT s.step_key, s.max_attempts, s.timeout_seconds, s.priority, s.stage,"
        " (q.max_attempts, q.timeout_seconds, q.priority, q.stage)"
        " = (s.max_attempts, s.timeout_seconds, s.priority, s.stage)"
        " FROM runledger.workflow_steps s LEFT JOIN runledger.job_queue q ON q.id = s.job_id"
        " WHERE s.step_key IN ('plain', 'given', 'second') ORDER BY 1"
    ).fetchall()
    assert settings == [
        ("given", 2, 20, -2, "scheduled", True),
        ("plain", 7, 70, 7, "queued", True),
        ("second", None, None, None, None, None),
    ]


@pytest.mark.core
def test_json_null_payloads_survive(workflows: Workflows, run_id):
    steps = [job("due", payload=None), job("blocked", {"slow": SUCCESS}, payload=None)]

    append(workflows, request(run_id, *steps))

    payloads = workflows.look.execute(
        "SELECT s.step_key, s.payload::text, q.payload::text FROM runledger.workflow_steps s"
        " LEFT JOIN runledger.job_queue q ON q.id = s.job_id"
        " WHERE s.step_key IN ('due', 'blocked') ORDER BY 1"
    ).fetchall()
    assert payloads == [("blocked", "null", None), ("due", None, "null")]


def test_steps_belong_to_the_runs_organization_unless_they_name_another(workflows: Workflows):
    run_id = owned_run(workflows)

    append(workflows, request(run_id, job("a"), job("b", organization_id=STRANGER)))

    owners = workflows.look.execute(
        "SELECT s.step_key, s.organization_id, q.organization_id FROM runledger.workflow_steps s"
        " JOIN runledger.job_queue q ON q.id = s.job_id ORDER BY 1"
    ).fetchall()
    assert owners == [("a", OWNER, OWNER), ("b", STRANGER, STRANGER)]


def test_trace_context_comes_to_all_jobs_of_the_appended_steps(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    steps = [job("now"), job("later", {"now": SUCCESS})]

    append(workflows, request(run_id, *steps), trace_context=TRACE)
    workflows.succeed(workflows.claim()["now"])

    traces = workflows.value("SELECT array_agg(trace_context) FROM runledger.job_queue")
    assert traces == [TRACE, TRACE]


def test_jobs_are_claimed_in_the_order_of_the_request(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    keys = [f"step-{number % 7}-{number}" for number in range(50)]

    append(workflows, request(run_id, *map(job, keys)))

    assert list(workflows.claim()) == keys


def test_sleeping_workers_are_woken(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    with closing(workflows.database.connect_directly(autocommit=True)) as sleeper:
        sleeper.execute(
            "SELECT pg_advisory_lock_shared(%s, hashtext(%s))", [SLEEP_MARK_CLASS, JOB_TYPE]
        )
        sleeper.execute(f"LISTEN {WAKE_CHANNEL}".encode())

        append(workflows, request(run_id, gate("second")))
        append(workflows, request(run_id, job("new"), mutation_key="other"))

        told = [one.payload for one in sleeper.notifies(timeout=20, stop_after=1)]
    assert told == [JOB_TYPE]


def counted(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many statements a call sends, and what it returns."""
    sent: list[object] = []
    execute = EngineCursor[Any].execute

    def count(self: Any, *args: Any, **options: Any) -> Any:
        sent.append(args)
        return execute(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EngineCursor, "execute", count)
        found = call()
    return len(sent), found


def chains(count: int) -> list[WorkflowStepEnqueue]:
    """Return steps of which a third is due, a third waits for those, a third is doomed."""
    steps = [job(f"due-{number}") for number in range(count // 3)]
    steps += [job(f"waits-{number}", {f"due-{number}": SUCCESS}) for number in range(count // 3)]
    steps += [job(f"doomed-{number}", {"bad": SUCCESS}) for number in range(count // 3)]
    return steps[::-1]


@pytest.mark.parametrize("count", [270, 5_001])
def test_many_steps_take_as_many_statements_as_few_and_keep_their_order(
    workflows: Workflows, run_id, monkeypatch, count
):
    few, _ = counted(monkeypatch, lambda: append(workflows, request(run_id, *chains(3))))
    close(workflows, run_id)
    other = workflows.enqueue_jobs({"gate": [], "bad": []}, gates=("gate",))
    jobs = {workflows.value(RUN_OF, claimed.id): claimed for claimed in workflows.claim().values()}
    workflows.fail(jobs[other])
    wanted = request(other, *chains(count))

    many, appended = counted(monkeypatch, lambda: append(workflows, wanted))

    assert many == few
    assert [step.step_key for step in appended.steps] == [step.step_key for step in wanted.steps]
    stored = workflows.look.execute(
        "SELECT status::text, count(*)::int FROM runledger.workflow_steps"
        " WHERE workflow_run_id = %s AND step_key LIKE '%%-%%' GROUP BY 1 ORDER BY 1",
        [other],
    ).fetchall()
    third = count // 3
    assert stored == [("BLOCKED", third), ("CANCELED", third), ("ENQUEUED", third)]
    again = append(workflows, wanted)
    assert (again.disposition, again.steps) == ("ALREADY_APPLIED", appended.steps)


@pytest.mark.core
def test_equal_request_under_the_same_key_is_applied_once(workflows: Workflows, run_id):
    steps = [job("a", payload={"n": 1, "m": 2}), job("b", {"a": SUCCESS, "slow": TERMINAL})]
    first = append(workflows, request(run_id, *steps, mutation_metadata={"by": "one"}))
    before = workflows.value(ROWS)
    same = [job("b", {"slow": TERMINAL, "a": SUCCESS}), job("a", payload={"m": 2.0, "n": 1.0})]

    again = append(workflows, request(run_id, *same, mutation_metadata={"by": "other"}))

    assert again.disposition == "ALREADY_APPLIED"
    assert again.steps == first.steps[::-1]
    assert workflows.value(ROWS) == before


def test_repeat_tells_how_the_steps_stand_now_whatever_became_of_the_run(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    wanted = request(run_id, job("a"), job("b", {"a": SUCCESS}))
    append(workflows, wanted)
    found: list[Any] = []

    claimed = workflows.claim()["a"]
    found.append(statuses(append(workflows, wanted)))
    workflows.succeed(claimed)
    found.append(statuses(append(workflows, wanted)))
    finish(workflows, run_id)
    found.append(statuses(append(workflows, wanted)))

    assert found == [
        {"a": "RUNNING", "b": "BLOCKED"},
        {"a": "SUCCEEDED", "b": "ENQUEUED"},
        {"a": "SUCCEEDED", "b": "SUCCEEDED"},
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [job("new", payload={"n": 2})]},
        {"steps": [job("other")]},
        {"steps": [job("new"), job("more")]},
        {"steps": [job("new", organization_id=STRANGER)]},
        {"steps": [job("new", {"slow": SUCCESS})]},
        {"steps": [job("new", priority=0)]},
        {"append_window_step_key": "second"},
    ],
)
def test_other_request_under_the_same_key_conflicts(workflows: Workflows, change):
    run_id = workflows.enqueue_jobs(
        {"gate": [], "second": [], "slow": []}, gates=("gate", "second")
    )
    wanted = request(run_id)
    append(workflows, wanted)
    before = workflows.value(ROWS)

    with pytest.raises(ConflictError) as caught:
        append(workflows, replace(wanted, **change))

    assert caught.value.code == "workflow.append_conflicting_retry"
    assert "first" not in str(caught.value)
    assert workflows.value(ROWS) == before


def test_repeated_enqueue_finds_its_run_though_steps_were_added(workflows: Workflows):
    builder = WorkflowDagBuilder("test.workflow", {}).idempotency_key("key").external("gate", {})
    first = enqueue_workflow_run(workflows.pool, builder.build())
    append(workflows, request(first.id, job("a"), job("b", {"a": SUCCESS})))

    again = enqueue_workflow_run(workflows.pool, builder.build())

    assert (again.id, again.disposition) == (first.id, "EXISTING")
    assert set(workflows.steps(first.id)) == {"a", "b", "gate"}


def test_organization_that_is_named_is_the_runs_if_it_is_the_same(workflows: Workflows):
    run_id = owned_run(workflows)
    append(workflows, request(run_id, job("new")))

    again = append(workflows, request(run_id, job("new", organization_id=OWNER)))

    assert again.disposition == "ALREADY_APPLIED"


def test_key_is_known_in_its_own_run_only(workflows: Workflows):
    runs = [workflows.enqueue_jobs({"gate": []}, gates=("gate",)) for _ in range(2)]

    found = [append(workflows, request(run_id)).disposition for run_id in runs]

    assert found == ["APPENDED", "APPENDED"]


def test_key_is_looked_at_before_the_gate(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"gate": []}, gates=("gate",))
    append(workflows, request(run_id))
    finish(workflows, run_id)

    code = refused(lambda: append(workflows, request(run_id, job("other"))))

    assert code == "workflow.append_conflicting_retry"
