"""What the database refuses costs one outcome or one lease, never a second run or the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.wakeup import CANCEL_CHANNEL
from runledger_runtime.health import LoopState

Eventually = Callable[[Callable[[], bool]], None]

STATUS = "SELECT status::text FROM runledger.job_queue WHERE payload = %s::jsonb"
SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
BEATEN_AT = "SELECT last_heartbeat_at FROM runledger.job_queue"
# A sleeping worker holds a shared advisory lock for each of its types.
MARKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"


def four_seconds(context: Any, _payload: Any) -> None:
    """A handler that outlasts several leases of a second or two."""
    context.wait(4)


@pytest.fixture
def worker_role(runledger_pool: ConnectionPool[Any], runledger_database: Any) -> Any:
    """A pool of a role that may do all but write dead letters."""
    with runledger_pool.connection() as connection:
        connection.execute("DROP ROLE IF EXISTS clumsy_worker")
        connection.execute("CREATE ROLE clumsy_worker LOGIN PASSWORD 'clumsy'")
        for grant in (
            "USAGE ON SCHEMA runledger",
            "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA runledger",
            "USAGE ON ALL SEQUENCES IN SCHEMA runledger",
        ):
            connection.execute(f"GRANT {grant} TO clumsy_worker")  # pyright: ignore[reportArgumentType]  # literals above
        connection.execute("REVOKE INSERT ON runledger.job_dead_letters FROM clumsy_worker")
    dsn = make_conninfo(runledger_database.dsn, user="clumsy_worker", password="clumsy")
    with ConnectionPool(dsn, min_size=1) as pool:
        yield pool
    with runledger_pool.connection() as connection:
        connection.execute("DROP OWNED BY clumsy_worker")
        connection.execute("DROP ROLE clumsy_worker")


def test_outcome_that_the_role_may_not_store_runs_once_and_is_stored_when_it_may(
    worker_role: ConnectionPool[Any],
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    runs: list[int] = []

    def handler(_context: Any, payload: Any) -> None:
        runs.append(payload["n"])
        if payload["n"] == 0:
            raise JobFailure.terminal("test.declined", "declined")

    worker = start_worker({"jobs.one": handler}, pool=worker_role)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(20)])

    eventually(lambda: look(SUCCEEDED) == 19)
    eventually(lambda: worker.health.status(LoopState.RUNNING).consecutive_errors > 2)
    assert look(STATUS, '{"n": 0}') == "LEASED"
    with runledger_pool.connection() as connection:
        connection.execute("GRANT INSERT ON runledger.job_dead_letters TO clumsy_worker")
    eventually(lambda: look(STATUS, '{"n": 0}') == "DEAD_LETTERED")
    assert sorted(runs) == list(range(20))


def test_outcome_that_can_never_be_stored_is_left_to_the_reaper_and_not_run_again(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    runs: list[int] = []
    ran_next = threading.Event()

    def handler(context: Any, payload: Any) -> None:
        runs.append(payload["n"])
        # The attempt row that the outcome needs is there already.
        look(
            "INSERT INTO runledger.job_attempts (job_id, claim_number, run_number, attempt,"
            " outcome, leased_at, finished_at, worker_id)"
            " VALUES (%s, 1, 1, 1, 'SUCCEEDED', now(), now(), 'other') RETURNING 1",
            context.job_id,
        )

    start_worker({"jobs.one": handler, "jobs.next": lambda *_: ran_next.set()})
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 1}))
    eventually(lambda: runs == [1])
    for _ in range(3):
        ran_next.clear()
        enqueue_job(runledger_pool, JobEnqueue("jobs.next", {}))
        assert ran_next.wait(30)

    assert runs == [1]
    assert look(STATUS, '{"n": 1}') == "LEASED"


@pytest.mark.parametrize("sqlstate", ["58030", "XX000", "53100", "40001"])
def test_passing_trouble_of_the_server_does_not_cost_a_success(
    sqlstate: str,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    with runledger_pool.connection() as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute(
            "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.status = 'SUCCEEDED' AND nextval('tries') <= 2 THEN"
            f" RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END IF; RETURN NEW; END $$"  # pyright: ignore[reportArgumentType]  # a literal of the test
        )
        connection.execute(
            "CREATE TRIGGER trouble BEFORE UPDATE ON runledger.job_queue"
            " FOR EACH ROW EXECUTE FUNCTION trouble()"
        )
    runs: list[int] = []
    start_worker({"jobs.one": lambda *_: runs.append(1)})

    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 1}))

    eventually(lambda: look(STATUS, '{"n": 1}') == "SUCCEEDED")
    assert runs == [1]


def test_row_that_refuses_its_heartbeat_costs_no_other_lease(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    with runledger_pool.connection() as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.status = 'LEASED' AND OLD.status = 'LEASED' AND NEW.payload ->> 'n' = '0'"
            " THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON runledger.job_queue"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    start_worker({"jobs.long": four_seconds}, lease_ttl_seconds=1)

    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.long", {"n": n}) for n in range(3)])

    eventually(lambda: look(SUCCEEDED) == 2)
    assert look("SELECT max(claim_number) FROM runledger.job_queue WHERE status = 'SUCCEEDED'") == 1


def test_settings_that_fail_once_stop_neither_heartbeats_nor_rounds(
    runledger_database: Any,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    failing = threading.Event()

    def conninfo() -> str:
        if failing.is_set():
            raise OSError("the password file is gone")
        return runledger_database.dsn

    with ConnectionPool(conninfo, min_size=1) as pool:
        worker = start_worker({"jobs.long": four_seconds}, pool=pool, lease_ttl_seconds=2)
        enqueue_job(runledger_pool, JobEnqueue("jobs.long", {"n": 1}))
        eventually(lambda: look(STATUS, '{"n": 1}') == "LEASED")
        failing.set()
        look(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'runledger %%'"
        )
        eventually(lambda: worker.health.status(LoopState.RUNNING).consecutive_errors > 0)
        failing.clear()

        eventually(lambda: look(STATUS, '{"n": 1}') == "SUCCEEDED")
        assert look("SELECT claim_number FROM runledger.job_queue") == 1
        worker.end()


def test_notification_of_a_cancel_that_did_not_happen_is_not_believed(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    started, release = threading.Event(), threading.Event()
    told: list[bool] = []

    def handler(context: Any, _payload: Any) -> JobCompletion:
        started.set()
        release.wait(30)
        told.append(context.cancelled.is_set())
        return JobCompletion.with_output("kept")

    # Beats are far apart, but for those that are brought forward.
    start_worker({"jobs.one": handler}, lease_ttl_seconds=600)
    eventually(lambda: look(MARKS) == 1)
    job_id = enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 1})).id
    assert started.wait(30)
    claimed_at = look(BEATEN_AT)

    look("SELECT pg_notify(%s, %s)::text", CANCEL_CHANNEL, str(job_id))
    eventually(lambda: look(BEATEN_AT) != claimed_at)
    release.set()

    eventually(lambda: bool(told))
    assert told == [False]
    eventually(lambda: look(STATUS, '{"n": 1}') == "SUCCEEDED")
    assert look("SELECT output #>> '{}' FROM runledger.job_queue") == "kept"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_client_encoding_of_the_pool_does_not_reach_the_engine(  # noqa: PLR0917  # fixtures
    encoding: str,
    runledger_database: Any,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    with ConnectionPool(
        runledger_database.dsn, min_size=1, kwargs={"client_encoding": encoding}
    ) as pool:
        worker = start_worker({"jobs.one": lambda *_: None}, pool=pool)
        enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"price": "5 €"}))

        eventually(lambda: look(SUCCEEDED) == 1)
        worker.end()


class _Unfinished(JobFailure):
    def __init__(self) -> None:
        pass


class _SlipperyError(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]  # the fault
        raise RuntimeError

    @property
    def __class__(self) -> type:  # type: ignore[override]  # the fault
        raise RuntimeError


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (_Unfinished, "job.handler_panic"),
        (_SlipperyError, "job.handler_panic"),
    ],
)
def test_failure_that_cannot_be_read_ends_its_job_and_not_the_worker(  # noqa: PLR0917  # fixtures
    make: Any,
    code: str,
    runledger_pool: ConnectionPool[Any],
    start_worker: Any,
    eventually: Eventually,
    look: Any,
) -> None:
    def handler(_context: Any, _payload: Any) -> None:
        raise make()

    worker = start_worker({"jobs.one": handler})
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 1}))

    eventually(lambda: look(STATUS, '{"n": 1}') == "DEAD_LETTERED")
    assert look("SELECT last_error_code FROM runledger.job_queue") == code
    assert worker.thread.is_alive()


def test_completion_that_was_never_initialised_ends_its_job_and_not_the_worker(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    worker = start_worker({"jobs.one": lambda *_: object.__new__(JobCompletion)})
    enqueue_job(runledger_pool, JobEnqueue("jobs.one", {"n": 1}))

    eventually(lambda: look("SELECT count(*) FROM runledger.job_attempts") == 1)
    assert worker.thread.is_alive()


def test_outcome_tried_apart_while_others_end_is_not_forgotten(
    runledger_pool: ConnectionPool[Any], start_worker: Any, eventually: Eventually, look: Any
) -> None:
    with runledger_pool.connection() as connection:
        connection.execute("CREATE SEQUENCE tries")
        # At first for the server's reasons, then for the outcome's own.
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.status = 'SUCCEEDED' AND NEW.payload ->> 'n' = '0' THEN"
            " IF nextval('tries') <= 6 THEN RAISE EXCEPTION USING ERRCODE = '42501'; END IF;"
            " RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON runledger.job_queue"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )

    def handler(context: Any, payload: Any) -> None:
        if payload["n"]:
            context.wait(0.005)

    start_worker({"jobs.one": handler}, max_global_concurrency=4)
    enqueue_jobs(runledger_pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(3_000)])

    eventually(lambda: look(STATUS, '{"n": 0}') == "DEAD_LETTERED")
    assert look("SELECT attempt FROM runledger.job_queue WHERE status = 'DEAD_LETTERED'") == 1
