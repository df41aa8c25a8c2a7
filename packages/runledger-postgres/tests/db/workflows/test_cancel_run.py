"""Cancel of a run: what it ends, what it leaves, and what becomes of those that race with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from runledger_core import JobCompletion, JobFailure, RunledgerError, Scope
from runledger_core.workflows import (
    WorkflowDagBuilder,
    WorkflowExternalCompletion,
    WorkflowRunStatus,
)
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    CanceledWorkflowRun,
    ClaimedJob,
    ClaimRequest,
    SuccessEntry,
    cancel_workflow_run,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    reap_expired_leases,
    run_worker_round,
)
from runledger_postgres.wakeup import CANCEL_CHANNEL
from runledger_postgres.workflows._gate import complete_external_workflow_step
from runledger_postgres.workflows._waiters import RUN_ENDED_CHANNEL, WAITERS_MARK
from runledger_test_support import (
    Interleaving,
    Session,
    Step,
    StepContext,
    expire_lease,
    permute,
)

from .conftest import JOB_TYPE, Workflows
from .engine import until_waiting

ADMIN = Scope.ADMIN
MINE, OTHER = UUID(int=1), UUID(int=2)
ABC = {"a": [], "b": ["a"], "cleanup": {"a": "terminal"}}

STEP_COLUMNS = """
    SELECT s.step_key, s.status::text, coalesce(s.status_reason, q.status_reason) AS reason,
        coalesce(s.last_error_code, q.last_error_code) AS code,
        coalesce(s.last_error_message, q.last_error_message) AS message
    FROM runledger.workflow_steps s LEFT JOIN runledger.job_queue q ON q.id = s.job_id
    ORDER BY s.step_key
