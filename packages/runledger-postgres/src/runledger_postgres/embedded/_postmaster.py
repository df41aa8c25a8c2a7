"""What `postmaster.pid` says, and whether it is still true."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from ._errors import STOP_FAILED, EmbeddedServerError

PID_FILE: Final = "postmaster.pid"
_PORT_LINE, _STATUS_LINE = 3, 7
_PROC: Final = Path("/proc")
_PROGRAMS: Final = frozenset({"postgres", "postmaster"})
_POLL_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A living server process of a data directory."""

    pid: int
    port: int | None
    _: KW_ONLY
    status: str

    @property
    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        return self.port is not None and self.status == "ready"


def read_postmaster(data: Path) -> Postmaster | None:
    """Return the living server of a data directory; None if there is none or the file is stale."""
    lines = _lines(data / PID_FILE)
    if not lines or not lines[0].isdigit():
        return None
    pid = int(lines[0])
    if not _serves(pid, data):
        return None
    port = lines[_PORT_LINE] if len(lines) > _PORT_LINE else ""
    # The file grows line by line while the server starts.
    status = lines[_STATUS_LINE].strip() if len(lines) > _STATUS_LINE else "starting"
    return Postmaster(pid, int(port) if port.isdigit() else None, status=status)


def forget_recycled_pid(data: Path) -> None:
    """Remove a stale `postmaster.pid` whose number another process has by now.

    PostgreSQL refuses to start beside any living process of that number. One that is no server of
    this directory proves nothing; leftover children of a dead server are found by PostgreSQL itself
    through the shared memory that they hold.
    """
    lines = _lines(data / PID_FILE)
    if lines and lines[0].isdigit() and not _serves(int(lines[0]), data):
        (data / PID_FILE).unlink(missing_ok=True)


def stop_postmaster(data: Path, stages: tuple[tuple[signal.Signals, float], ...]) -> None:
    """Stop the server of a data directory and wait until it is gone; nothing if there is none.

    Args:
        stages: Signals to send, each with the seconds to wait after it, politest first.

    Raises:
        EmbeddedServerError: `embedded.stop_failed` if it lives on or may not be signalled.
    """
    server = read_postmaster(data)
    if server is None:
        return
    for number, seconds in stages:
        try:
            os.kill(server.pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise EmbeddedServerError(
                STOP_FAILED, "the server belongs to another account and cannot be stopped from here"
            ) from error
        if _is_gone(server.pid, data, time.monotonic() + seconds):
            return
    raise EmbeddedServerError(
        STOP_FAILED, f"the server (process {server.pid}) does not stop; end it by hand"
    )


def _is_gone(pid: int, data: Path, deadline: float) -> bool:
    while _serves(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _lines(path: Path) -> list[str]:
    try:
        # Never through a link: the account that owns the directory is not trusted with our rights.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            return file.read(4096).splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _serves(pid: int, data: Path) -> bool:
    # The number alone proves nothing after kill -9 or a reboot: it may be anybody's by now.
    if pid <= 1:
        return False
    if not (_PROC / "self" / "cmdline").exists():
        return _serves_by_ps(pid, data)
    try:
        if (_PROC / str(pid)).stat().st_uid != data.stat().st_uid:
            return False
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    # A dead process that nobody has waited for has an empty command line.
    if Path(os.fsdecode(arguments[0])).name not in _PROGRAMS or b"-D" not in arguments:
        return False
    named = Path(os.fsdecode(arguments[arguments.index(b"-D") + 1]))
    try:
        return named.samefile(data)
    except OSError:
        return False


def _serves_by_ps(pid: int, data: Path) -> bool:
    done = subprocess.run(  # noqa: S603  # A number of our own reading.
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return "postgres" in done.stdout and str(data) in done.stdout
