"""Environment variables for the length of a block."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

# The environment belongs to the process: two blocks of different threads would mix.
_LOCK: Final = threading.RLock()


class ScopedEnv:
    """Set environment variables for a block and put them back after it, whatever happens in it.

    Blocks of other threads wait; blocks of one thread may be nested::

        with ScopedEnv({"JOBS_WORKER_ID": "w-1", "DATABASE_URL": None}):
            config = JobsConfig.from_env()

    Args:
        variables: Values to set; None removes the variable.
    """

    def __init__(self, variables: Mapping[str, str | None]) -> None:
        self._variables = dict(variables)
        self._before: dict[str, str | None] = {}

    def set(self, name: str, value: str | None) -> None:
        """Set one more variable inside the block; None removes it."""
        self._before.setdefault(name, os.environ.get(name))
        _put(name, value)

    def __enter__(self) -> Self:
        _LOCK.acquire()
        try:
            for name, value in self._variables.items():
                self.set(name, value)
        except BaseException:
            # A name or value that the system refuses: the earlier ones must not stay.
            self._restore()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        try:
            while self._before:
                _put(*self._before.popitem())
        finally:
            _LOCK.release()


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
