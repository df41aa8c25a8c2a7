"""Waiting until one connection waits for another."""

import time

WAIT_SECONDS = 20


def until_blocked(observer, connection, *, by):
    """Wait until one connection waits for another."""
    deadline = time.monotonic() + WAIT_SECONDS
    expected = [by.info.backend_pid]
    while observer.execute(
        "SELECT pg_blocking_pids(%s)", [connection.info.backend_pid]
    ).fetchone() != (expected,):
        assert time.monotonic() < deadline, "never waited"
