"""The connection of a loop that makes passes: its own, remade when it is lost, waited for."""

import logging
from dataclasses import replace

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from runledger_runtime import loop_link
from runledger_runtime.reaper import run_reaper_loop
from runledger_runtime.scheduler import run_scheduler_loop
from runledger_test_support.proxy import FaultProxy, ProxyMode

from .._nameless import NamelessError
from ._watched_loop import RARELY, WatchedLoop

OFTEN = replace(RARELY, reaper_interval_seconds=1, schedule_poll_interval_seconds=1)


@pytest.fixture(params=["reaper", "scheduler"])
def loop(request):
    loops = {"reaper": run_reaper_loop, "scheduler": run_scheduler_loop}
    return WatchedLoop(request.param, loops[request.param])


def waits(loop, caplog):
    text = f"the {loop.name} waits for the database"
    return [record for record in caplog.records if record.getMessage() == text]


def test_stop_that_was_requested_before_opens_no_connection(loop):
    loop.stop.request()

    with loop.running(ConnectionPool("host=/nowhere", open=False)):
        pass

    assert loop.health.errors.empty()


def test_loop_uses_one_connection_of_its_own_and_closes_it(loop, runledger_database):
    opened = []

    class Recorded(psycopg.Connection):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            opened.append(self)

    pool = ConnectionPool(runledger_database.dsn, connection_class=Recorded, open=False)
    with loop.running(pool, OFTEN):
        loop.next_pass()
        loop.next_pass()

    assert [connection.closed for connection in opened] == [True]


def test_loop_outlives_the_loss_of_its_connection(loop, runledger_pool, runledger_database):
    with loop.running(runledger_pool, OFTEN):
        loop.next_pass()
        with runledger_database.connect_directly(autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        loop.next_error()
        loop.next_pass()

        assert loop.status.consecutive_errors == 0


def test_server_that_is_away_is_waited_for_and_logged_once(loop, runledger_database, caplog):
    caplog.set_level(logging.INFO)
    with FaultProxy(runledger_database.dsn) as proxy:
        proxy.set_mode(ProxyMode.REFUSE)
        pool = ConnectionPool(proxy.dsn, open=False)
        with loop.running(pool):
            for _ in range(3):
                loop.next_error()
            assert loop.status.last_pass_at is None
            assert loop.status.last_error == "db.unavailable: the database cannot be reached"

            proxy.set_mode(ProxyMode.PASS)
            loop.next_pass()

    (logged,) = waits(loop, caplog)
    assert logged.failures == 1
    assert "refused" in logged.reason
    assert logged.exc_info is None
    text = f"the {loop.name} goes on"
    (recovered,) = [record for record in caplog.records if record.getMessage() == text]
    assert recovered.failures >= 3


def test_frozen_link_is_noticed(loop, runledger_database, monkeypatch):
    # Half of it is for the answer to the cancel.
    monkeypatch.setattr(loop_link, "_PASS_SECONDS", 1.0)
    with FaultProxy(runledger_database.dsn) as proxy:
        pool = ConnectionPool(proxy.dsn, kwargs={"connect_timeout": 2}, open=False)
        with loop.running(pool, OFTEN):
            loop.next_pass()
            loop.next_pass()
            proxy.set_mode(ProxyMode.BLACKHOLE)
            loop.next_error()
            proxy.set_mode(ProxyMode.PASS)

            loop.next_pass()


@pytest.mark.parametrize(
    ("failure", "told"),
    [(LookupError("no password today"), "LookupError"), (NamelessError(), "object")],
    ids=["of a type", "of a type without a name"],
)
def test_settings_of_the_pool_that_fail_are_asked_again(
    loop, runledger_database, caplog, failure, told
):
    answers = [failure, failure, {}]

    def settings():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pool = ConnectionPool(runledger_database.dsn, kwargs=settings, open=False)
    with loop.running(pool):
        loop.next_pass()

    assert answers == []
    (logged,) = waits(loop, caplog)
    assert logged.exc_info is not None
    assert logged.error == told
