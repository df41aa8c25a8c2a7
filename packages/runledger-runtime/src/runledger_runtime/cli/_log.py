"""Log lines of a process that we run: one line each, with the values beside the message."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import click

from runledger_core import visible_text

from ..log_fields import JobLogFields

_TELL_SECONDS: Final = 1.0
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class LineFormatter(logging.Formatter):
    """Appends `name=value` for each extra; control characters of values are shown as marks."""

    def __init__(self) -> None:
        """Use UTC, as everything else does."""
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.default_time_format = "%Y-%m-%d %H:%M:%S"
        self.default_msec_format = "%s.%03dZ"
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line of a record, without its traceback."""
        extras = (
            f" {name}={value}" for name, value in record.__dict__.items() if name not in _STANDARD
        )
        return visible_text(super().formatMessage(record) + "".join(extras))


def log_to_stderr(level: str) -> JobLogFields:
    """Send the records of all loggers from this level on to stderr.

    Returns:
        Middleware with which those of handlers carry the fields of their jobs.
    """
    fields = JobLogFields()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    handler.addFilter(fields)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return fields


def tell(sentence: str) -> None:
    """Print a sentence on stderr, if it can be printed within a moment.

    A write to a pipe that nobody reads waits for ever, and may keep signals from their handlers.
    """
    within(_TELL_SECONDS, lambda: click.echo(sentence, err=True))


def within(seconds: float, call: Callable[[], None]) -> None:
    """Make a call that may fail or wait, and wait no longer than this for it."""

    def run() -> None:
        with suppress(Exception):
            call()

    # There may be no thread to be had any more.
    with suppress(RuntimeError, MemoryError):
        thread = threading.Thread(target=run, name="runledger-tell", daemon=True)
        thread.start()
        thread.join(seconds)


def flush_logs() -> None:
    """Write out what handlers of logs and the standard streams still hold."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # None if its descriptor was closed when Python started.
        if stream:
            stream.flush()
