"""Waits: one connection and one query for all, woken at once where possible, else by polling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JsonValue, Scope
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunStatus
from runledger_postgres import QueryError, connect_pool
from runledger_postgres.lifecycle import (
    SuccessEntry,
    cancel_workflow_run,
    claim_jobs,
    complete_jobs,
)
from runledger_postgres.workflows import _listening, _waiting, handles
from runledger_postgres.workflows._results import (
    WorkflowRunResult,
    WorkflowRunUnsuccessfulError,
)
from runledger_postgres.workflows._wait_options import WorkflowRunWaitOptions
from runledger_postgres.workflows._waiters import RUN_ENDED_CHANNEL
from runledger_test_support import FaultProxy, ProxyMode

from .conftest import JOB_TYPE, Workflows

# Of the direct connection.
LINK = "runledger run waits"
MARKS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND classid = 0 AND objid = 1380743026 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
LINKS = f"""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = '{LINK}'
"""
# So long that it plays no part in a test.
NEVER = 600.0
PATIENT = WorkflowRunWaitOptions(timeout=NEVER, poll_interval=NEVER)
WAIT_SECONDS = 30


def is_link(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.get_parameters().get("fallback_application_name") == LINK


class Links:
    """Does something to direct connections before they are used."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.waiting = threading.Event()
        self.is_refused = False

    def configure(self, connection: psycopg.Connection[Any]) -> None:
        if not is_link(connection):
            return
        self.waiting.set()
        assert self.may_go_on.wait(WAIT_SECONDS)
        assert not self.is_refused, "no direct connection for this test"


@pytest.fixture
def links() -> Links:
    return Links()


@pytest.fixture
def pool(workflows: Workflows, links: Links) -> Iterator[ConnectionPool[Any]]:
    """A pool of the waiters alone; its direct connections are the test's to hold up."""
    database = workflows.database
    with ConnectionPool[Any](
        database.direct_dsn, min_size=1, max_size=2, configure=links.configure, open=True
    ) as pool:
        pool.wait()
        yield pool


class Wait:
    """A thread that waits for the result of a run."""

    def __init__(
        self, pool: ConnectionPool[Any], run_id: UUID, options: WorkflowRunWaitOptions = PATIENT
    ) -> None:
        self._handle = handles.workflow_run_handle(pool, Scope.ADMIN, run_id)
        self._options = options
        self._result: WorkflowRunResult | None = None
        self._error: QueryError | None = None
        self._has_ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        try:
            self._result = self._handle.get_result(self._options)
        except QueryError as error:
            self._error = error
        finally:
            self._has_ended.set()

    def result(self) -> JsonValue:
        """Return the result."""
        assert self._has_ended.wait(WAIT_SECONDS), "the wait goes on"
        assert self._error is None
        assert self._result is not None
        assert self._result.run_id == self._handle.run_id
        return self._result.result

    def error(self) -> QueryError:
        """Return the error that ended it."""
        assert self._has_ended.wait(WAIT_SECONDS), "the wait goes on"
        assert self._error is not None
        return self._error


def enqueued(workflows: Workflows, count: int = 1) -> list[UUID]:
    run = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).result_step("a").build()
    return [workflows.enqueue(run) for _ in range(count)]


def end_all(workflows: Workflows) -> None:
    """End all that is due in one transaction; the result is the number of the job."""
    jobs = claim_jobs(workflows.pool, worker_id="worker", limit=1_000, lease_ttl_seconds=60)
    outcomes = complete_jobs(
        workflows.pool,
        [SuccessEntry(job.lease, JobCompletion(number)) for number, job in enumerate(jobs)],
    )
    assert len(outcomes) == len(jobs) > 0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.005)


def until_marked(workflows: Workflows) -> None:
    until(lambda: workflows.value(MARKS) == 1)


