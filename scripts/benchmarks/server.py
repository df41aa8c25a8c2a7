"""The server of the benchmark, its databases, and what it counts."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from runledger_core import JobDefinitionSpec
from runledger_postgres import migrate, sync_job_definitions
from runledger_postgres.embedded import EmbeddedServer

from . import by_hand, by_hand_workflows
from .model import Fill
from .ours import JOB_TYPE, OTHER_JOB_TYPE

# A checkpoint amid a run would slow it and write full-page images anew.
SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_connections": "200",
    "shared_preload_libraries": "pg_stat_statements",
}
# Not at the start: what is given there cannot be changed later.
TIMING: Final = {"full_page_writes": "on", "pg_stat_statements.track": "none"}
COUNTING: Final = {"full_page_writes": "off", "pg_stat_statements.track": "top"}
_TEMPLATE: Final = "benchmark_template"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RELOAD_SECONDS: Final = 10.0

# Without BEGIN and COMMIT: of those that are prepared it counts the first only.
COUNT_STATEMENTS: Final = """
SELECT coalesce(sum(s.calls), 0)::int8
FROM pg_stat_statements AS s
JOIN pg_database AS d ON d.oid = s.dbid
WHERE d.datname = %(database)s AND s.query !~* '^(begin|commit)'
"""


@dataclass(frozen=True)
class Counters:
    """What the server has used up to an instant."""

    wal_bytes: int
    cpu_seconds: float
    statements: int


class BenchmarkServer:
    """A server with databases that live for one run, cloned from filled templates."""

    def __init__(self, dsn: str, embedded: EmbeddedServer, *, scale: float) -> None:
        """Use a server that runs.

        Args:
            dsn: A database that is not measured.
            embedded: The server.
            scale: Share of the full size of every fill.
        """
        self._embedded = embedded
        self._scale = scale
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._postmaster = _parent(self._admin.info.backend_pid)
        self._templates: set[str] = set()
        self._execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        self._set_all(TIMING)
        self._make_template()

    def close(self) -> None:
        """Close the connection; the server is the caller's."""
        self._admin.close()

    def rows_of(self, fill: Fill) -> int:
        """Return how many rows a fill has at this scale."""
        # A multiple of ten: tenths are told.
        return max(min(fill.rows, 2_000), int(fill.rows * self._scale) // 10 * 10)

    @contextmanager
    def database(self, fill: Fill) -> Generator[tuple[str, str]]:
        """Make a database for one run; yield its name and URL."""
        name = "benchmark_run"
        self._clone(name, self._filled(fill))
        try:
            yield name, self._embedded.dsn(name)
        finally:
            self._drop(name)

    def forget_fills(self) -> None:
        """Drop the filled templates, which may be large."""
        for name in self._templates:
            self._drop(name)
        self._templates.clear()

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count statements and write no full-page images for a block."""
        self._set_all(COUNTING)
        try:
            yield
        finally:
            self._set_all(TIMING)

    def counters(self, database: str) -> Counters:
        """Return what was used until now."""
        wal = self._admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        statements = self._admin.execute(COUNT_STATEMENTS, {"database": database}).fetchone()
        return Counters(
            int(wal[0] if wal else 0),
            self._cpu_seconds(),
            int(statements[0] if statements else 0),
        )

    def commits(self, database: str) -> int:
        """Return the commits of a database; those of clients that have ended are all in it."""
        row = self._admin.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", [database]
        ).fetchone()
        return int(row[0]) if row else 0

    def wait_for_disconnect(self, database: str) -> None:
        """Wait until nobody is connected: a server process counts what it did when it ends."""
        deadline = time.monotonic() + _RELOAD_SECONDS
        while time.monotonic() < deadline:
            row = self._admin.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = %s AND backend_type = 'client backend'",
                [database],
            ).fetchone()
            if row == (0,):
                return
            time.sleep(0.02)

    def description(self) -> dict[str, str]:
        """Return version and settings."""
        row = self._admin.execute("SHOW server_version").fetchone()
        return {"server_version": str(row[0]) if row else "", **SETTINGS, **TIMING}

    def _cpu_seconds(self) -> float:
        """Sum up the postmaster, its children, and those that have ended."""
        ticks = sum(_stat(self._postmaster)[11:15])
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children")
        for child in children.read_text("ascii").split():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(_stat(int(child))[11:13])
        return ticks / _TICKS

    def _make_template(self) -> None:
        self._clone(_TEMPLATE, "template1")
        with psycopg.connect(self._embedded.dsn(_TEMPLATE), autocommit=True) as connection:
            migrate(connection)
            types = (JOB_TYPE, OTHER_JOB_TYPE)
            sync_job_definitions(connection, [JobDefinitionSpec(name) for name in types])
            connection.execute(by_hand.SCHEMA)
            connection.execute(by_hand_workflows.SCHEMA)

    def _filled(self, fill: Fill) -> str:
        if not fill.statements:
            return _TEMPLATE
        name = f"benchmark_{fill.name}"
        if name in self._templates:
            return name
        self._clone(name, _TEMPLATE)
        self._templates.add(name)
        with psycopg.connect(self._embedded.dsn(name), autocommit=True) as connection:
            for statement in fill.statements:
                connection.execute(statement, {"rows": self.rows_of(fill)})
            connection.execute("VACUUM (ANALYZE)")
        return name

    def _clone(self, name: str, template: str) -> None:
        self._drop(name)
        # By file: its checkpoint is also where every run starts.
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )

    def _drop(self, name: str) -> None:
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} (FORCE)").format(sql.Identifier(name)))

    def _set_all(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            self._execute(
                sql.SQL("ALTER SYSTEM SET {} TO {}").format(
                    sql.Identifier(*name.split(".")), sql.Literal(value)
                )
            )
        self._execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + _RELOAD_SECONDS
        while not self._has(settings) and time.monotonic() < deadline:
            time.sleep(0.02)
        # The checkpointer decides about the images; after this it has read the setting too.
        self._execute("CHECKPOINT")

    def _has(self, settings: Mapping[str, str]) -> bool:
        rows = self._admin.execute(
            "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [list(settings)]
        ).fetchall()
        return dict(rows) == settings

    def _execute(self, statement: LiteralString | sql.Composed) -> None:
        self._admin.execute(statement)


@contextmanager
def benchmark_server(
    *, bin_dir: str | None, parent: str | None, scale: float
) -> Generator[BenchmarkServer]:
    """Start a server in a folder that is removed with it."""
    with EmbeddedServer.temporary(bin_dir=bin_dir, settings=SETTINGS, parent=parent) as embedded:
        server = BenchmarkServer(embedded.dsn(), embedded, scale=scale)
        try:
            yield server
        finally:
            server.close()


def _parent(pid: int) -> int:
    return _stat(pid)[1]


def _stat(pid: int) -> list[int]:
    # After the name, which may hold anything: state, parent, ...; the state is no number.
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return [0, *map(int, fields[1:])]
