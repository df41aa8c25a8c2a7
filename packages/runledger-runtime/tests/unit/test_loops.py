"""The loops by themselves, as for a process layout of one's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import psycopg
import pytest
from psycopg_pool import ConnectionPool

import runledger_runtime
from runledger_core import ValidationError
from runledger_postgres import require_own_pool
from runledger_runtime import (
    InvalidConfig,
    JobRegistry,
    JobsConfig,
    LoopExit,
    LoopHealth,
    LoopState,
    RuntimeLoopExit,
    StopToken,
    TooFewConnections,
    run_reaper_loop,
    run_scheduler_loop,
    run_worker_loop,
    shortage,
)

CONFIG: Final = JobsConfig("test", poll_interval_ms=25)
OWN_SETTINGS: Final = {
    "worker": "poll_interval_ms",
    "scheduler": "schedule_poll_interval_seconds",
    "reaper": "reaper_interval_seconds",
}
CONNECTIONS: Final = {"worker": 4, "scheduler": 1, "reaper": 1}

Run = Callable[..., RuntimeLoopExit]


def run_one_type(
    pool: ConnectionPool[Any],
    config: JobsConfig,
    stop: StopToken,
    *,
    health: LoopHealth | None = None,
) -> RuntimeLoopExit:
    registry = JobRegistry()
    registry.register_function("jobs.one", lambda _context, _payload: None)
    return run_worker_loop(pool, registry, config, stop, health=health)


LOOPS: Final[dict[str, Run]] = {
    "worker": run_one_type,
    "scheduler": run_scheduler_loop,
    "reaper": run_reaper_loop,
}


class FullServer(psycopg.Connection[Any]):
    """Every connection is refused, as by a server that has none left."""

    @classmethod
    def connect(cls, *_: Any, **__: Any) -> FullServer:
        raise psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already")


class StopAtTheRefusal(LoopHealth):
    """Asks for a stop while a refusal is counted: just before the verdict."""

    def __init__(self, name: str, stop: StopToken) -> None:
        super().__init__(name)
        self._stop = stop

    def connections_missing(self, names: Any) -> None:
        super().connections_missing(names)
        self._stop.request("test")


@pytest.fixture
def away() -> ConnectionPool[Any]:
    # Never opened; nobody listens there. Only its settings are looked at.
    return ConnectionPool("postgresql://postgres@127.0.0.1:1/nothing", open=False)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> ConnectionPool[Any]:
    # The first refusal is the verdict already.
    monkeypatch.setattr(shortage, "_SHORTAGE_SECONDS", 0.0)
    return ConnectionPool(connection_class=FullServer, open=False)


def test_the_package_exports_every_loop():
    exported = set(runledger_runtime.__all__)

    assert {f"run_{name}_loop" for name in LOOPS} <= exported


@pytest.mark.parametrize("name", LOOPS)
def test_loop_refuses_only_its_own_settings_and_without_a_connection(
    name: str, away: ConnectionPool[Any]
):
    stop = StopToken()
    stop.request()
    own = replace(CONFIG, **{OWN_SETTINGS[name]: 0})
    foreign = replace(CONFIG, **{field: 0 for loop, field in OWN_SETTINGS.items() if loop != name})

    refused = LOOPS[name](away, own, stop)
    accepted = LOOPS[name](away, foreign, stop)

    assert isinstance(refused, InvalidConfig)
    assert refused.error.field == OWN_SETTINGS[name]
    # With the stop set already it returns without a query: nobody listens at that address.
    assert accepted is LoopExit.SHUTDOWN


@pytest.mark.parametrize("name", LOOPS)
def test_loop_that_starts_with_the_stop_set_asks_for_no_connection(name: str):
    stop, health, connects = StopToken(), LoopHealth(name), list[object]()
    stop.request()

    class Counted(psycopg.Connection[Any]):
        @classmethod
        def connect(cls, *arguments: Any, **_: Any) -> Counted:
            connects.append(arguments)
            raise psycopg.OperationalError("connection failed")

    pool = ConnectionPool(connection_class=Counted, open=False)

    assert LOOPS[name](pool, CONFIG, stop, health=health) is LoopExit.SHUTDOWN
    assert connects == []
    assert pool.closed
    assert health.status(LoopState.STOPPED).last_error is None


@pytest.mark.parametrize("name", LOOPS)
def test_loop_that_waits_for_its_server_is_stopped_by_another_thread(
    name: str, away: ConnectionPool[Any]
):
    stop, has_failed = StopToken(), threading.Event()
    exits: list[RuntimeLoopExit] = []

    class Watched(LoopHealth):
        def failed(self, error: BaseException) -> None:
            super().failed(error)
            has_failed.set()

    run = threading.Thread(
        target=lambda: exits.append(LOOPS[name](away, CONFIG, stop, health=Watched(name)))
    )
    run.start()
    assert has_failed.wait(30)

    stop.request("test")

    run.join(30)
    assert exits == [LoopExit.SHUTDOWN]


@pytest.mark.parametrize("name", LOOPS)
def test_loop_that_never_gets_its_connections_tells_how_many_it_needs(
    name: str, full: ConnectionPool[Any]
):
    ended = LOOPS[name](full, CONFIG, StopToken())

    assert isinstance(ended, TooFewConnections)
    assert ended.needed == CONNECTIONS[name]
    assert ended.missing


@pytest.mark.parametrize("name", LOOPS)
def test_stop_before_the_verdict_of_too_few_connections_ends_as_a_shutdown(
    name: str, full: ConnectionPool[Any]
):
    stop = StopToken()

    ended = LOOPS[name](full, CONFIG, stop, health=StopAtTheRefusal(name, stop))

    assert stop.is_requested
    assert ended is LoopExit.SHUTDOWN


@pytest.mark.parametrize("name", LOOPS)
def test_loop_refuses_the_pool_of_a_parent_process(
    name: str, full: ConnectionPool[Any], monkeypatch: pytest.MonkeyPatch
):
    require_own_pool(full)
    child = 1
    monkeypatch.setattr("os.getpid", lambda: child)

    with pytest.raises(ValidationError) as refused:
        LOOPS[name](full, CONFIG, StopToken())

    assert refused.value.code == "db.forked"
