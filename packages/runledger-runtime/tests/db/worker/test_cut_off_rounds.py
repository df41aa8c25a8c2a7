"""Rounds that take longer than their deadline, on a server that lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobDefinitionSpec, JobEnqueue
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.definitions import upsert_job_definition
from runledger_postgres.direct import Connection
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    ClaimRequest,
    WriteVerdict,
    run_worker_round,
)
from runledger_postgres.workflows import enqueue_workflow_run, settle
from runledger_runtime.cancel_request import CancelRequest
from runledger_runtime.engine import EngineConnections
from runledger_runtime.health import LoopState
from runledger_runtime.registry import JobRegistry
from runledger_runtime.worker._book import LeaseBook
from runledger_runtime.worker._execution import Execution, Outcome
from runledger_runtime.worker._link import PumpLink
from runledger_runtime.worker._settling import Batch, Settling
from runledger_test_support import FaultProxy, ProxyMode, TemporaryDatabase

Eventually = Callable[[Callable[[], bool]], None]

# A write to a job that turns it into the status of its payload takes so many seconds.
SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.status <> OLD.status AND NEW.status::text = NEW.payload ->> 'slow' THEN
        PERFORM pg_sleep((NEW.payload ->> 'seconds')::float8);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE UPDATE ON runledger.job_queue FOR EACH ROW EXECUTE FUNCTION slow();
"""
STATUS = "SELECT status::text FROM runledger.job_queue"
CLAIMS = "SELECT claim_number FROM runledger.job_queue"
# A job that ends counts in a row of the host, if it says so.
HELD = """
CREATE TABLE held AS SELECT 0 AS n;
CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.status = 'SUCCEEDED' AND NEW.payload ? 'is_held' THEN
        UPDATE public.held SET n = n + 1;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER held BEFORE UPDATE ON runledger.job_queue FOR EACH ROW EXECUTE FUNCTION held();
"""
STATUS_OF_ONE = "SELECT status::text FROM runledger.job_queue WHERE job_type = 'jobs.one'"
STORED_OF_TWO = """
SELECT count(*) FROM runledger.job_queue WHERE job_type = 'jobs.two' AND status = 'SUCCEEDED'
"""
# Their rounds have a second, and half of it before the server is asked to cancel.
TTL_OF_ONE_SECOND = 3


@pytest.fixture
def slow(runledger_database: TemporaryDatabase) -> None:
    """A host that makes writes slow."""
    runledger_database.connect_directly(autocommit=True).execute(SLOW.encode())


@pytest.fixture
def links(runledger_database: TemporaryDatabase) -> Iterator[Callable[..., PumpLink]]:
    """Makes the links of pumps."""
    made: list[tuple[PumpLink, EngineConnections]] = []

    def make(*, dsn: str = "", kind: type[EngineConnections] = EngineConnections) -> PumpLink:
        pool = ConnectionPool[Any](dsn or runledger_database.direct_dsn, open=False)
        connections = kind(pool)
        link = PumpLink(
            connections, pool, worker_id="worker-1", lease_ttl_seconds=TTL_OF_ONE_SECOND
        )
        made.append((link, connections))
        return link

    yield make
    for link, connections in made:
        link.close()
        connections.close()


def define(pool: ConnectionPool[Any]) -> None:
    """Make the definition of the job."""
    upsert_job_definition(pool, JobDefinitionSpec("jobs.one", max_attempts=3))


def one_step(pool: ConnectionPool[Any], **payload: Any) -> None:
    """Enqueue a run of one step: its end takes two trips, and COMMIT goes with the second."""
    dag = WorkflowDagBuilder("flows.one", {}).job("a", "jobs.one", payload)
    enqueue_workflow_run(pool, dag.build())


def batch_of_a_claim(pool: ConnectionPool[Any]) -> Batch:
    """Claim the one job that is due, for a minute, and return its success."""
    claim = ClaimRequest("worker-1", ["jobs.one"], limit=1, window=2, lease_ttl_seconds=60)
    with pool.connection() as connection:
        connection.autocommit = True
        (job,) = run_worker_round(connection, claim=claim).claimed
        connection.autocommit = False
    execution = Execution(job, pool, lease_ends_at=time.monotonic() + 60)
    settling = Settling(JobRegistry(), LeaseBook(), on_dead_letter=lambda _letter: None)
    return settling.batch([Outcome(execution, JobCompletion.success())])


