"""Daemon threads, in a process that may be able to have no more."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_daemon(run: Callable[[], None], *, name: str) -> threading.Thread | None:
    """Start a thread and return it; None if the process can have no more."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return None
    return thread
