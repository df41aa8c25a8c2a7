"""Databases that know the type `test.job`, and threads for calls that wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_test_support import TemporaryDatabase

DEFINE = "INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')"


@pytest.fixture
def database(runledger_database: TemporaryDatabase) -> TemporaryDatabase:
    with runledger_database.connect() as connection:
        connection.execute(DEFINE)
    return runledger_database


@pytest.fixture
def pool(runledger_pool: ConnectionPool[Any]) -> ConnectionPool[Any]:
    with runledger_pool.connection() as connection:
        connection.execute(DEFINE)
    return runledger_pool


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait for a lock."""
    with ThreadPoolExecutor(max_workers=8) as executor:
        yield executor