def until_looked(pool: ConnectionPool[Any], count: int = 1) -> None:
    """Wait until the waiters of the pool have looked so often, and have found nothing."""
    until(lambda: pool.get_stats().get("requests_num", 0) >= count and is_idle(pool))


def is_idle(pool: ConnectionPool[Any]) -> bool:
    stats = pool.get_stats()
    return stats["pool_available"] == stats["pool_size"] and not stats["requests_waiting"]


@pytest.mark.core
def test_result_that_comes_later_ends_the_wait(workflows: Workflows):
    [run_id] = enqueued(workflows)
    wait = Wait(workflows.pool, run_id, WorkflowRunWaitOptions(timeout=60, poll_interval=0.05))
    until_looked(workflows.pool)

    workflows.succeed(workflows.claim()["a"], "done")

    assert wait.result() == "done"


@pytest.mark.timeout(180)
def test_three_hundred_threads_wait_on_one_connection_and_all_wake(
    workflows: Workflows, pool: ConnectionPool[Any]
):
    run_ids = enqueued(workflows, 100)
    waits = [Wait(pool, run_id) for run_id in run_ids for _ in range(3)]
    until_marked(workflows)
    until(lambda: len(_waiting._watches[pool]._waits) == 100)
    until(lambda: sum(map(len, _waiting._watches[pool]._waits.values())) == 300)

    assert workflows.value(LINKS) == 1
    assert threading.active_count() >= 300
    before = pool.get_stats().get("requests_num", 0)
    end_all(workflows)
    ended_at = time.monotonic()

    assert len({str(wait.result()) for wait in waits}) == len(run_ids)
    assert time.monotonic() - ended_at < 30
    assert workflows.value(LINKS) == 1
    # Not one each.
    assert pool.get_stats().get("requests_num", 0) - before < 10


def test_all_wait_for_one_look_per_interval(
    workflows: Workflows, pool: ConnectionPool[Any], links: Links
):
    links.is_refused = True
    options = WorkflowRunWaitOptions(timeout=NEVER, poll_interval=0.5)
    waits = [Wait(pool, run_id, options) for run_id in enqueued(workflows, 100)]
    until(lambda: pool in _waiting._watches and len(_waiting._watches[pool]._waits) == 100)
    assert links.waiting.wait(WAIT_SECONDS)
    before = pool.get_stats().get("requests_num", 0)
    until_looked(pool, before + 4)

    end_all(workflows)

    for wait in waits:
        wait.result()
    assert pool.get_stats().get("requests_num", 0) - before < 20


def test_result_between_the_first_look_and_the_listener_is_found_by_its_look(
    workflows: Workflows, pool: ConnectionPool[Any], links: Links
):
    [run_id] = enqueued(workflows)
    links.may_go_on.clear()
    wait = Wait(pool, run_id)
    assert links.waiting.wait(WAIT_SECONDS)
    until_looked(pool)

    end_all(workflows)
    assert workflows.value(MARKS) == 0
    links.may_go_on.set()

    assert wait.result() == 0


def test_lost_notification_costs_a_poll_interval(
    workflows: Workflows, pool: ConnectionPool[Any], links: Links
):
    [run_id] = enqueued(workflows)
    wait = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=NEVER, poll_interval=0.3))
    until_marked(workflows)
    links.is_refused = True
    workflows.look.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [LINK]
    )
    until(lambda: workflows.value(LINKS) == 0)

    end_all(workflows)
    ended_at = time.monotonic()

    assert wait.result() == 0
    assert time.monotonic() - ended_at < 30


def test_listener_comes_back_after_an_outage(workflows: Workflows, pool: ConnectionPool[Any]):
    [run_id] = enqueued(workflows)
    wait = Wait(pool, run_id)
    until_marked(workflows)
    killed = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    pid = workflows.value(f"{LINKS.replace('count(*)', 'pid')}")

    workflows.look.execute(killed, [LINK])
    until(lambda: workflows.value(f"{LINKS.replace('count(*)', 'pid')}") not in {None, pid})
    until_marked(workflows)
    end_all(workflows)

    assert wait.result() == 0


