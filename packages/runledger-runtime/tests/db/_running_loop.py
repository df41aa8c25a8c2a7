"""A loop on a thread of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runledger_runtime.errors import RuntimeLoopExit
from runledger_runtime.shutdown import StopToken

WAIT_SECONDS = 30.0


class RunningLoop:
    """Its token and its thread, and how it ended."""

    def __init__(self) -> None:
        self.stop = StopToken()
        self.thread = threading.Thread()
        self.exits: list[RuntimeLoopExit] = []

    def start(self, run: Callable[[], RuntimeLoopExit]) -> None:
        """Call the loop on a thread."""
        self.thread = threading.Thread(target=lambda: self.exits.append(run()), daemon=True)
        self.thread.start()

    def end(self) -> RuntimeLoopExit:
        """Ask it to stop and return how the loop ended."""
        self.stop.request("end of test")
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()
        return self.exits[0]