@pytest.mark.core
@pytest.mark.usefixtures("slow")
def test_outcome_that_takes_longer_than_a_round_is_stored_in_the_end(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    runs: list[int] = []
    start_worker({"jobs.one": lambda *_: runs.append(1)}, lease_ttl_seconds=TTL_OF_ONE_SECOND)

    one_step(runledger_pool, slow="SUCCEEDED", seconds=1.2)

    eventually(lambda: look(STATUS) == "SUCCEEDED")
    assert (runs, look(CLAIMS)) == ([1], 1)


def test_outcome_that_waits_for_the_host_holds_nobody_else_up(
    runledger_pool: ConnectionPool[Any],
    runledger_database: TemporaryDatabase,
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    host = runledger_database.connect(autocommit=True)
    host.execute(HELD)
    holder = runledger_database.connect()
    holder.execute("SELECT FROM held FOR UPDATE")
    worker = start_worker(
        {"jobs.one": lambda *_: None, "jobs.two": lambda *_: None},
        lease_ttl_seconds=TTL_OF_ONE_SECOND,
    )
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"is_held": True}))
    eventually(lambda: worker.health.status(LoopState.RUNNING).consecutive_errors >= 2)

    for number in range(3):
        enqueue_job(runledger_pool, JobEnqueue("jobs.two", number))
        eventually(lambda number=number: look(STORED_OF_TWO) == number + 1)
    were_held = look(STATUS_OF_ONE) == "LEASED"
    holder.rollback()

    assert were_held
    eventually(lambda: look(STATUS_OF_ONE) == "SUCCEEDED")
    assert look("SELECT max(claim_number) FROM runledger.job_queue") == 1


@pytest.mark.usefixtures("slow")
def test_claim_that_takes_longer_than_a_round_asks_for_fewer_jobs(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    define(runledger_pool)
    slow = {"slow": "LEASED", "seconds": 0.3}
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", slow)] * 4)

    start_worker(
        {"jobs.one": lambda *_: None}, lease_ttl_seconds=TTL_OF_ONE_SECOND, claim_batch_size=4
    )

    done = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
    eventually(lambda: look(done) == 4)


def test_round_whose_time_goes_by_in_python_gets_more(
    monkeypatch: pytest.MonkeyPatch,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    def settle_slowly(*arguments: Any) -> Any:
        threading.Event().wait(1.2)
        return settle(*arguments)

    start_worker({"jobs.one": lambda *_: None}, lease_ttl_seconds=TTL_OF_ONE_SECOND)
    monkeypatch.setattr("runledger_postgres.workflows._end_jobs.settle", settle_slowly)

    one_step(runledger_pool)

    eventually(lambda: look(STATUS) == "SUCCEEDED")
    assert look(CLAIMS) == 1


@pytest.mark.core
def test_round_that_nobody_answers_gets_no_more_time(
    links: Callable[..., PumpLink],
    runledger_pool: ConnectionPool[Any],
    runledger_database: TemporaryDatabase,
) -> None:
    define(runledger_pool)
    one_step(runledger_pool)
    batch = batch_of_a_claim(runledger_pool)
    with FaultProxy(runledger_database.direct_dsn) as proxy:
        link = links(dsn=proxy.dsn)
        link.find_claims(LeaseBook())
        proxy.set_mode(ProxyMode.BLACKHOLE)

        with pytest.raises(QueryError) as lost:
            link.round(batch, None)

    assert lost.value.code == "db.unavailable"
    assert not batch.outcomes[0].execution.is_stored_alone


class LateConnections(EngineConnections):
    """Has a request to cancel under way when a round ends; remembers what it opened."""

    opened: ClassVar[list[Connection]]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        type(self).opened = []

    def connect(self, name: str) -> Connection:
        self.opened.append(super().connect(name))
        return self.opened[-1]

    @contextmanager
    def limit(
        self, connection: Connection, seconds: float, *, answer_seconds: float
    ) -> Generator[CancelRequest]:
        with super().limit(connection, seconds, answer_seconds=answer_seconds) as request:
            # Not while it is being made.
            request.is_sent = connection in self.opened
            yield request


def test_request_to_cancel_that_comes_late_meets_no_other_round(
    links: Callable[..., PumpLink], runledger_pool: ConnectionPool[Any]
) -> None:
    define(runledger_pool)
    one_step(runledger_pool)
    batch = batch_of_a_claim(runledger_pool)
    link = links(kind=LateConnections)

    link.round(batch, None)
    link.find_claims(LeaseBook())

    assert [connection.closed for connection in LateConnections.opened] == [True, True]


def test_round_that_was_stored_though_it_was_to_be_canceled_leaves_the_rest_to_be_stored_alone(
    links: Callable[..., PumpLink],
    runledger_pool: ConnectionPool[Any],
    runledger_database: TemporaryDatabase,
) -> None:
    define(runledger_pool)
    one_step(runledger_pool)
    batch = batch_of_a_claim(runledger_pool)
    host = runledger_database.connect_directly()
    host.execute("SELECT FROM runledger.workflow_runs FOR UPDATE")

    (busy,) = links(kind=LateConnections).round(batch, None).successes

    assert busy.verdict is WriteVerdict.BUSY
    assert batch.outcomes[0].execution.cut_offs == 1
