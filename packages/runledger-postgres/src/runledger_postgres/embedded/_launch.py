"""Make a data directory, start a server on it, wait until it answers."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from . import _watchdog
from ._account import run_as
from ._binaries import Binaries
from ._errors import (
    INIT_FAILED,
    SETTING_RESERVED,
    START_FAILED,
    START_TIMEOUT,
    EmbeddedServerError,
)
from ._files import Home, open_private, write_private
from ._postmaster import Postmaster, forget_recycled_pid, read_postmaster

SUPERUSER: Final = "postgres"
_INIT_SECONDS: Final = 300
_POLL_SECONDS: Final = 0.02
_TAIL_LINES: Final = 20
_LOG_BYTES_READ: Final = 32_768
# The first version where the number can be set.
_SCRAM_SETTING: Final = 16
_PORT_TRIES: Final = 5
_PORT_TAKEN: Final = "Address already in use"
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
# Ours to decide: the rest of this package relies on them.
_RESERVED: Final = frozenset(
    {"data_directory", "external_pid_file", "hba_file", "listen_addresses", "port"}
    | {"unix_socket_directories"}
)


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the settings.

    Raises:
        EmbeddedServerError: `embedded.setting_reserved` if one of them is ours to decide.
    """
    for name in settings:
        if name.lower() in _RESERVED:
            raise EmbeddedServerError(
                SETTING_RESERVED, f"the setting {name} cannot be chosen", field="settings"
            )
    return dict(settings)


def initialise(home: Home, binaries: Binaries, *, sync: bool, is_throwaway: bool) -> None:
    """Make the data directory with a generated password.

    Args:
        home: Where.
        binaries: With which `initdb`.
        sync: Whether to wait until it is on the disk.
        is_throwaway: Whether nobody will keep passwords there.

    Raises:
        EmbeddedServerError: `embedded.init_failed`.
    """
    password = secrets.token_urlsafe(24)
    # A start that was killed half-way leaves this behind; `data` is there only when complete.
    unfinished = home.path / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    password_copy = home.path / "password.new"
    password_copy.unlink(missing_ok=True)
    write_private(password_copy, password)
    if home.account is not None:
        os.chown(unfinished, home.account.uid, home.account.gid)
        os.chown(password_copy, home.account.uid, home.account.gid)
    command = [
        str(binaries.initdb),
        f"--pgdata={unfinished}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_copy}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
        *([] if sync else ["--no-sync"]),
        # Slow hashing guards passwords of people; for generated ones it only slows connecting.
        *(
            ["--set=scram_iterations=1"]
            if is_throwaway and binaries.major >= _SCRAM_SETTING
            else []
        ),
    ]
    try:
        _run_initdb(home, command)
    finally:
        password_copy.unlink(missing_ok=True)
    write_private(home.password, password)
    unfinished.rename(home.data)


def launch(
    home: Home,
    binaries: Binaries,
    *,
    settings: Mapping[str, str],
    remove: Sequence[Path],
    deadline: float,
) -> Postmaster:
    """Start the server under its watchdog on a free port and wait until it is ready.

    Raises:
        EmbeddedServerError: `embedded.start_failed`, `embedded.start_timeout`.
    """
    forget_recycled_pid(home.data)
    for attempt in range(1, _PORT_TRIES + 1):
        if home.log.exists():
            home.log.replace(home.log.with_name("server.log.1"))
        status = _spawn(home, binaries, settings=settings, remove=remove)
        try:
            server = wait_until_ready(home, deadline, status=status)
        finally:
            os.close(status)
        if server is not None:
            return server
        tail = _tail(home.log)
        # Between our look and the server's bind another program took the port.
        if _PORT_TAKEN not in tail or attempt == _PORT_TRIES:
            raise EmbeddedServerError(
                START_FAILED,
                f"the server did not start; see {home.log}",
                internal_message=tail,
            )
    raise AssertionError


def wait_until_ready(
    home: Home, deadline: float, *, status: int | None = None
) -> Postmaster | None:
    """Return the server once it accepts connections, or None if it ended.

    Raises:
        EmbeddedServerError: `embedded.start_timeout`.
    """
    watched = [] if status is None else [status]
    while True:
        server = read_postmaster(home.data)
        if server is not None and server.is_ready:
            return server
        # The watchdog never writes: readable means closed, so the server is gone.
        if select.select(watched, [], [], _POLL_SECONDS)[0]:
            return None
        if status is None and server is None:
            return None
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                START_TIMEOUT,
                f"the server does not accept connections yet; see {home.log}",
                internal_message=_tail(home.log),
            )


def _run_initdb(home: Home, command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603  # Our own command.
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INIT_SECONDS,
            check=False,
            cwd="/",
            env=_environment(),
            umask=0o077,
            **run_as(home.account),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(
            INIT_FAILED, "initdb could not be run", internal_message=str(error)
        ) from error
    if done.returncode != 0:
        raise EmbeddedServerError(
            INIT_FAILED,
            f"initdb could not make {home.data}",
            internal_message=(done.stdout + done.stderr)[-_LOG_BYTES_READ:],
        )


def _spawn(
    home: Home, binaries: Binaries, *, settings: Mapping[str, str], remove: Sequence[Path]
) -> int:
    chosen = {
        **settings,
        "listen_addresses": "127.0.0.1",
        "port": str(_free_port()),
        "unix_socket_directories": "",
    }
    command = [str(binaries.postgres), "-D", str(home.data)]
    for name, value in chosen.items():
        command += ["-c", f"{name}={value}"]
    ours, theirs = os.pipe()
    log = open_private(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    config: _watchdog.WatchdogConfig = {
        "command": command,
        "uid": home.account.uid if home.account else None,
        "gid": home.account.gid if home.account else -1,
        "users_lock": str(home.users_lock),
        "kept": str(home.kept),
        "status_descriptor": theirs,
        "remove": [str(folder) for folder in remove],
    }
    try:
        subprocess.run(  # noqa: S603  # Our own program.
            [sys.executable, "-I", "-S", _watchdog.__file__, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
            pass_fds=[theirs],
            env=_environment(),
            # Ctrl-C in the terminal is for the user's program, not for its server.
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(ours)
        raise EmbeddedServerError(
            START_FAILED, "the server could not be run", internal_message=str(error)
        ) from error
    finally:
        os.close(theirs)
        os.close(log)
    return ours


def _environment() -> dict[str, str]:
    # PGDATA and the like speak of other servers, and what else is there may be secret: the process
    # can belong to another account. One locale, so that logs can be read.
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES_READ))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
