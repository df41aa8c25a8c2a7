"""Fixtures that several folders share: how much a test does, and how long it waits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

WAIT_SECONDS = 30.0


@pytest.fixture
def scaled() -> Callable[..., int]:
    """Chooses by RUNLEDGER_TEST_SIZE: the full number, or the one for every change."""
    is_full = os.environ.get("RUNLEDGER_TEST_SIZE", "ci") == "full"

    def choose(*, ci: int, full: int) -> int:
        return full if is_full else ci

    return choose


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds; fail after half a minute."""

    def wait(condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            pause.wait(0.01)

    return wait
