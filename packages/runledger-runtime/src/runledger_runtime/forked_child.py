"""A handler that forks: its child ends where the handler does, and nothing of the engine goes on.

The child is a copy of the worker: it has the same sessions and leases, and one of its threads.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

# What another thread held at the fork is held for ever in the child, such as a buffer of stderr.
_SAY_SECONDS: Final = 2.0


class EndsForkedChild:
    """Ends a process that was forked within the block, when it leaves the block.

    Its exit code is that of a program: 0, or that of a `SystemExit`, or 1 for another exception,
    whose traceback goes to stderr.
    """

    __slots__ = ("_pid",)

    def __enter__(self) -> Self:
        """Remember whose block it is."""
        self._pid = os.getpid()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Return in the process that entered, and never in another."""
        if os.getpid() != self._pid:
            _end(error)


def _end(error: BaseException | None) -> None:
    code = 1
    try:
        code, text = _last_words(error)
        speaker = threading.Thread(target=_say, args=(text,), daemon=True)
        speaker.start()
        speaker.join(_SAY_SECONDS)
    finally:
        # Not `sys.exit`, which raises into what called the handler.
        os._exit(code)


def _last_words(error: BaseException | None) -> tuple[int, str]:
    if error is None:
        return 0, ""
    if not isinstance(error, SystemExit):
        return 1, "".join(traceback.format_exception(error))
    if error.code is None:
        return 0, ""
    if isinstance(error.code, int):
        return error.code & 0xFF, ""
    return 1, f"{error.code}\n"


def _say(text: str) -> None:
    with suppress(Exception):
        sys.stderr.write(text)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