def test_mark_that_a_stranger_holds_leaves_no_wait_on_the_server(
    workflows: Workflows, pool: ConnectionPool[Any]
):
    [run_id] = enqueued(workflows)
    queued = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    tried = f"{LINKS} AND query LIKE '%%advisory%%' AND state = 'idle'"
    with workflows.database.connect_directly(autocommit=True) as stranger:
        stranger.execute("SELECT pg_advisory_lock(1380743026)")
        wait = Wait(pool, run_id)
        until(lambda: workflows.value(tried) == 1 or workflows.value(queued) > 0)
        assert workflows.value(queued) == 0
        stranger.execute("SELECT pg_advisory_unlock(1380743026)")
        until_marked(workflows)
        end_all(workflows)

        assert wait.result() == 0


def test_configure_that_never_ends_leaves_the_listener_able_to_try_again(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_listening, "_ANSWER_SECONDS", 1.0)
    tries: list[bool] = []

    def configure(connection: psycopg.Connection[Any]) -> None:
        if is_link(connection):
            tries.append(True)
            if len(tries) == 1:
                connection.execute("SELECT pg_sleep(3600)")

    [run_id] = enqueued(workflows)
    dsn = workflows.database.direct_dsn
    with ConnectionPool[Any](dsn, min_size=1, configure=configure, open=True) as pool:
        wait = Wait(pool, run_id)
        until_marked(workflows)
        end_all(workflows)

        assert wait.result() == 0
    assert len(tries) == 2


def notified(connection: psycopg.Connection[Any]) -> list[str]:
    # What was committed before arrives no later than the answer to a query.
    connection.execute("SELECT 1")
    return [notify.payload for notify in connection.notifies(timeout=0)]


def test_nobody_is_notified_unless_somebody_waits(workflows: Workflows, pool: ConnectionPool[Any]):
    stranger = workflows.database.connect_directly(autocommit=True)
    stranger.execute(f"LISTEN {RUN_ENDED_CHANNEL}")
    heard: list[list[str]] = []

    enqueued(workflows)
    end_all(workflows)
    heard.append(notified(stranger))
    [run_id] = enqueued(workflows)
    wait = Wait(pool, run_id)
    until_marked(workflows)
    end_all(workflows)
    wait.result()
    heard.append(notified(stranger))
    until(lambda: workflows.value(MARKS) == 0)
    # It is the mark that has gone, not the connection.
    assert workflows.value(LINKS) == 1
    enqueued(workflows)
    end_all(workflows)
    heard.append(notified(stranger))

    assert heard == [[], [str(run_id)], []]


def test_sixty_runs_that_end_in_one_transaction_wake_all_though_fifty_are_told(
    workflows: Workflows, pool: ConnectionPool[Any]
):
    stranger = workflows.database.connect_directly(autocommit=True)
    stranger.execute(f"LISTEN {RUN_ENDED_CHANNEL}")
    run_ids = enqueued(workflows, 60)
    waits = [Wait(pool, run_id) for run_id in run_ids]
    until_marked(workflows)
    until(lambda: len(_waiting._watches[pool]._waits) == 60)

    end_all(workflows)

    assert len({str(wait.result()) for wait in waits}) == len(run_ids)
    [told] = notified(stranger)
    assert len(told.split(",")) == 50


def test_notification_of_another_run_wakes_nobody(workflows: Workflows, pool: ConnectionPool[Any]):
    wait = Wait(pool, enqueued(workflows)[0])
    until_marked(workflows)
    # The first, and that of the listener.
    until_looked(pool, 2)
    before = pool.get_stats().get("requests_num", 0)

    for text in (str(UUID(int=1)), "hello", ""):
        workflows.look.execute("SELECT pg_notify(%s, %s)", [RUN_ENDED_CHANNEL, text])
    end_all(workflows)

    assert wait.result() == 0
    # The look for the run itself; the listener hears in order.
    assert pool.get_stats().get("requests_num", 0) - before <= 1


