"""Run one PostgreSQL server for as long as somebody uses it.

A program of its own, standard library only: `python -I -S _watchdog.py CONFIG`. It becomes the
parent of the server and then waits for the lock that every user holds. The system lets go of a
user's lock however he ends, kill -9 included, so the server never outlives its last user.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypedDict

_FAST = ((signal.SIGINT, 60), (signal.SIGQUIT, 10), (signal.SIGKILL, 5))
# Nobody will read a throwaway server's data again: no checkpoint.
_IMMEDIATE = ((signal.SIGQUIT, 10), (signal.SIGKILL, 5))


class WatchdogConfig(TypedDict):
    """What the starter tells the program."""

    command: list[str]
    uid: int | None
    gid: int
    users_lock: str
    kept: str
    status_descriptor: int
    remove: list[str]


class _Ended(Exception):  # noqa: N818  # A signal, no error.
    """The server ended, or this program shall."""


def main(config: WatchdogConfig) -> None:
    """Start the server, wait for its end or that of its last user, then clean up."""
    os.chdir("/")
    # The starter waits for this process only; the child that goes on is nobody's zombie.
    if os.fork():
        os._exit(0)
    users = os.open(config["users_lock"], os.O_RDWR | os.O_CLOEXEC)
    os.set_inheritable(config["status_descriptor"], False)  # noqa: FBT003  # Positional only.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _start(config)
    with suppress(_Ended):
        _wait_for_last_user(server, users)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if server.poll() is None and Path(config["kept"]).exists():
        os._exit(0)
    _stop(server, _IMMEDIATE if config["remove"] else _FAST)
    # The starter reads the end of this pipe as the end of the server.
    os.close(config["status_descriptor"])
    if config["remove"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        fcntl.flock(users, fcntl.LOCK_EX)
        for folder in config["remove"]:
            shutil.rmtree(folder, ignore_errors=True)


def _start(config: WatchdogConfig) -> subprocess.Popen[bytes]:
    if config["uid"] is None:
        return subprocess.Popen(config["command"], umask=0o077)  # noqa: S603  # Our own command.
    return subprocess.Popen(  # noqa: S603  # Our own command.
        config["command"],
        umask=0o077,
        user=config["uid"],
        group=config["gid"],
        extra_groups=[],
    )


def _stop(server: subprocess.Popen[bytes], stages: tuple[tuple[signal.Signals, int], ...]) -> None:
    for number, seconds in stages:
        if server.poll() is not None:
            return
        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)


def _wait_for_last_user(server: subprocess.Popen[bytes], users: int) -> None:
    def asked_to_end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _Ended

    def child_changed(_number: int, _frame: FrameType | None) -> None:
        # Also sent when the server is merely halted (SIGSTOP), which is no end.
        if server.poll() is not None:
            raise _Ended

    signal.signal(signal.SIGTERM, asked_to_end)
    signal.signal(signal.SIGCHLD, child_changed)
    # After the handler is set: a server that died before it is seen here.
    if server.poll() is None:
        fcntl.flock(users, fcntl.LOCK_EX)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
