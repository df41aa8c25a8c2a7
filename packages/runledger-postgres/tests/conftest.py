"""Fixtures that several modules share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

_DEADLINE_SECONDS = 60


class Observer:
    """Sees what is committed, and who waits, from a connection of its own."""

    def __init__(self, connection) -> None:
        self._connection = connection

    def value(self, query: str, **parameters: object) -> Any:
        row = self._connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def jobs(self) -> int:
        return self.value("SELECT count(*) FROM runledger.job_queue")

    def until(self, query: str, **parameters: object) -> Any:
        """Ask until the answer is true."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not (answer := self.value(query, **parameters)):
            assert time.monotonic() < deadline, f"never came true: {query}"
        return answer

    def until_blocked(self, pid: int, *, by: int | None = None) -> None:
        blockers = self.until("SELECT nullif(pg_blocking_pids(%(pid)s::int4), '{}')", pid=pid)
        assert by is None or blockers == [by]

    def until_gone(self, *pids: int) -> None:
        self.until(
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY (%(pids)s)",
            pids=list(pids),
        )


@pytest.fixture
def observer(runledger_database) -> Observer:
    return Observer(runledger_database.connect(autocommit=True))


@pytest.fixture
def scaled() -> Callable[..., int]:
    """Chooses by RUNLEDGER_TEST_SIZE: the full number, or the one for every change."""
    is_full = os.environ.get("RUNLEDGER_TEST_SIZE", "ci") == "full"

    def choose(*, ci: int, full: int) -> int:
        return full if is_full else ci

    return choose
