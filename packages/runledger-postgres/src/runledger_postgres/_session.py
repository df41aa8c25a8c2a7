"""Transactions: our own on a pool, or the caller's joined; never his committed by us.

An operation of our own is one pipeline (BEGIN, statement, COMMIT). A joined one is executed on the
caller's connection; where it may wait for a row it runs inside a savepoint with a bounded
`lock_timeout`, so that a refusal leaves his transaction usable and his settings as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic

import psycopg
from psycopg.pq import TransactionStatus

from runledger_core import ErrorCategory

from ._arguments import check_lock_timeout
from ._database import (
    Database,
    discard_if_stuck,
    first_error,
    in_pipeline,
    interruption,
    make_idle,
    open_connection,
)
from ._rows import EngineCursor, NoRow, Row, Statement
from .errors import (
    QueryError,
    classify_query_error,
    is_end_of_session,
    outcome_unknown,
    refusal,
)

DEFAULT_LOCK_TIMEOUT_MS: Final = 5_000

_IN_TRANSACTION: Final = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})

# Where each statement has a snapshot of its own, and sees what a lock was waited for.
IS_READ_COMMITTED: Final = (
    "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"
)
# The level is named, so that no default of role or database can change what a statement sees.
BEGIN: Final = Statement("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE", NoRow)
# A standby refuses READ WRITE, but serves reads.
BEGIN_ON_STANDBY: Final = Statement("BEGIN ISOLATION LEVEL READ COMMITTED", NoRow)
COMMIT: Final = Statement("COMMIT", NoRow)
SAVEPOINT: Final = Statement("SAVEPOINT runledger", NoRow)
RELEASE_SAVEPOINT: Final = Statement("RELEASE SAVEPOINT runledger", NoRow)
ROLLBACK_TO_SAVEPOINT: Final = Statement("ROLLBACK TO SAVEPOINT runledger", NoRow)


@dataclass(frozen=True, slots=True)
class _SettingRow:
    value: str


# Ours or the caller's, whichever is smaller; the caller's zero means none.
LIMIT_LOCK_WAIT: Final = Statement(
    """
    SELECT set_config('runledger.caller_lock_timeout', current_setting('lock_timeout'), true)
        || set_config('lock_timeout', (
            SELECT CASE
                WHEN milliseconds > 0 AND milliseconds < %(lock_timeout_ms)s::int8 THEN milliseconds
                ELSE %(lock_timeout_ms)s::int8
            END::text
            FROM (
                SELECT (extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::int8
                    AS milliseconds
            ) AS caller
        ), true) AS value
    """,
    _SettingRow,
)
RESTORE_LOCK_WAIT: Final = Statement(
    """
    SELECT set_config('lock_timeout', current_setting('runledger.caller_lock_timeout'), true)
        AS value
    """,
    _SettingRow,
)


@dataclass(frozen=True, slots=True)
class Bound(Generic[Row]):
    """A statement with its parameters."""

    statement: Statement[Row]
    params: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(slots=True)
class Transaction:
    """An open transaction, ours or the caller's, or a savepoint in the caller's.

    It is begun in the trip of its first statement, and may be ended in that of its last.
    """

    _connection: psycopg.Connection[Any]
    _owned: bool
    _opening: list[Bound[Any]]
    _closing: list[Bound[Any]]
    _is_open: bool = False

    @property
    def owned(self) -> bool:
        """Whether it is ours to end; a joined one is the caller's."""
        return self._owned

    def fetch(self, bound: Bound[Row]) -> list[Row]:
        """Run one statement in one trip and return its rows."""
        return self.fetch_all([bound])[0]

    def fetch_all(self, bounds: Sequence[Bound[Any]]) -> list[list[Any]]:
        """Run statements in one trip and return the rows of each."""
        before = self._open()
        try:
            return _send(self._connection, [*before, *bounds])[len(before) :]
        except psycopg.Error as error:
            raise classify_query_error(error) from error

    @contextmanager
    def savepoint(self) -> Generator[None]:
        """Undo what the block did, and nothing before it, if it raises."""
        self.fetch(Bound(SAVEPOINT))
        try:
            yield
            self.fetch(Bound(RELEASE_SAVEPOINT))
        except BaseException:
            _undo(self._connection)
            raise

    def commit(self) -> None:
        """End what is ours: the transaction, or the savepoint in the caller's."""
        if self._is_open and self._closing:
            self.finish([])

    def finish(self, bounds: Sequence[Bound[Any]]) -> list[list[Any]]:
        """Run the last statements and end what is ours, in one trip; return the rows of each."""
        if self._connection.info.transaction_status == TransactionStatus.INERROR:
            # The server would answer COMMIT with a rollback, and no error.
            raise refusal(
                ErrorCategory.INTERNAL, "db.transaction_aborted", "a statement of it has failed"
            )
        before = self._open()
        try:
            cursors = _pipeline(self._connection, [*before, *bounds, *self._closing])
        except psycopg.Error as error:
            if self._owned:
                raise _lost_or_refused(self._connection, error) from error
            raise classify_query_error(error) from error
        # Ended: a row that Python cannot read must not send us back to the savepoint.
        self._is_open = False
        return [_rows(cursor) for cursor in cursors[len(before) : len(before) + len(bounds)]]

    def undo(self) -> None:
        """Undo what is ours and has not ended."""
        if self._owned:
            make_idle(self._connection)
        elif self._is_open and self._closing:
            _undo(self._connection)

    def _open(self) -> list[Bound[Any]]:
        if self._is_open:
            return []
        self._is_open = True
        return self._opening


def run(db: Database, bound: Bound[Row], *, lock_timeout_ms: int | None = None) -> list[Row]:
    """Run one statement in a transaction of its own, or in the caller's.

    Args:
        lock_timeout_ms: Longest wait for a locked row, in milliseconds, 1 or more; None for
            statements that do not wait.
    """
    return run_all(db, [bound], lock_timeout_ms=lock_timeout_ms)[0]


def run_all(
    db: Database, bounds: Sequence[Bound[Any]], *, lock_timeout_ms: int | None = None
) -> list[list[Any]]:
    """Run statements in one pipeline and one transaction; return the rows of each."""
    with transaction(db, lock_timeout_ms=lock_timeout_ms) as work:
        return work.finish(bounds)


@contextmanager
def transaction(
    db: Database, *, savepoint: bool = False, lock_timeout_ms: int | None = None
) -> Generator[Transaction]:
    """Open a transaction for several trips, or join the caller's.

    Args:
        savepoint: Undo our part of a joined transaction if the block raises.
        lock_timeout_ms: Longest wait for a locked row, in milliseconds; then a joined transaction
            always has a savepoint. None for statements that do not wait.
    """
    limit = [] if lock_timeout_ms is None else [_limit_lock_wait(lock_timeout_ms)]
    with open_connection(db) as opened:
        connection = opened.connection
        if opened.owned:
            opening, closing = [_begin(connection), *limit], [Bound(COMMIT)]
        elif limit:
            # 55P03 would abort the caller's transaction and the setting would outlive RELEASE.
            opening = [Bound(SAVEPOINT), *limit]
            closing = [Bound(RESTORE_LOCK_WAIT), Bound(RELEASE_SAVEPOINT)]
        elif savepoint:
            opening, closing = [Bound(SAVEPOINT)], [Bound(RELEASE_SAVEPOINT)]
        else:
            opening, closing = [], []
        work = Transaction(connection, opened.owned, _opening=opening, _closing=closing)
        try:
            yield work
            work.commit()
        except BaseException:
            work.undo()
            raise


def _send(connection: psycopg.Connection[Any], bounds: Sequence[Bound[Any]]) -> list[list[Any]]:
    # Read only now: an error of the server can surface at any call inside the pipeline.
    return [_rows(cursor) for cursor in _pipeline(connection, bounds)]


def _rows(cursor: EngineCursor[Any]) -> list[Any]:
    # Not by the cursor's description, which is made anew, column by column, for each look.
    result = cursor.pgresult
    return cursor.fetchall() if result is not None and result.nfields else []


def _pipeline(
    connection: psycopg.Connection[Any],
    bounds: Sequence[Bound[Any]],
    *,
    prepare: bool | None = None,
) -> list[EngineCursor[Any]]:
    """Run statements in one pipeline, inside the caller's if he has one open."""
    cursors: list[EngineCursor[Any]] = []
    handled, was_in_pipeline = sys.exception(), in_pipeline(connection)
    failure: BaseException | None = None
    try:
        with connection.pipeline():
            try:
                for bound in bounds:
                    cursor = EngineCursor(connection, bound.statement.row)
                    cursors.append(cursor)
                    cursor.execute(bound.statement.sql, bound.params or None, prepare=prepare)
            except BaseException as error:  # noqa: BLE001  # raised below
                # Kept from the pipeline's end, which would log a second error as ignored.
                failure = interruption(error, handled) or error
    except BaseException as error:  # noqa: BLE001  # raised below
        failure = interruption(error, handled) or failure or first_error(error)
    try:
        if failure is not None:
            if not was_in_pipeline:
                discard_if_stuck(connection)
            raise failure
    finally:
        # Its traceback holds this frame.
        del failure
    return cursors


def _begin(connection: psycopg.Connection[Any]) -> Bound[Any]:
    is_standby = connection.info.parameter_status("in_hot_standby") == "on"
    return Bound(BEGIN_ON_STANDBY if is_standby else BEGIN)


def _lost_or_refused(connection: psycopg.Connection[Any], error: psycopg.Error) -> QueryError:
    # COMMIT was sent: only a server that refuses something and lives on tells that nothing is
    # stored. psycopg may stumble over its last word before it notices the end of the connection.
    is_lost = connection.closed or is_end_of_session(error)
    return outcome_unknown(error) if is_lost else classify_query_error(error)


def _limit_lock_wait(lock_timeout_ms: int) -> Bound[Any]:
    return Bound(LIMIT_LOCK_WAIT, {"lock_timeout_ms": check_lock_timeout(lock_timeout_ms)})


def _undo(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status in _IN_TRANSACTION:
        # If this fails the link is lost, and the first error tells more.
        with suppress(psycopg.Error):
            # When a prepared ROLLBACK TO has run, psycopg drops all that it believes prepared, also
            # what the failed pipeline never delivered, and sends DEALLOCATE ALL with the next
            # statement. So RELEASE goes apart, unprepared: prepared, it would be forgotten at once.
            _pipeline(connection, [Bound(ROLLBACK_TO_SAVEPOINT)], prepare=True)
            _pipeline(connection, [Bound(RELEASE_SAVEPOINT)], prepare=False)