def test_pool_of_one_connection_neither_stalls_nor_starves(workflows: Workflows):
    run_ids = enqueued(workflows, 20)
    with connect_pool(
        workflows.database.dsn,
        max_size=1,
        prepare_threshold=workflows.database.prepare_threshold,
    ) as pool:
        options = WorkflowRunWaitOptions(timeout=60, poll_interval=0.05)
        waits = [Wait(pool, run_id, options) for run_id in run_ids]
        until(lambda: pool in _waiting._watches and len(_waiting._watches[pool]._waits) == 20)
        for _ in range(20):
            # Others have their turn beside the looks.
            with pool.connection(timeout=10) as connection:
                connection.execute("SELECT 1")

        end_all(workflows)

        assert len({str(wait.result()) for wait in waits}) == len(run_ids)


def test_busy_pool_delays_no_deadline(workflows: Workflows, pool: ConnectionPool[Any]):
    [run_id] = enqueued(workflows)
    with pool.connection(), pool.connection():
        began_at = time.monotonic()
        before_any_look = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=0.5))
        at_once = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=0))

        assert (
            before_any_look.error().code == at_once.error().code == "workflow.result_wait_timeout"
        )
        assert time.monotonic() - began_at < 10


def test_last_look_finds_what_nothing_else_has_told(
    workflows: Workflows, pool: ConnectionPool[Any], links: Links
):
    links.is_refused = True
    [run_id] = enqueued(workflows)
    wait = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=3, poll_interval=NEVER))
    # The first look is over: only then a listener is tried.
    assert links.waiting.wait(WAIT_SECONDS)

    end_all(workflows)

    assert wait.result() == 0


@pytest.mark.parametrize("enormous", [1e18, float("inf"), 10**400])
def test_enormous_times_are_waited_for(
    workflows: Workflows, pool: ConnectionPool[Any], enormous: float
):
    options = WorkflowRunWaitOptions(timeout=enormous, poll_interval=enormous)
    wait = Wait(pool, enqueued(workflows)[0], options)
    until_marked(workflows)

    end_all(workflows)

    assert wait.result() == 0


def test_wait_without_an_end_is_ended_by_the_run(workflows: Workflows, pool: ConnectionPool[Any]):
    wait = Wait(pool, enqueued(workflows)[0], WorkflowRunWaitOptions(timeout=None))
    until_marked(workflows)

    end_all(workflows)

    assert wait.result() == 0


def test_interval_of_one_wait_is_not_that_of_an_earlier_one(
    workflows: Workflows, pool: ConnectionPool[Any], links: Links
):
    links.is_refused = True
    slow = Wait(pool, enqueued(workflows)[0])
    assert links.waiting.wait(WAIT_SECONDS)
    quick = Wait(
        pool, enqueued(workflows)[0], WorkflowRunWaitOptions(timeout=NEVER, poll_interval=0.05)
    )
    until(lambda: len(_waiting._watches[pool]._waits) == 2)

    end_all(workflows)

    assert [slow.result(), quick.result()] == [0, 1]


def test_run_that_is_deleted_ends_the_wait(workflows: Workflows, pool: ConnectionPool[Any]):
    wait = Wait(
        pool, enqueued(workflows)[0], WorkflowRunWaitOptions(timeout=NEVER, poll_interval=0.05)
    )
    until_looked(pool)

    workflows.look.execute("DELETE FROM runledger.job_queue")
    workflows.look.execute("DELETE FROM runledger.workflow_runs")

    assert wait.error().code == "workflow.run_not_found"


def test_run_that_is_cancelled_ends_the_wait(workflows: Workflows, pool: ConnectionPool[Any]):
    [run_id] = enqueued(workflows)
    wait = Wait(pool, run_id)
    until_marked(workflows)

    cancel_workflow_run(workflows.pool, run_id, scope=Scope.ADMIN)

    error = wait.error()
    assert isinstance(error, WorkflowRunUnsuccessfulError)
    assert error.status is WorkflowRunStatus.CANCELED


