"""A database whose clock is set by the test."""

from __future__ import annotations

import pytest

from runledger_test_support.databases import TemporaryDatabase

from ._scheduling import DatabaseClock


@pytest.fixture
def clock(runledger_database: TemporaryDatabase) -> DatabaseClock:
    """The clock of the test's database; it stands still. To be asked for before a pool."""
    return DatabaseClock(runledger_database)
