"""Children of tests that fork beside threads."""

from __future__ import annotations

import os
import signal
import time

import pytest

FORKS = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # Later Pythons warn of a fork beside threads, which is what is tried here.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
_CHILD_SECONDS = 5.0


def end_of(child: int) -> int | str:
    """Return the exit code of a child; end it if it goes on, so that no test leaves one behind."""
    ends_at = time.monotonic() + _CHILD_SECONDS
    while time.monotonic() < ends_at:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "it went on"
