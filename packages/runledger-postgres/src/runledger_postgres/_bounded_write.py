"""Transactions whose waits for locks are bounded, so that a writer never hangs on another."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ._arguments import check_lock_timeout
from ._database import Database
from ._session import Transaction, transaction


def bounded_write(db: Database, lock_timeout_ms: int) -> AbstractContextManager[Transaction]:
    """Open a transaction, or a savepoint in the caller's, whose waits for locks are bounded."""
    return transaction(db, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