"""
TABLES = ("workflow_runs", "workflow_steps", "job_queue", "job_attempts", "job_events")


def image(workflows: Workflows) -> dict[str, list[Any]]:
    """Return every row with its physical place: the least write shows."""
    return {
        table: workflows.look.execute(
            f"SELECT t.ctid::text, t::text FROM runledger.{table} t ORDER BY 2".encode()
        ).fetchall()
        for table in TABLES
    }


def texts(workflows: Workflows) -> dict[str, list[Any]]:
    """Return status, reason, code and message of each step, as they are read."""
    return {key: rest for key, *rest in map(tuple, workflows.look.execute(STEP_COLUMNS))}


def row_of_run(workflows: Workflows) -> dict[str, Any]:
    cursor = workflows.look.cursor(row_factory=dict_row)
    row = cursor.execute("SELECT * FROM runledger.workflow_runs").fetchone()
    assert row is not None
    return row


def told(workflows: Workflows, listener: psycopg.Connection[Any], channel: str) -> list[str]:
    """Return what was notified; notifications come in the order of commits."""
    workflows.look.execute(f"NOTIFY {channel}, 'end'".encode())
    heard: list[str] = []
    for notification in listener.notifies(timeout=20):
        if notification.payload == "end":
            return heard
        heard.append(notification.payload)
    raise TimeoutError


def listening(workflows: Workflows, channel: str) -> psycopg.Connection[Any]:
    listener = workflows.database.connect_directly(autocommit=True)
    listener.execute(f"LISTEN {channel}".encode())
    return listener


@pytest.mark.core
def test_everything_that_has_not_ended_is_canceled(workflows: Workflows):
    run_id = workflows.enqueue_jobs(
        {"done": [], "gate": [], "pending": ["done"], "running": [], "waits": ["pending"]},
        gates=("gate",),
    )
    jobs = workflows.claim()
    workflows.succeed(jobs["done"])

    canceled = cancel_workflow_run(
        workflows.pool, run_id, scope=ADMIN, reason="no longer wanted",
        error_code="shop.closed", error_message="the shop has closed",
    )  # fmt: skip

    assert canceled == CanceledWorkflowRun(
        run_id, WorkflowRunStatus.CANCELED, is_canceled_now=True, canceled_steps=4, canceled_jobs=2
    )
    ended = ["CANCELED", "no longer wanted", "shop.closed", "the shop has closed"]
    assert texts(workflows) == {
        "done": ["SUCCEEDED", None, None, None],
        "gate": ended, "pending": ended, "running": ended, "waits": ended,
    }  # fmt: skip
    row = row_of_run(workflows)
    assert (row["status"], row["steps_canceled"], row["result"]) == ("CANCELED", 4, None)
    assert row["finished_at"] == row["updated_at"]
    assert workflows.claim() == {}


def test_texts_of_steps_with_a_job_are_the_jobs(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": ["a"]})

    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN, reason="enough", error_code="a.b")

    stored = workflows.look.execute(
        "SELECT step_key, status_reason, last_error_code FROM runledger.workflow_steps ORDER BY 1"
    ).fetchall()
    assert stored == [("a", None, None), ("b", "enough", "a.b")]


def test_attempts_of_running_jobs_are_closed_and_the_cancel_is_in_their_history(
    workflows: Workflows,
):
    run_id = workflows.enqueue_jobs({"a": [], "b": []})
    workflows.claim(1)

    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)

    attempts = workflows.look.execute(
        "SELECT outcome::text, worker_id FROM runledger.job_attempts"
    ).fetchall()
    events = workflows.look.execute(
        "SELECT event_type::text, attempt, payload FROM runledger.job_events ORDER BY 2"
    ).fetchall()
    fences = workflows.look.execute(
        "SELECT worker_id, leased_at, lease_expires_at, is_ready FROM runledger.job_queue"
    ).fetchall()
    assert attempts == [("CANCELED", "worker")]
    assert events == [
        ("CANCELED", 1, {"reason": "CANCELED"}), ("CANCELED", None, {"reason": "CANCELED"}),
    ]  # fmt: skip
    assert fences == [(None, None, None, False)] * 2


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, ("shop.busy", "try later")),
        ({"error_code": "shop.closed"}, ("shop.closed", None)),
        ({"error_message": "closed"}, (None, "closed")),
    ],
)
def test_errors_of_an_earlier_attempt_stay_unless_the_cancel_tells_others(
    workflows: Workflows, given: dict[str, Any], kept: tuple[str | None, str | None]
):
    run_id = workflows.enqueue_jobs({"a": []})
    failure = JobFailure.retryable("shop.busy", "try later")
    lease = workflows.claim()["a"].lease
    complete_job_failure(workflows.pool, lease, failure, retry_delay_ms=60_000)

    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN, **given)

    assert texts(workflows)["a"] == ["CANCELED", "CANCELED", *kept]


def test_nothing_is_released_by_a_cancel(workflows: Workflows):
    run_id = workflows.enqueue_jobs(ABC)
    workflows.claim()

    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert workflows.steps(run_id) == dict.fromkeys(ABC, "CANCELED")
    assert workflows.value("SELECT count(*) FROM runledger.job_queue") == 1


@pytest.mark.parametrize("status", ["SUCCEEDED", "COMPLETED_WITH_ERRORS", "CANCELED"])
def test_run_that_has_ended_is_left_as_it_is(workflows: Workflows, status: str):
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).result_step("a")
    run_id = workflows.enqueue(builder.build())
    match status:
        case "SUCCEEDED":
            workflows.succeed(workflows.claim()["a"], {"n": 1})
        case "COMPLETED_WITH_ERRORS":
            workflows.fail(workflows.claim()["a"])
        case _:
            cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
    before = image(workflows)

    again = cancel_workflow_run(workflows.pool, run_id, scope=ADMIN, reason="again")

    assert again == CanceledWorkflowRun(run_id, WorkflowRunStatus(status), is_canceled_now=False)
    assert image(workflows) == before


@pytest.mark.parametrize(
    ("owner", "scope", "is_found"),
    [
        (MINE, Scope.organization(MINE), True),
        (MINE, Scope.organization(OTHER), False),
        (MINE, Scope.GLOBAL, False),
        (MINE, ADMIN, True),
        (None, Scope.organization(MINE), False),
        (None, Scope.GLOBAL, True),
    ],
)
def test_scope_decides_whose_runs_can_be_canceled(
    workflows: Workflows, owner: UUID | None, scope: Scope, is_found: bool
):
    builder = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {})
    run_id = workflows.enqueue((builder.organization_id(owner) if owner else builder).build())
    before = image(workflows)

    if is_found:
        assert cancel_workflow_run(workflows.pool, run_id, scope=scope).is_canceled_now
    else:
        with pytest.raises(RunledgerError) as refused:
            cancel_workflow_run(workflows.pool, run_id, scope=scope)
        assert (refused.value.code, refused.value.category) == (
            "workflow.run_not_found", "NOT_FOUND",
        )  # fmt: skip
        assert image(workflows) == before


def test_unknown_run_is_not_found(workflows: Workflows):
    with pytest.raises(RunledgerError) as refused:
        cancel_workflow_run(workflows.pool, uuid4(), scope=ADMIN)

    assert (refused.value.code, refused.value.field) == ("workflow.run_not_found", "run_id")


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"reason": ""}, "input.blank", "reason"),
        ({"reason": "a\0"}, "input.invalid_characters", "reason"),
        ({"error_message": " "}, "input.blank", "error_message"),
        ({"error_code": "c" * 201}, "input.too_long", "error_code"),
        ({"lock_timeout_ms": 0}, "input.out_of_range", "lock_timeout_ms"),
        ({"scope": None}, "input.wrong_type", "scope"),
    ],
)
def test_arguments_are_refused_before_sql(arguments: dict[str, Any], code: str, field: str):
    with pytest.raises(RunledgerError) as refused:
        cancel_workflow_run(None, uuid4(), **{"scope": ADMIN} | arguments)  # pyright: ignore[reportArgumentType]  # never used

    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_transaction_with_one_snapshot_is_refused_and_stays_usable(
    workflows: Workflows, level: IsolationLevel
):
    run_id = workflows.enqueue_jobs(ABC)
    before = image(workflows)
    connection = workflows.database.connect()
    connection.isolation_level = level
    connection.execute("SELECT 1")

    with pytest.raises(RunledgerError) as refused:
        cancel_workflow_run(connection, run_id, scope=ADMIN)

    assert refused.value.code == "workflow.cancel_unsupported_isolation"
    connection.execute("SELECT 1")
    connection.commit()
    assert image(workflows) == before


@pytest.mark.core
def test_joined_cancel_is_the_callers_to_undo(workflows: Workflows):
    run_id = workflows.enqueue_jobs(ABC)
    before = image(workflows)
    connection = workflows.database.connect()
    connection.execute("SET LOCAL lock_timeout = 4321")

    canceled = cancel_workflow_run(connection, run_id, scope=ADMIN)
    kept = connection.execute("SHOW lock_timeout").fetchone()
    connection.rollback()

    assert (canceled.is_canceled_now, kept) == (True, ("4321ms",))
    assert [row for _, row in image(workflows)["workflow_runs"]] == [
        row for _, row in before["workflow_runs"]
    ]
    assert workflows.steps(run_id) == {"a": "ENQUEUED", "b": "BLOCKED", "cleanup": "BLOCKED"}


@pytest.mark.parametrize("table", ["workflow_runs", "job_queue"])
@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "pool"])
def test_row_that_stays_locked_refuses_the_cancel_and_costs_the_caller_nothing(
    workflows: Workflows, table: str, is_joined: bool
):
    run_id = workflows.enqueue_jobs(ABC)
    before = image(workflows)
    holder = workflows.database.connect()
    holder.execute(f"SELECT FROM runledger.{table} FOR NO KEY UPDATE".encode())
    connection = workflows.database.connect()
    connection.execute("CREATE TEMPORARY TABLE kept (n int4)")

    with pytest.raises(RunledgerError) as refused:
        cancel_workflow_run(
            connection if is_joined else workflows.pool, run_id, scope=ADMIN, lock_timeout_ms=50
        )

    assert refused.value.code == "db.lock_timeout"
    assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
    connection.execute("SELECT FROM kept")
    connection.commit()
    holder.rollback()
    assert image(workflows) == before


def test_cancel_that_waits_for_a_job_holds_no_step_and_cancels_what_it_waited_for(
    workflows: Workflows, background: ThreadPoolExecutor
):
    run_id = workflows.enqueue_jobs(ABC)
    holder = workflows.database.connect()
    holder.execute("SELECT FROM runledger.job_queue FOR NO KEY UPDATE")

    waiting = background.submit(cancel_workflow_run, workflows.pool, run_id, scope=ADMIN)
    until_waiting(workflows)
    free = workflows.look.execute(
        "SELECT step_key FROM runledger.workflow_steps ORDER BY 1 FOR UPDATE NOWAIT"
    ).fetchall()
    holder.rollback()

    assert free == [("a",), ("b",), ("cleanup",)]
    assert waiting.result().canceled_steps == 3
    assert workflows.steps(run_id) == dict.fromkeys(ABC, "CANCELED")


def test_cancel_is_all_or_nothing(workflows: Workflows):
    run_id = workflows.enqueue_jobs(ABC)
    workflows.look.execute("ALTER TABLE runledger.job_events ADD CHECK (event_type <> 'CANCELED')")
    before = image(workflows)

    with pytest.raises(QueryError):
        cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert image(workflows) == before


def test_workers_are_told_which_of_their_jobs_were_canceled(workflows: Workflows):
    run_id = workflows.enqueue_jobs({"a": [], "b": [], "c": []})
    running = [job.id for job in workflows.claim(2).values()]
    listener = listening(workflows, CANCEL_CHANNEL)

    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)

    payloads = told(workflows, listener, CANCEL_CHANNEL)
    assert [sorted(payload.split(",")) for payload in payloads] == [sorted(map(str, running))]


@pytest.mark.parametrize("is_waiting", [True, False])
def test_who_waits_for_the_run_is_told_of_its_end(workflows: Workflows, is_waiting: bool):
    run_id = workflows.enqueue_jobs(ABC)
    listener = listening(workflows, RUN_ENDED_CHANNEL)
    if is_waiting:
        listener.execute("SELECT pg_advisory_lock_shared(%s)", [WAITERS_MARK])

    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)

    expected = [str(run_id)] if is_waiting else []
    assert told(workflows, listener, RUN_ENDED_CHANNEL) == expected


def test_what_a_handler_of_a_canceled_run_writes_is_refused(workflows: Workflows):
    run_id = workflows.enqueue_jobs(ABC)
    job = workflows.claim()["a"]
    cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
    before = image(workflows)

    with pytest.raises(RunledgerError) as refused:
        workflows.succeed(job)

    assert refused.value.code == "job.lease_owner_mismatch"
    assert image(workflows) == before


# Of two writes at once each is done as if it had come first, or second.


Write = Callable[[Any], object]


def outcome(write: Write, context: StepContext) -> str:
    try:
        return str(write(context.connection))
    except RunledgerError as error:
        return error.code


def cancel(run_id: UUID) -> Write:
    return lambda db: cancel_workflow_run(db, run_id, scope=ADMIN).is_canceled_now


def race(
    workflows: Workflows,
    prepare: Callable[[], dict[str, Write]],
    *,
    end: str = "commit",
) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Play two writes in every order; return the steps left behind by each pair of outcomes."""
    seen: dict[tuple[str, ...], set[tuple[str, ...]]] = {}

    def session(name: str, write: Write) -> Session:
        return Session(
            name,
            workflows.database.connect_directly,
            steps=[
                Step("write", lambda context: outcome(write, context)),
                Step("end", lambda context: getattr(context.connection, end)()),
            ],
        )

    def sessions() -> list[Session]:
        workflows.look.execute("DELETE FROM runledger.workflow_runs")
        workflows.look.execute("DELETE FROM runledger.job_queue")
        return [session(name, write) for name, write in prepare().items()]

    def check(played: Interleaving) -> None:
        assert {each.state for each in played.outcomes} == {"DONE"}
        found = tuple(
            str(each.value) for each in sorted(played.outcomes, key=lambda o: o.session)
            if each.step == "write"
        )  # fmt: skip
        left = workflows.look.execute(
            "SELECT status::text FROM runledger.workflow_steps ORDER BY step_key"
        ).fetchall()
        open_jobs = workflows.value(
            "SELECT count(*) FROM runledger.job_queue WHERE status IN ('PENDING', 'LEASED')"
        )
        if end == "commit":
            assert row_of_run(workflows)["status"] == "CANCELED"
            assert open_jobs == 0
        seen.setdefault(found, set()).add(tuple(status for (status,) in left))

    permute(sessions, check)
    return seen


