"""A connection pool with sensible defaults."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from runledger_core import ErrorCategory, ValidationError, check_int, check_text, codes, is_kind
from runledger_core.limits import INT32_MAX

from ._fork import require_own_pool
from .errors import QueryError, refusal

DATABASE_URL: Final = "DATABASE_URL"

# PostgreSQL's own bound of max_connections.
_MOST_CONNECTIONS: Final = 262_143

# psycopg_pool doubles its waits for this long before it starts anew: with its own five minutes, a
# server that came back would go unnoticed for two.
_RECONNECT_SECONDS: Final = 10
# A link that froze ends in an error within half a minute, not after the kernel's quarter hour.
_LINK_DEFAULTS: Final[dict[str, int | str]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "runledger",
}


class _Pool(ConnectionPool[psycopg.Connection[tuple[Any, ...]]]):
    """A pool that nobody need close at the end of the process."""

    def __del__(self) -> None:
        # The threads that it would wait for, one after the other, run no more by then.
        if not sys.is_finalizing():
            super().__del__()


def connect_pool(
    conninfo: str | None = None,
    *,
    min_size: int = 1,
    max_size: int = 10,
    timeout_seconds: float = 30,
    prepare_threshold: int | None = 5,
) -> ConnectionPool[psycopg.Connection[tuple[Any, ...]]]:
    """Open a pool of psycopg connections; they are made in the background.

    Any other psycopg pool serves as well; this one notices a frozen or returned server sooner.

    Args:
        conninfo: A PostgreSQL URL or keyword string; the environment's DATABASE_URL if None.
        min_size: Connections kept open, 0 or more.
        max_size: Most connections at once, 1 or more.
        timeout_seconds: Longest wait for a free connection, in seconds, above zero.
        prepare_threshold: Prepare a statement on the server after so many uses; None never does,
            as a pooler without support for prepared statements needs.

    Raises:
        ValidationError: `config.database_url_missing`, `config.database_url_invalid` or
            `input.*`.
    """
    if conninfo is None:
        url = check_text(os.environ.get(DATABASE_URL, ""), field=DATABASE_URL, allow_blank=True)
    else:
        url = check_text(conninfo, field="conninfo", allow_blank=True)
    if not url.strip():
        raise _refusal("config.database_url_missing", f"pass a URL or set {DATABASE_URL}")
    check_int(max_size, field="max_size", minimum=1, maximum=_MOST_CONNECTIONS)
    check_int(min_size, field="min_size", minimum=0, maximum=max_size)
    if prepare_threshold is not None:
        check_int(prepare_threshold, field="prepare_threshold", minimum=0, maximum=INT32_MAX)
    _check_timeout(timeout_seconds)
    defaults = {name: value for name, value in _LINK_DEFAULTS.items() if name not in _parse(url)}
    pool = _Pool(
        url,
        kwargs={**defaults, "client_encoding": "UTF8", "prepare_threshold": prepare_threshold},
        min_size=min_size,
        max_size=max_size,
        timeout=timeout_seconds,
        reconnect_timeout=_RECONNECT_SECONDS,
        open=True,
    )
    require_own_pool(pool)
    return pool


def _check_timeout(seconds: object) -> None:
    if not (is_kind(seconds, int) or is_kind(seconds, float)) or is_kind(seconds, bool):
        raise ValidationError(
            codes.INPUT_WRONG_TYPE,
            "timeout_seconds must be a number of seconds",
            field="timeout_seconds",
        )
    # NaN is neither; the upper bound is what a thread can wait at all.
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValidationError(
            codes.INPUT_OUT_OF_RANGE,
            "timeout_seconds must be above zero and short enough to wait for",
            field="timeout_seconds",
        )


def _parse(url: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Its text quotes the string, password and all.
        pass
    raise _refusal(
        "config.database_url_invalid",
        "the connection string is neither a postgresql:// URL nor keywords and values",
    )


def _refusal(code: str, client_message: str) -> QueryError:
    return refusal(ErrorCategory.VALIDATION, code, client_message, field=DATABASE_URL)
