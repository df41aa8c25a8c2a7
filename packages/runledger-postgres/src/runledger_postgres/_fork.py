"""Pools that crossed a fork: parent and child would share each connection's socket."""

from __future__ import annotations

import os
from typing import Any, Final
from weakref import WeakKeyDictionary

from psycopg_pool import ConnectionPool

from runledger_core import ErrorCategory

from .errors import refusal

# Whose a pool is: the process that opened it through us, else the first that used it through us.
_OWNERS: Final[WeakKeyDictionary[ConnectionPool[Any], int]] = WeakKeyDictionary()


def require_own_pool(pool: ConnectionPool[Any]) -> None:
    """Refuse a pool that this process has inherited by a fork.

    A pool belongs to the process that opened it with `connect_pool`, else to the first one that
    used it through us.

    Args:
        pool: Any pool; it is remembered as this process's own if nobody else's.

    Raises:
        ValidationError: `db.forked`; nothing was sent.
    """
    pid = os.getpid()
    if _OWNERS.setdefault(pool, pid) != pid:
        raise refusal(
            ErrorCategory.VALIDATION,
            "db.forked",
            "the pool was opened before a fork; open one in the child",
            field="db",
        )