@pytest.mark.core
def test_cancel_against_the_end_of_a_job(workflows: Workflows):
    def prepare() -> dict[str, Write]:
        run_id = workflows.enqueue_jobs(ABC)
        job = workflows.claim()["a"]
        return {
            "cancel": cancel(run_id),
            "complete": lambda db: complete_job_success(db, job.lease, JobCompletion(1)).verdict,
        }

    assert race(workflows, prepare) == {
        ("True", "STORED"): {("SUCCEEDED", "CANCELED", "CANCELED")},
        ("True", "job.lease_owner_mismatch"): {("CANCELED",) * 3},
    }


def test_two_cancels(workflows: Workflows):
    def prepare() -> dict[str, Write]:
        run_id = workflows.enqueue_jobs(ABC)
        return {"one": cancel(run_id), "other": cancel(run_id)}

    assert race(workflows, prepare) == {
        ("True", "False"): {("CANCELED",) * 3},
        ("False", "True"): {("CANCELED",) * 3},
    }


def test_cancel_that_is_undone_lets_the_other_go_on(workflows: Workflows):
    def prepare() -> dict[str, Write]:
        run_id = workflows.enqueue_jobs(ABC)
        return {"one": cancel(run_id), "other": cancel(run_id)}

    assert race(workflows, prepare, end="rollback") == {
        ("True", "True"): {("ENQUEUED", "BLOCKED", "BLOCKED")}
    }


