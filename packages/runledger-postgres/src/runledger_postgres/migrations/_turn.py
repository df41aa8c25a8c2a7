"""A transaction in which migrations run: one runner at a time, with settings of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from runledger_core import ErrorCategory

from .._rows import Statement
from .._session import Bound, Transaction, transaction
from ..errors import QueryError, refusal

# "Runledgr" in ASCII. One key for every runner, also for scripts that psql applies.
MIGRATION_LOCK_KEY: Final = 5_941_776_695_221_839_730
# A runner ahead of us may be building an index on a large table.
QUEUE_WAIT_MS: Final = 600_000

LOCK_TIMEOUT: Final = "55P03"


@dataclass(frozen=True, slots=True)
class SettingsRow:
    """What the caller's transaction has set, to be put back."""

    search_path: str
    statement_timeout: str
    lock_timeout: str


READ_SETTINGS: Final = Statement(
    """
    SELECT
        current_setting('search_path') AS search_path,
        current_setting('statement_timeout') AS statement_timeout,
        current_setting('lock_timeout') AS lock_timeout
    """,
    SettingsRow,
)

SET_SETTINGS: Final = Statement(
    """
    SELECT
        set_config('search_path', %(search_path)s::text, true) AS search_path,
        set_config('statement_timeout', %(statement_timeout)s::text, true) AS statement_timeout,
        set_config('lock_timeout', %(lock_timeout)s::text, true) AS lock_timeout
    """,
    SettingsRow,
)


@dataclass(frozen=True, slots=True)
class _TimeoutRow:
    value: str


# Known since 17. The first statement, so that it comes before the time is up.
_LIFT_TRANSACTION_TIMEOUT: Final = Statement(
    """
    SELECT set_config('transaction_timeout', '0', true) AS value
    WHERE current_setting('server_version_num')::int4 >= 170000
    """,
    _TimeoutRow,
)


@dataclass(frozen=True, slots=True)
class _TurnRow:
    turn: str


WAIT_FOR_TURN: Final = Statement(
    "SELECT pg_advisory_xact_lock(%(key)s::int8)::text AS turn", _TurnRow
)


@contextmanager
def unhurried_transaction(connection: psycopg.Connection[Any]) -> Generator[Transaction]:
    """Open a transaction without `transaction_timeout`, or a savepoint in the caller's."""
    with transaction(connection, savepoint=True) as work:
        if work.owned:
            work.fetch(Bound(_LIFT_TRANSACTION_TIMEOUT))
        yield work


@contextmanager
def migration_turn(
    connection: psycopg.Connection[Any], *, lock_timeout_ms: int
) -> Generator[Transaction]:
    """Open a transaction, or a savepoint in the caller's, that no other runner works beside.

    Args:
        lock_timeout_ms: Longest wait for a table, in milliseconds.

    Raises:
        UnavailableError: `db.lock_timeout` if another runner does not finish.
    """
    with unhurried_transaction(connection) as work:
        (before,) = work.fetch(Bound(READ_SETTINGS))
        _set(work, "pg_catalog", statement_timeout="0", lock_timeout=f"{QUEUE_WAIT_MS}ms")
        _wait_for_turn(work)
        # Short: whoever waits behind us for a table waits as long as we do for ours.
        _set(work, "pg_catalog", statement_timeout="0", lock_timeout=f"{lock_timeout_ms}ms")
        yield work
        _set(
            work,
            before.search_path,
            statement_timeout=before.statement_timeout,
            lock_timeout=before.lock_timeout,
        )


def _set(work: Transaction, search_path: str, *, statement_timeout: str, lock_timeout: str) -> None:
    params = {
        "search_path": search_path,
        "statement_timeout": statement_timeout,
        "lock_timeout": lock_timeout,
    }
    work.fetch(Bound(SET_SETTINGS, params))


def _wait_for_turn(work: Transaction) -> None:
    try:
        work.fetch(Bound(WAIT_FOR_TURN, {"key": MIGRATION_LOCK_KEY}))
    except QueryError as error:
        if error.sqlstate != LOCK_TIMEOUT:
            raise
        raise refusal(
            ErrorCategory.UNAVAILABLE,
            "db.lock_timeout",
            "another process has been migrating this database for ten minutes; look for its"
            " session in pg_stat_activity",
        ) from error
