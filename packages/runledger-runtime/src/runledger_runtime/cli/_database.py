"""Where the database is: the options that all verbs share, and connecting with a clear answer."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict

from runledger_core import (
    NotFoundError,
    RunledgerError,
    UnavailableError,
    ValidationError,
    visible_text,
)
from runledger_postgres import ensure_schema_compatible
from runledger_postgres.embedded import EmbeddedServer

from ._errors import CommandFailure
from ._options import Function

_VARIABLE: Final = "DATABASE_URL"
_CONNECT_SECONDS: Final = 10

_UNKNOWN_HOST: Final = "translate host name"

# libpq's own words are not shown: of a URL with an unescaped password they repeat its pieces as
# host or port. In order; the first that fits counts.
_PROBLEMS: Final = (
    (
        "authentication failed|no password supplied|pg_hba.conf|role .* does not exist",
        "the server refuses this user or password",
        "check user and password of the connection string",
    ),
    (
        "database .* does not exist",
        "the server has no such database",
        "create it (createdb NAME), or check the name in the connection string",
    ),
    (
        "Connection refused|No such file or directory",
        "connection refused: no server listens there",
        "start the server, or check host and port of the connection string",
    ),
    (
        f"resolve host|{_UNKNOWN_HOST}|Name or service not known",
        "the host name cannot be resolved",
        "check the host of the connection string; @ or / in a password is written %40 or %2F",
    ),
    ("timeout expired|timed out", "the server does not answer", "check host, port and firewalls"),
    (
        "too many clients|connection slots|too many connections",
        "the server has no free connection",
        "close others, or raise max_connections",
    ),
    (
        "SSL|certificate",
        "no encrypted connection could be made",
        "check sslmode and the certificates",
    ),
    (
        "starting up|shutting down|recovery",
        "the server starts or stops just now",
        "try again in a moment",
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The database of a verb, not connected to yet."""

    url: str | None
    embedded: Path | None

    @property
    def is_given(self) -> bool:
        """Whether there is one, by option or environment."""
        return self.embedded is not None or bool(self.url)

    @contextmanager
    def dsn(self, *, may_create: bool = False) -> Generator[str]:
        """Return the connection string; an embedded server runs for the length of the block.

        Args:
            may_create: Whether the embedded server's directory may be new.
        """
        if self.embedded is None:
            yield _checked(self.url)
            return
        if not may_create and not self.embedded.is_dir():
            raise NotFoundError(
                "cli.embedded_directory_missing",
                f"the directory {self.embedded} does not exist",
            )
        with embedded_server(self.embedded) as server:
            yield server.dsn()

    @contextmanager
    def connect(
        self, *, may_create: bool = False, checks_schema: bool = True
    ) -> Generator[psycopg.Connection]:
        """Open an autocommit connection for the length of the block.

        Args:
            may_create: Whether the embedded server's directory may be new.
            checks_schema: Refuse a database without this version's schema.
        """
        with self.dsn(may_create=may_create) as dsn, closing(connect(dsn)) as connection:
            if checks_schema:
                ensure_schema_compatible(connection)
            yield connection


def database_options(function: Function) -> Function:
    """Add --database-url and --embedded; the function gets them as `target`."""

    def parse(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        del parameter
        embedded = ctx.params.pop("embedded", None)
        if value is not None and embedded is not None:
            message = "give --database-url or --embedded, not both"
            raise click.UsageError(message)
        url = None if embedded is not None else value or os.environ.get(_VARIABLE)
        ctx.params["target"] = Target(url, embedded)
        return value

    embedded = click.option(
        "--embedded",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        is_eager=True,
        help="Use the embedded server of a folder; it is started if it does not run.",
    )
    url = click.option(
        "--database-url",
        metavar="URL",
        expose_value=False,
        callback=parse,
        help="PostgreSQL URL or keywords; without it the environment's DATABASE_URL.",
    )
    return embedded(url(function))


def connect(dsn: str) -> psycopg.Connection:
    """Open an autocommit connection, or say in a sentence why there is none."""
    settings: dict[str, Any] = {"fallback_application_name": "runledger"}
    if "connect_timeout" not in conninfo_to_dict(dsn) and "PGCONNECT_TIMEOUT" not in os.environ:
        settings["connect_timeout"] = _CONNECT_SECONDS
    try:
        return psycopg.connect(dsn, autocommit=True, **settings)
    except psycopg.Error as error:
        raise _connection_failure(str(error)) from error
    except UnicodeError as error:
        # Python encodes the host; what no name can be ends there.
        raise _connection_failure(_UNKNOWN_HOST) from error


def _connection_failure(text: str) -> CommandFailure:
    for pattern, problem, next_step in _PROBLEMS:
        if re.search(pattern, text):
            return CommandFailure(UnavailableError("db.unavailable", problem), next_step=next_step)
    return CommandFailure(
        UnavailableError("db.unavailable", "the database cannot be reached"),
        next_step="check the connection string, for instance with psql",
    )


@contextmanager
def embedded_server(directory: Path) -> Generator[EmbeddedServer]:
    """Start or reuse the server of a folder for the length of the block."""

    def tell(sentence: str) -> None:
        click.echo(f"note: {visible_text(sentence)}", err=True)

    with EmbeddedServer(directory, on_notice=tell) as server:
        yield server


def _checked(url: str | None) -> str:
    if not url or not url.strip():
        raise ValidationError("config.database_url_missing", "no database is given")
    try:
        conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        # Without its cause: the driver repeats the string. Bytes that are no UTF-8 come as
        # surrogates, which cannot be encoded for it.
        refused: RunledgerError = ValidationError(
            "config.database_url_invalid", "the connection string cannot be read"
        )
        raise refused from None
    return url