def test_cancel_against_a_claim(workflows: Workflows):
    def prepare() -> dict[str, Write]:
        run_id = workflows.enqueue_jobs(ABC)
        return {
            "cancel": cancel(run_id),
            "claim": lambda db: len(
                claim_jobs(
                    db, worker_id="w", limit=9, lease_ttl_seconds=60, job_types=[JOB_TYPE]
                )
            ),
        }  # fmt: skip

    seen = race(workflows, prepare)

    assert set(seen) == {("True", "0"), ("True", "1")}
    assert set().union(*seen.values()) == {("CANCELED",) * 3}


def test_cancel_against_a_reaper(workflows: Workflows):
    def prepare() -> dict[str, Write]:
        run_id = workflows.enqueue_jobs(ABC)
        workflows.look.execute("UPDATE runledger.job_queue SET max_attempts = 1")
        expire_lease(workflows.look, workflows.claim()["a"].id)
        return {
            "cancel": cancel(run_id),
            "reap": lambda db: len(reap_expired_leases(db, limit=9, retry_delay_ms=1).reaped),
        }

    assert race(workflows, prepare) == {
        ("True", "1"): {("FAILED", "CANCELED", "CANCELED")},
        # It passed over the run, or came later.
        ("True", "0"): {("CANCELED",) * 3},
    }


