from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from runledger_runtime.engine import _Deadlines

SOON, NEVER = 0.01, 600.0
PATIENCE_SECONDS = 10


@pytest.fixture
def deadlines() -> Iterator[_Deadlines]:
    deadlines = _Deadlines()
    yield deadlines
    deadlines.close()


def test_overdue_block_is_called_back(deadlines: _Deadlines):
    called = threading.Event()

    with deadlines.after(SOON, called.set):
        assert called.wait(PATIENCE_SECONDS)


def test_block_that_ended_in_time_is_forgotten(deadlines: _Deadlines):
    with deadlines.after(NEVER, lambda: None):
        pass

    assert (deadlines._callbacks, deadlines._heap) == ({}, [])


def test_shorter_deadline_is_noticed_while_a_longer_one_is_waited_for(deadlines: _Deadlines):
    called = threading.Event()

    with deadlines.after(NEVER, called.set):
        until_waiting(deadlines)
        with deadlines.after(SOON, called.set):
            assert called.wait(PATIENCE_SECONDS)


def until_waiting(deadlines: _Deadlines) -> None:
    """Return as soon as the thread waits for the deadlines that it knows."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not vars(deadlines._changed)["_waiters"]:
        assert time.monotonic() < deadline
        pause.wait(0.001)
