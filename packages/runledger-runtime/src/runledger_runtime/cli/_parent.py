"""What a worker of `--processes` hears from its parent, through the pipe that is its stdin.

For each signal that the parent passes on there is one byte, and SIGTERM besides. The bytes count:
whoever stops a service may signal each of its processes, so that SIGTERM comes to a worker from
there and from its parent, and means one stop. The end of the pipe tells that the parent is gone,
however it ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Parent:
    """Counts the signals that the parent has told of."""

    def __init__(self) -> None:
        """Hear nothing yet."""
        # The first needs no byte: a signal to this process alone is a stop, too. It is a deque
        # since the handler of a signal may interrupt that of another one.
        self._uncounted: deque[None] = deque([None])

    def count_signals(self) -> int:
        """Return how many signals have come since the last call, of those that the parent told of.

        It may be called in the handler of a signal.
        """
        count = 0
        with suppress(IndexError):
            while True:
                self._uncounted.pop()
                count += 1
        return count

    def listen(self, stop: Callable[[], None]) -> None:
        """Begin to hear; call `stop` when the parent is gone. Stdin is empty from now on.

        Programs that handlers run inherit stdin: they would wait for what never comes.
        """
        # Neither copy is inherited.
        pipe = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

        def read() -> None:
            is_first = True
            while os.read(pipe, 1):
                if not is_first:
                    self._uncounted.append(None)
                is_first = False
                # The signal of the parent may have been handled before its byte was read.
                os.kill(os.getpid(), signal.SIGTERM)
            stop()

        threading.Thread(target=read, name="runledger-parent-watch", daemon=True).start()