def test_closing_the_pool_ends_its_waits_with_an_error(
    workflows: Workflows, pool: ConnectionPool[Any]
):
    [run_id] = enqueued(workflows)
    waits = [Wait(pool, run_id) for _ in range(10)]
    until_marked(workflows)

    pool.close()

    assert {wait.error().code for wait in waits} == {"workflow.handle_storage_error"}
    errors = [wait.error() for wait in waits]
    assert len({id(error) for error in errors}) == 10
    until(lambda: workflows.value(LINKS) == 0)


def test_connection_ends_when_nobody_has_waited_for_a_while(
    workflows: Workflows, pool: ConnectionPool[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_waiting, "_LINGER_SECONDS", 0.1)
    for _ in range(2):
        wait = Wait(pool, enqueued(workflows)[0])
        until_marked(workflows)
        end_all(workflows)
        wait.result()

        until(lambda: workflows.value(LINKS) == 0)
        until(lambda: pool not in _waiting._watches)
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("runledger-run-")])


def test_next_wait_finds_the_connection_of_the_last(
    workflows: Workflows, pool: ConnectionPool[Any]
):
    pids: list[int] = []
    for _ in range(2):
        wait = Wait(pool, enqueued(workflows)[0])
        until_marked(workflows)
        pids.append(workflows.value(LINKS.replace("count(*)", "pid")))
        end_all(workflows)
        wait.result()
        until(lambda: workflows.value(MARKS) == 0)

    assert pids[0] == pids[1]


def test_wait_outlives_an_outage(workflows: Workflows):
    [run_id] = enqueued(workflows)
    with (
        FaultProxy(workflows.database.direct_dsn) as proxy,
        connect_pool(proxy.dsn, timeout_seconds=1) as pool,
    ):
        wait = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=NEVER, poll_interval=0.1))
        until_marked(workflows)
        proxy.set_mode(ProxyMode.REFUSE)
        proxy.sever()
        until(lambda: workflows.value(LINKS) == 0)
        end_all(workflows)
        until(lambda: _waiting._watches[pool].trouble)
        proxy.set_mode(ProxyMode.PASS)

        assert wait.result() == 0


def test_outage_that_lasts_until_the_deadline_is_no_timeout_of_the_run(workflows: Workflows):
    [run_id] = enqueued(workflows)
    with (
        FaultProxy(workflows.database.direct_dsn) as proxy,
        connect_pool(proxy.dsn, timeout_seconds=30) as pool,
    ):
        wait = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=4, poll_interval=0.1))
        until_marked(workflows)
        began_at = time.monotonic()
        proxy.set_mode(ProxyMode.REFUSE)
        proxy.sever()

        assert wait.error().code == "workflow.handle_storage_error"
        assert time.monotonic() - began_at < 20


def test_link_that_froze_delays_no_deadline_and_is_broken(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_waiting, "_ANSWER_SECONDS", 1.0)
    [run_id] = enqueued(workflows)
    with (
        FaultProxy(workflows.database.direct_dsn) as proxy,
        connect_pool(proxy.dsn, timeout_seconds=1) as pool,
    ):
        short = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=3, poll_interval=0.1))
        long = Wait(pool, run_id, WorkflowRunWaitOptions(timeout=NEVER, poll_interval=0.1))
        until_marked(workflows)
        proxy.set_mode(ProxyMode.BLACKHOLE)
        began_at = time.monotonic()

        assert short.error().code == "workflow.handle_storage_error"
        assert time.monotonic() - began_at < 15
        until(lambda: pool.get_stats().get("returns_bad", 0) > 0)
        proxy.set_mode(ProxyMode.PASS)
        end_all(workflows)
        assert long.result() == 0
