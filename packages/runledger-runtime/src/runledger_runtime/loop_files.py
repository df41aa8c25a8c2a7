"""The file descriptors of an event loop, which handlers may close."""

from __future__ import annotations

import asyncio
import os
import selectors
from typing import Any, Final

# Loops that were lost, with their selectors: collected, these would close descriptors that may be
# somebody else's by now.
_LOST: Final[list[object]] = []


class LoopFiles:
    """What an event loop has open for itself, and whether its descriptors still stand for that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Any: asyncio has only private names for them; a loop of another make may have none.
        self._loop: Any = loop
        self._files = self._open_files()

    def are_there(self) -> bool:
        """Tell whether all are open still, and none has become another's."""
        return all(_file_of(descriptor) == file for descriptor, file in self._files.items())

    def renew(self) -> None:
        """Open others, and close none of those that may be somebody else's."""
        loop = self._loop
        _LOST.append((loop, loop._selector))  # noqa: SLF001  # asyncio has no other name for it
        loop._ssock.detach()  # noqa: SLF001  # asyncio has no other name for it
        loop._csock.detach()  # noqa: SLF001  # asyncio has no other name for it
        loop._selector = selectors.DefaultSelector()  # noqa: SLF001  # nor another way to give it one
        loop._make_self_pipe()  # noqa: SLF001  # nor another way to have it make one
        self._files = self._open_files()

    def _open_files(self) -> dict[int, tuple[int, int] | None]:
        holders: list[Any] = [
            getattr(self._loop, name, None) for name in ("_selector", "_ssock", "_csock")
        ]
        descriptors = [holder.fileno() for holder in holders if hasattr(holder, "fileno")]
        return {descriptor: _file_of(descriptor) for descriptor in descriptors}


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