def test_cancel_against_the_end_of_a_gate(workflows: Workflows):
    done = WorkflowExternalCompletion.succeeded()

    def prepare() -> dict[str, Write]:
        run_id = workflows.enqueue_jobs(ABC, gates=("a",))
        return {
            "cancel": cancel(run_id),
            "gate": lambda db: complete_external_workflow_step(
                db, run_id, "a", done, scope=ADMIN
            ).status,
        }  # fmt: skip

    assert race(workflows, prepare) == {
        ("True", "SUCCEEDED"): {("SUCCEEDED", "CANCELED", "CANCELED")},
        ("True", "workflow.external_step_conflicting_completion_retry"): {("CANCELED",) * 3},
    }


def complete_in_round(workflows: Workflows, job: ClaimedJob) -> tuple[str, list[str]]:
    """Complete in the round of a worker; return the verdict and the keys of what it claimed."""
    result = run_worker_round(
        workflows.database.connect(autocommit=True),
        successes=[SuccessEntry(job.lease, JobCompletion(1))],
        claim=ClaimRequest("w", [JOB_TYPE], limit=5, window=5, lease_ttl_seconds=30),
        in_workflows=True,
    )
    return result.successes[0].verdict, sorted(workflows.key_of(job.id) for job in result.claimed)


def test_round_of_a_worker_passes_over_a_run_that_is_being_canceled(workflows: Workflows):
    run_id = workflows.enqueue_jobs(ABC)
    job = workflows.claim()["a"]
    connection = workflows.database.connect()
    cancel_workflow_run(connection, run_id, scope=ADMIN)

    during = complete_in_round(workflows, job)
    connection.commit()
    after = complete_in_round(workflows, job)

    assert (during, after) == (("BUSY", []), ("LEASE_OWNER_MISMATCH", []))
    assert workflows.steps(run_id) == dict.fromkeys(ABC, "CANCELED")


def test_what_the_round_of_a_worker_released_and_claimed_is_canceled(workflows: Workflows):
    run_id = workflows.enqueue_jobs(ABC)
    done = complete_in_round(workflows, workflows.claim()["a"])

    canceled = cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)

    assert done == ("STORED", ["b", "cleanup"])
    assert (canceled.canceled_steps, canceled.canceled_jobs) == (2, 2)
    assert workflows.steps(run_id) == {"a": "SUCCEEDED", "b": "CANCELED", "cleanup": "CANCELED"}
