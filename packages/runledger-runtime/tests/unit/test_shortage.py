from __future__ import annotations

import threading
import time

import psycopg
import pytest

from runledger_runtime.errors import TooFewConnections
from runledger_runtime.health import LoopHealth, LoopState
from runledger_runtime.shortage import ConnectionShortage

NO_ROOM = psycopg.OperationalError("FATAL:  sorry, too many clients already")
AWAY = psycopg.OperationalError("connection refused")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the engine, as a list of one."""
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def health() -> LoopHealth:
    return LoopHealth("worker")


@pytest.mark.parametrize(
    "text",
    [
        "FATAL:  sorry, too many clients already",
        'FATAL:  too many connections for role "app"',
        'FATAL:  too many connections for database "app"',
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "FATAL:  no more connections allowed (max_client_conn)",
    ],
)
def test_every_limit_is_recognised(health: LoopHealth, text: str):
    shortage = ConnectionShortage(["pump", "listener"], health)

    shortage.failed("listener", psycopg.OperationalError(f"connection failed: {text}"))

    assert health.status(LoopState.RUNNING).missing_connections == ("listener",)
    assert shortage.verdict is None


def test_state_of_too_many_connections_counts_in_any_language(health: LoopHealth):
    shortage = ConnectionShortage(["pump"], health)

    shortage.failed("pump", psycopg.errors.TooManyConnections("schon zu viele"))

    assert health.status(LoopState.RUNNING).missing_connections == ("pump",)


def test_other_state_is_no_shortage_whatever_the_text_says(health: LoopHealth):
    shortage = ConnectionShortage(["pump"], health)

    shortage.failed("pump", psycopg.errors.CannotConnectNow("not yet: too many clients"))

    assert health.status(LoopState.RUNNING).missing_connections == ()


def test_server_of_another_language_is_taken_for_one_that_is_away(
    health: LoopHealth, clock: list[float]
):
    shortage = ConnectionShortage(["pump"], health)

    for _ in range(100):
        shortage.failed("pump", psycopg.OperationalError("FATAL:  tut mir leid, schon zu viele"))
        clock[0] += 15

    assert shortage.verdict is None


def test_minute_without_ever_getting_one_is_the_end(health: LoopHealth, clock: list[float]):
    told = threading.Event()
    shortage = ConnectionShortage(["pump", "listener"], health, on_verdict=told.set)
    shortage.opened("pump")

    shortage.failed("listener", NO_ROOM)
    clock[0] += 59.9
    shortage.failed("listener", NO_ROOM)
    assert shortage.verdict is None
    clock[0] += 0.1
    shortage.failed("listener", NO_ROOM)

    assert shortage.verdict == TooFewConnections(2, ("listener",))
    assert told.is_set()


def test_connection_that_was_there_once_is_waited_for(health: LoopHealth, clock: list[float]):
    shortage = ConnectionShortage(["pump"], health)
    shortage.opened("pump")

    for _ in range(100):
        shortage.failed("pump", NO_ROOM)
        clock[0] += 15

    assert shortage.verdict is None
    assert health.status(LoopState.RUNNING).missing_connections == ("pump",)
    shortage.opened("pump")
    assert health.status(LoopState.RUNNING).missing_connections == ()


def test_server_that_was_away_meanwhile_starts_the_minute_anew(
    health: LoopHealth, clock: list[float]
):
    shortage = ConnectionShortage(["pump"], health)

    shortage.failed("pump", NO_ROOM)
    clock[0] += 59
    shortage.failed("pump", AWAY)
    assert health.status(LoopState.RUNNING).missing_connections == ()
    clock[0] += 59
    shortage.failed("pump", NO_ROOM)

    assert shortage.verdict is None
