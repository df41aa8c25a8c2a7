"""Too few connections: at the server, in the user's pool, or all taken by handlers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from _faults import SUCCEEDED, Outside, define, eventually, registry_of, supervised
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runledger_core import JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, enqueue_jobs
from runledger_runtime import JobsConfig, Supervisor, TooFewConnectionsError, shortage
from runledger_test_support import TemporaryDatabase

TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runledger %%'
"""
GRANTS = """
GRANT USAGE ON SCHEMA runledger TO {0};
GRANT ALL ON ALL TABLES IN SCHEMA runledger TO {0};
GRANT ALL ON ALL SEQUENCES IN SCHEMA runledger TO {0};
"""


class LimitedRole:
    """A role that may have so many connections."""

    def __init__(self, database: TemporaryDatabase) -> None:
        self.admin = database.connect_directly(autocommit=True)
        name = f"limited_{os.getpid()}"
        self._name = sql.Identifier(name)
        self.admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(self._name))
        self.admin.execute(sql.SQL(GRANTS).format(self._name))
        self.dsn = make_conninfo(database.direct_dsn, user=name, password="x")

    def limit(self, count: int) -> None:
        """Allow so many connections from now on; -1 for any number."""
        alter = sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}")
        self.admin.execute(alter.format(self._name, count))

    def drop(self) -> None:
        self.admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(self._name))


@pytest.fixture
def role(runledger_database: TemporaryDatabase) -> Iterator[LimitedRole]:
    role = LimitedRole(runledger_database)
    yield role
    role.drop()


def missing(running: Supervisor) -> dict[str, tuple[str, ...]]:
    return {loop.name: loop.missing_connections for loop in running.health().loops}


@pytest.mark.parametrize("limit", [1, 5])
def test_server_that_never_has_room_is_fatal_and_the_number_is_named(
    limit: int, role: LimitedRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {"worker": 4, "scheduler": 1, "reaper": 1}
    monkeypatch.setattr(shortage, "_SHORTAGE_SECONDS", 1.0)
    define(role.admin, "jobs.one")
    role.limit(limit)
    with connect_pool(role.dsn, min_size=1, max_size=1) as pool:
        pool.wait()
        config = JobsConfig("worker-1", poll_interval_ms=200)
        registry = registry_of({"jobs.one": lambda *_: None})
        running = Supervisor.builder(pool, config).with_registry(registry).build()
        eventually(lambda: any(missing(running).values()))
        with pytest.raises(TooFewConnectionsError) as fatal:
            running.join()

    assert fatal.value.code == "supervisor.too_few_connections"
    assert fatal.value.needed == needed[fatal.value.task]
    assert fatal.value.missing


def test_shortage_is_named_and_waited_for_at_the_start_and_in_mid_run(
    role: LimitedRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(role.admin, "jobs.one")
    outside = Outside(role.admin)
    role.limit(1)
    with connect_pool(role.dsn, min_size=1, max_size=1) as pool:
        pool.wait()
        with supervised(pool, {"jobs.one": lambda *_: None}) as running:
            enqueue_job(pool, JobEnqueue("jobs.one", {}))
            eventually(lambda: "pump" in missing(running)["worker"])
            eventually(lambda: missing(running)["reaper"] == ("reaper",))
            assert running.health().is_healthy

            role.limit(-1)
            eventually(lambda: outside.value(SUCCEEDED) == 1)
            eventually(lambda: not any(missing(running).values()))
            eventually(lambda: outside.backend("sleep marks"))
            # All were had once: from now on no shortage is fatal.
            monkeypatch.setattr(shortage, "_SHORTAGE_SECONDS", 0.2)
            role.limit(1)
            assert outside.value(TERMINATE) >= 5
            eventually(lambda: len(missing(running)["worker"]) >= 3)
            eventually(lambda: missing(running)["reaper"] == ("reaper",))
            enqueue_job(pool, JobEnqueue("jobs.one", {}))
            threading.Event().wait(1)

            role.limit(-1)
            eventually(lambda: outside.value(SUCCEEDED) == 2)
            eventually(lambda: not any(missing(running).values()))


def test_pool_of_one_connection_is_enough_for_every_handler(
    runledger_database: TemporaryDatabase,
) -> None:
    outside = Outside(runledger_database.connect_directly(autocommit=True))

    def use(context: Any, payload: Any) -> None:
        with context.connection() as connection:
            connection.execute("SELECT 1")
        context.progress(payload["n"], 100)
        context.log("INFO", "ran")

    threshold = runledger_database.prepare_threshold
    with connect_pool(runledger_database.dsn, max_size=1, prepare_threshold=threshold) as pool:
        define(pool, "jobs.one")
        with supervised(pool, {"jobs.one": use}, max_global_concurrency=8):
            enqueue_jobs(pool, [JobEnqueue("jobs.one", {"n": n}) for n in range(100)])
            eventually(lambda: outside.value(SUCCEEDED) == 100)

    assert outside.value("SELECT max(claim_number) FROM runledger.job_queue") == 1


def test_handlers_that_drain_the_pool_for_three_leases_keep_theirs(
    runledger_database: TemporaryDatabase,
) -> None:
    outside = Outside(runledger_database.connect_directly(autocommit=True))
    drained = threading.Semaphore(0)
    ttl_seconds = 1

    def drain(context: Any, _payload: Any) -> None:
        with context.connection() as connection:
            drained.release()
            connection.execute("SELECT pg_sleep(%s)", [3 * ttl_seconds])

    handlers: dict[str, Callable[[Any, Any], Any]] = {
        "jobs.drain": drain,
        "jobs.plain": lambda *_: None,
    }
    threshold = runledger_database.prepare_threshold
    with (
        connect_pool(runledger_database.dsn, max_size=2, prepare_threshold=threshold) as pool,
        supervised(pool, handlers, lease_ttl_seconds=ttl_seconds),
    ):
        define(pool, *handlers)
        enqueue_jobs(pool, [JobEnqueue("jobs.drain", {})] * 2)
        for _ in range(2):
            assert drained.acquire(timeout=30)
        with psycopg.connect(runledger_database.direct_dsn, autocommit=True) as other:
            enqueue_jobs(other, [JobEnqueue("jobs.plain", {})] * 10)
        eventually(lambda: outside.value(SUCCEEDED) >= 10)
        assert pool.get_stats()["pool_available"] == 0
        eventually(lambda: outside.value(SUCCEEDED) == 12)

    assert outside.value("SELECT max(claim_number) FROM runledger.job_queue") == 1
