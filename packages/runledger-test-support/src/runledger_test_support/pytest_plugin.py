"""Fixtures: a server per session, a database per test.

Loaded by pytest itself. Nothing is imported or started before a test asks for a fixture; the
imports wait also because coverage tools start after plugins are loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg
    from psycopg_pool import ConnectionPool

    from .databases import ConnectionBudget, TemporaryDatabase
    from .pooler import Pooler
    from .server import DatabaseServer

_POOL_CONNECTIONS = 8


@pytest.fixture(scope="session")
def runledger_server_settings() -> Mapping[str, str]:
    """Settings of a server that is started for the session; override it to change them."""
    from .server import DEFAULT_SETTINGS  # noqa: PLC0415  # See above.

    return DEFAULT_SETTINGS


@pytest.fixture(scope="session")
def runledger_server(runledger_server_settings: Mapping[str, str]) -> Generator[DatabaseServer]:
    """A PostgreSQL server for the session of this process."""
    from .server import provide_server  # noqa: PLC0415  # See above.

    with provide_server(runledger_server_settings) as server:
        yield server


@pytest.fixture(scope="session")
def runledger_pooler(runledger_server: DatabaseServer) -> Generator[Pooler | None]:
    """What pools and connections go through: `RUNLEDGER_TEST_POOLER`, nothing if unset."""
    from .pooler import is_pooler_wanted, provide_pooler  # noqa: PLC0415  # See above.

    if not is_pooler_wanted():
        yield None
        return
    with provide_pooler(runledger_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def runledger_template(runledger_server: DatabaseServer) -> Generator[str]:
    """The name of a migrated database that tests clone; made once per session."""
    from .databases import migrated_template  # noqa: PLC0415  # See above.

    with migrated_template(runledger_server) as name:
        yield name


@pytest.fixture(scope="session")
def runledger_connection_budget() -> ConnectionBudget:
    """How many connections pools may have at once: `RUNLEDGER_TEST_DB_CONNECTION_BUDGET`, 64."""
    from .databases import ConnectionBudget  # noqa: PLC0415  # See above.

    return ConnectionBudget()


@pytest.fixture
def runledger_database(
    request: pytest.FixtureRequest,
    runledger_server: DatabaseServer,
    runledger_pooler: Pooler | None,
    runledger_template: str,
) -> Generator[TemporaryDatabase]:
    """A migrated database of this test alone; its `connect` gives connections."""
    from .databases import temporary_database  # noqa: PLC0415  # See above.

    with temporary_database(
        runledger_server,
        prefix=_prefix(request),
        template=runledger_template,
        pooler=runledger_pooler,
    ) as database:
        yield database


@pytest.fixture
def runledger_unmigrated_database(
    request: pytest.FixtureRequest,
    runledger_server: DatabaseServer,
    runledger_pooler: Pooler | None,
) -> Generator[TemporaryDatabase]:
    """An empty database of this test alone."""
    from .databases import temporary_database  # noqa: PLC0415  # See above.

    with temporary_database(
        runledger_server, prefix=_prefix(request), pooler=runledger_pooler
    ) as database:
        yield database


@pytest.fixture
def runledger_pool(
    runledger_database: TemporaryDatabase, runledger_connection_budget: ConnectionBudget
) -> Generator[ConnectionPool[psycopg.Connection[tuple[Any, ...]]]]:
    """A pool of up to 8 connections to the database of this test."""
    from runledger_postgres import connect_pool  # noqa: PLC0415  # See above.

    with (
        # One more than the pool has: a test usually looks on from outside.
        runledger_connection_budget.acquire(_POOL_CONNECTIONS + 1),
        connect_pool(
            runledger_database.dsn,
            max_size=_POOL_CONNECTIONS,
            prepare_threshold=runledger_database.prepare_threshold,
        ) as pool,
    ):
        yield pool


def _prefix(request: pytest.FixtureRequest) -> str:
    name = getattr(request.node, "originalname", None) or request.node.name
    return str(name).removeprefix("test_")
