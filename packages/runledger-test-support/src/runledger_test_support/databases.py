"""Databases that live for one test, cloned from one that was migrated once."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.abc import ConnParam
from psycopg.conninfo import make_conninfo

from runledger_core import UnavailableError, ValidationError
from runledger_postgres.migrations import migrate, migration_script

from .errors import BUDGET_EXHAUSTED, BUDGET_TOO_SMALL, ENVIRONMENT_INVALID
from .pooler import Pooler
from .server import DatabaseServer

BUDGET_VARIABLE: Final = "RUNLEDGER_TEST_DB_CONNECTION_BUDGET"
DEFAULT_BUDGET: Final = 64
PREPARED_AT: Final = 5
"""psycopg's default threshold, for a connection with a session of its own."""

_PREFIX_CHARACTERS: Final = 24
_BUDGET_SECONDS: Final = 30.0
_LEAVE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.001
_COUNTER: Final = itertools.count(1)
# Hosts and containers that share a server may share process ids.
_PROCESS_MARK: Final = secrets.token_hex(2)

TERMINATE_OTHERS: Final = """
SELECT pg_catalog.pg_terminate_backend(pid)
FROM pg_catalog.pg_stat_activity
WHERE datname = %s
"""


class TemporaryDatabase:
    """A database that is dropped after its test.

    Attributes:
        name: Of the database.
        dsn: Its URL, behind the session's pooler if there is one.
        direct_dsn: Its URL at the server itself.
        prepare_threshold: For pools and connections made with `dsn`: None behind a pooler.
    """

    def __init__(self, name: str, dsn: str, *, direct_dsn: str | None = None) -> None:
        self.name = name
        self.dsn = dsn
        self.direct_dsn: str = dsn if direct_dsn is None else direct_dsn
        self.prepare_threshold: int | None = PREPARED_AT if self.dsn == self.direct_dsn else None
        self._connections: list[psycopg.Connection[tuple[Any, ...]]] = []

    def connect(
        self, *, autocommit: bool = False, **parameters: ConnParam
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a new connection; it is closed with the database.

        Args:
            autocommit: As of psycopg.
            parameters: Connection parameters on top of the URL's, such as `options`.
        """
        return self._connect(
            self.dsn, parameters, autocommit=autocommit, prepare_threshold=self.prepare_threshold
        )

    def connect_directly(
        self, *, autocommit: bool = False, **parameters: ConnParam
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a new connection past the pooler, for what needs a session of its own.

        That is LISTEN, advisory locks of a session, settings that shall last, `backend_pid`,
        and prepared statements, which are kept here as psycopg does by itself.

        Args:
            autocommit: As of psycopg.
            parameters: Connection parameters on top of the URL's, such as `options`.
        """
        return self._connect(
            self.direct_dsn, parameters, autocommit=autocommit, prepare_threshold=PREPARED_AT
        )

    def close(self) -> None:
        """Close every connection that `connect` gave; a transaction in it is rolled back."""
        while self._connections:
            self._connections.pop().close()

    def _connect(
        self,
        dsn: str,
        parameters: Mapping[str, ConnParam],
        *,
        autocommit: bool,
        prepare_threshold: int | None,
    ) -> psycopg.Connection[tuple[Any, ...]]:
        connection = psycopg.connect(
            make_conninfo(dsn, **parameters),
            autocommit=autocommit,
            prepare_threshold=prepare_threshold,
        )
        self._connections.append(connection)
        return connection

    def __repr__(self) -> str:
        return f"TemporaryDatabase({self.name!r})"


class ConnectionBudget:
    """How many connections the tests of a process may have at once; threads wait for each other.

    Raises:
        ValidationError: `test_support.environment_invalid` if the variable is no positive number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = _limit_from_environment() if limit is None else limit
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def acquire(self, count: int, *, timeout_seconds: float = _BUDGET_SECONDS) -> Generator[None]:
        """Have so many connections for a block, once others have given back enough.

        Raises:
            ValidationError: `test_support.connection_budget_too_small` if it can never be had.
            UnavailableError: `test_support.connection_budget_exhausted` after the timeout.
        """
        if count > self._limit:
            raise ValidationError(
                BUDGET_TOO_SMALL,
                f"{count} connections are more than {BUDGET_VARIABLE} allows ({self._limit})",
                field=BUDGET_VARIABLE,
            )
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._used + count <= self._limit, timeout_seconds
            ):
                raise UnavailableError(
                    BUDGET_EXHAUSTED,
                    f"{self._used} of {self._limit} connections are in use; see {BUDGET_VARIABLE}",
                )
            self._used += count
        try:
            yield
        finally:
            with self._changed:
                self._used -= count
                self._changed.notify_all()


def database_name(prefix: str) -> str:
    """Return a new name: the prefix in lower case and plain characters, process, and a count."""
    plain = re.sub(r"[^a-z0-9]+", "_", prefix.lower()).strip("_") or "test"
    if plain[0].isdigit():
        plain = f"t_{plain}"
    plain = plain[:_PREFIX_CHARACTERS].rstrip("_")
    return f"{plain}_{os.getpid()}_{_PROCESS_MARK}_{next(_COUNTER)}"


@contextmanager
def migrated_template(server: DatabaseServer) -> Generator[str]:
    """Make a migrated database to clone, for a block; its name tells the migrations' hash.

    Raises:
        RunledgerError: What `migrate` raises.
    """
    digest = hashlib.sha256(migration_script().encode()).hexdigest()[:12]
    name = database_name(f"template_{digest}")
    with _created(server, name):
        with psycopg.connect(server.dsn(name), autocommit=True) as connection:
            migrate(connection)
        yield name


@contextmanager
def temporary_database(
    server: DatabaseServer,
    *,
    prefix: str = "test",
    template: str | None = None,
    pooler: Pooler | None = None,
) -> Generator[TemporaryDatabase]:
    """Make a database for a block: a clone of the template, or an empty one.

    Args:
        server: Where it is made, whatever the pooler.
        pooler: In front of that server.
    """
    name = database_name(prefix)
    with _created(server, name, template=template):
        direct_dsn = server.dsn(name)
        dsn = direct_dsn if pooler is None else pooler.dsn(direct_dsn)
        database = TemporaryDatabase(name, dsn, direct_dsn=direct_dsn)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def _created(server: DatabaseServer, name: str, *, template: str | None = None) -> Generator[None]:
    # Small databases are copied faster file by file than through the WAL.
    copy = "" if template is None else f" TEMPLATE {template} STRATEGY file_copy"
    server.execute(f"CREATE DATABASE {name}{copy}")
    try:
        yield
    finally:
        # DROP DATABASE looks for sessions every 100 ms; leaving takes them a millisecond.
        deadline = time.monotonic() + _LEAVE_SECONDS
        while server.execute(TERMINATE_OTHERS, name) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _limit_from_environment() -> int:
    text = os.environ.get(BUDGET_VARIABLE, "").strip()
    if not text:
        return DEFAULT_BUDGET
    if not text.isdecimal() or int(text) < 1:
        raise ValidationError(
            ENVIRONMENT_INVALID,
            f"{BUDGET_VARIABLE} must be a whole number above 0",
            field=BUDGET_VARIABLE,
        )
    return int(text)
