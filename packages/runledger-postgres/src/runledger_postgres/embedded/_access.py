"""How users reach a running server."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import psycopg

from ._errors import NOT_STARTED, PASSWORD_MISSING, START_FAILED, EmbeddedServerError
from ._files import Home
from ._launch import SUPERUSER
from ._postmaster import Postmaster

_CONNECT_SECONDS: Final = 10


def server_url(home: Home, server: Postmaster, database: str) -> str:
    """Return the URL of a database, password included.

    Raises:
        EmbeddedServerError: `embedded.password_missing`, `embedded.not_started`.
    """
    if server.port is None:
        raise not_started()
    try:
        password = home.password.read_text()
    except OSError as error:
        raise EmbeddedServerError(
            PASSWORD_MISSING,
            f"the password file {home.password} is missing; restore it or remove the directory",
        ) from error
    return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{server.port}/{quote(database, safe='')}"


def ask_version(url: str) -> str:
    """Return the version of the server, such as "18.6"; proves that our password is its.

    Raises:
        EmbeddedServerError: `embedded.start_failed` if it refuses us.
    """
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=_CONNECT_SECONDS) as connection:
            row = connection.execute("SELECT current_setting('server_version')").fetchone()
    except psycopg.Error as error:
        raise EmbeddedServerError(
            START_FAILED,
            "the server runs but refuses our connection",
            internal_message=str(error),
        ) from error
    # Distributions add their own words: "15.8 (Debian 15.8-1)".
    return str(row[0]).split()[0] if row else ""


def not_started() -> EmbeddedServerError:
    """Return the error of a server that is not, or no longer, there."""
    return EmbeddedServerError(NOT_STARTED, "the embedded server is not started")
