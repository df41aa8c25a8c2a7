"""File locks that end with their process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ._errors import DIRECTORY_FORBIDDEN, LOCK_TIMEOUT, EmbeddedServerError
from ._files import open_private

_POLL_SECONDS: Final = 0.02


@contextmanager
def exclusive(path: Path, deadline: float) -> Generator[None]:
    """Hold a lock file alone for a block.

    Raises:
        EmbeddedServerError: `embedded.lock_timeout` if another process keeps it.
    """
    descriptor = _acquire(path, fcntl.LOCK_EX, deadline)
    try:
        yield
    finally:
        os.close(descriptor)


class UserLock:
    """Says that this process uses the server, until left or until the process is gone."""

    def __init__(self, path: Path, deadline: float) -> None:
        """Join; waits while the last user's server is being stopped."""
        self._descriptor = _acquire(path, fcntl.LOCK_SH, deadline)
        self._owner_pid = os.getpid()

    def is_last(self) -> bool:
        """Tell whether nobody else uses the server; nobody can join until `leave` if so."""
        if os.getpid() != self._owner_pid:
            # A forked child shares its parent's lock: changing it here would end the parent's use.
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        """Stop using the server; closing the file lets go of the lock."""
        os.close(self._descriptor)


def _acquire(path: Path, mode: int, deadline: float) -> int:
    while True:
        descriptor = _open(path)
        try:
            _lock(descriptor, mode, deadline)
            if _is_current(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # A throwaway directory was removed and made again in the meantime.
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return open_private(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise EmbeddedServerError(
            DIRECTORY_FORBIDDEN,
            f"the directory {path.parent} is gone or cannot be written",
            internal_message=str(error),
        ) from error


def _lock(descriptor: int, mode: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    LOCK_TIMEOUT,
                    "another process has been starting or stopping the server for too long",
                ) from error
            time.sleep(_POLL_SECONDS)
        else:
            return


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
