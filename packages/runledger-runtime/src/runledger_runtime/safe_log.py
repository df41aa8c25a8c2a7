"""Loggers of the engine: a record that an exception keeps from being logged is lost, no more."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Log as the logger does, but raise no `Exception`.

    Filters are the host's, and run on the engine's threads: one that raises must end neither a loop
    nor a thread that keeps leases. What is no `Exception`, as a filter's `SystemExit`, is the
    host's own wish, and is raised.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a record, if that can be done."""
        # The caller is one frame farther away than the logger thinks.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        with suppress(Exception):
            # Not by way of `process`, which would replace `extra`.
            self.logger.log(level, msg, *args, **kwargs)


def safe_logger(name: str) -> SafeLogger:
    """Return the safe form of the logger of a module."""
    return SafeLogger(logging.getLogger(name), {})
