"""The psycopg connection of a SQLAlchemy connection or session, without importing SQLAlchemy."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import psycopg

from runledger_core import ErrorCategory

from .errors import QueryError, classify_query_error, refusal


def driver_connection(db: Any) -> psycopg.Connection[Any] | None:
    """Begin through SQLAlchemy and return the driver's connection; None if there is none for us.

    SQLAlchemy's `commit()` does nothing for a transaction that it does not know of.

    Raises:
        QueryError: `db.unavailable`, `db.transaction_aborted`, `db.two_phase_unsupported` or
            `db.unsupported_connection` if SQLAlchemy gives none that we can join.
    """
    with _coded_errors():
        if isinstance(db, _known("sqlalchemy.orm", "scoped_session")):
            db = db()
        if isinstance(db, _known("sqlalchemy.orm", "Session")):
            if db.twophase:
                # Before it begins one.
                raise two_phase_unsupported()
            db = db.connection()
        if not isinstance(db, _known("sqlalchemy.engine", "Connection")):
            return None
        # First: an invalidated or closed one raises here, and stays as it is.
        driver: Any = db.connection.driver_connection
        if not isinstance(driver, psycopg.Connection):
            return None
        if isinstance(db.get_transaction(), _known("sqlalchemy.engine", "TwoPhaseTransaction")):
            raise two_phase_unsupported()
        if not db.in_transaction():
            db.begin()
        # Whatever its rows are: nothing here reads them.
        return cast("psycopg.Connection[Any]", driver)


def two_phase_unsupported() -> QueryError:
    """Return the refusal of a connection in a two-phase transaction.

    What tells workers of a job is NOTIFY, and PREPARE TRANSACTION refuses what has notified.
    """
    return refusal(
        ErrorCategory.VALIDATION,
        "db.two_phase_unsupported",
        "a two-phase transaction cannot be joined; pass a connection outside it",
        field="db",
    )


def _known(module: str, *names: str) -> tuple[type[Any], ...]:
    # Who passes an object of SQLAlchemy has imported it, if perhaps not to the end.
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


@contextmanager
def _coded_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, _known("sqlalchemy.exc", "SQLAlchemyError")):
            raise _classified(error) from error
        raise


def _classified(error: BaseException) -> QueryError:
    origin = getattr(error, "orig", None)
    if isinstance(origin, psycopg.Error):
        return classify_query_error(origin)
    if isinstance(error, _known("sqlalchemy.exc", "PendingRollbackError")):
        return refusal(
            ErrorCategory.VALIDATION,
            "db.transaction_aborted",
            "the session's or connection's transaction has failed; roll it back first",
            field="db",
        )
    if isinstance(error, _known("sqlalchemy.exc", "ResourceClosedError", "TimeoutError")):
        return refusal(
            ErrorCategory.UNAVAILABLE, "db.unavailable", "SQLAlchemy has no open connection"
        )
    return refusal(
        ErrorCategory.VALIDATION,
        "db.unsupported_connection",
        "the session or connection gives no connection to join",
        field="db",
    )
