"""A thread beside the pump, whose end cannot go unnoticed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


class Helper(threading.Thread, ABC):
    """Works until it is finished; an error that escapes is told to the worker."""

    def __init__(self, name: str) -> None:
        """Prepare the thread; `begin()` starts it."""
        super().__init__(name=f"runledger-{name}", daemon=True)
        self._on_failed: Callable[[BaseException], None] | None = None

    def begin(self, on_failed: Callable[[BaseException], None]) -> None:
        """Start the thread.

        Args:
            on_failed: Called on this thread with what ended it too early.
        """
        self._on_failed = on_failed
        self.start()

    def run(self) -> None:
        """Work, and tell of an error that ends it."""
        try:
            self.work()
        except BaseException as error:
            if self._on_failed is None:
                raise
            self._on_failed(error)

    @abstractmethod
    def work(self) -> None:
        """Do what the thread is for until it is finished."""
