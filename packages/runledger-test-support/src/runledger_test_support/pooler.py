"""A PgBouncer in front of the test server, to show that code works behind a pooler.

`RUNLEDGER_TEST_POOLER=pgbouncer` puts one between the fixtures and the server: pools and
connections of `TemporaryDatabase` go through it, in transaction mode and without prepared
statements, which PgBouncer knows only since 1.21. `direct_dsn` and `connect_directly` pass it by.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runledger_core import UnavailableError, ValidationError

from .errors import ENVIRONMENT_INVALID, POOLER_UNAVAILABLE
from .server import DatabaseServer, dsn_of

POOLER_VARIABLE: Final = "RUNLEDGER_TEST_POOLER"

_CHOICES: Final = {"": False, "none": False, "pgbouncer": True}
_USUAL_ACCOUNTS: Final = ("postgres", "nobody")
_TRIES: Final = 3
_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
_STOP_SECONDS: Final = 10.0

# Everything else is PgBouncer's default, as where it is installed and never looked at again: no
# server_reset_query runs in transaction mode, so what a session sets is left for the next client.
_CONFIG: Final = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
pool_mode = transaction
auth_type = {auth_type}
auth_file = {folder}/users.txt
; Roles that a test makes are asked for.
auth_user = {user}
auth_query = SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1
admin_users = {user}
; Of one database and role: more than a test holds at once, fewer than the server has.
default_pool_size = 50
; No bound on all of a database: one that is reached would look like a deadlock.
max_db_connections = 0
max_client_conn = 1000
; What cannot go on is an error within the test's time.
query_wait_timeout = 30
server_login_retry = 1
server_tls_sslmode = prefer
"""

# The shell ends the pooler when our end of its input is closed, and so also when we are killed.
_GUARDED: Final = """\
exec 3<&0
"$@" 3<&- >/dev/null 2>&1 &
pooler=$!
{ read -r _ <&3; kill "$pooler"; } >/dev/null 2>&1 &
wait "$pooler"
"""


class Pooler:
    """A running PgBouncer in transaction mode."""

    def __init__(self, port: int) -> None:
        """Take the port of 127.0.0.1 that it listens on."""
        self.port = port

    def dsn(self, direct_dsn: str) -> str:
        """Return the URL of the same database and role behind the pooler.

        It serves those who set `prepare_threshold=None`.
        """
        pooled = make_conninfo(direct_dsn, host="127.0.0.1", port=self.port, sslmode="disable")
        parameters = conninfo_to_dict(pooled)
        parameters.pop("hostaddr", None)
        return dsn_of(parameters)


def is_pooler_wanted() -> bool:
    """Tell whether `RUNLEDGER_TEST_POOLER` asks for one.

    Raises:
        ValidationError: `test_support.environment_invalid` for another word than `pgbouncer`.
    """
    choice = os.environ.get(POOLER_VARIABLE, "").strip().lower()
    if choice not in _CHOICES:
        raise ValidationError(
            ENVIRONMENT_INVALID,
            f"{POOLER_VARIABLE} must be pgbouncer, or unset",
            field=POOLER_VARIABLE,
        )
    return _CHOICES[choice]


def find_pgbouncer() -> str | None:
    """Return the program on the PATH, or where distributions put it; None if there is none."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def provide_pooler(server: DatabaseServer) -> Generator[Pooler]:
    """Run a PgBouncer in front of the server for a block.

    It ends with the block, and also when this process is killed.

    Raises:
        UnavailableError: `test_support.pooler_unavailable`.
    """
    program = find_pgbouncer()
    if program is None:
        raise UnavailableError(POOLER_UNAVAILABLE, "pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="runledger-pgbouncer-") as name:
        folder = Path(name)
        # Another program may take the port before PgBouncer does; it then ends at once.
        for _ in range(_TRIES):
            port = _write_config(server, folder)
            process = _launch(program, folder)
            try:
                if not _is_up(server, port, process):
                    continue
                yield Pooler(port)
                return
            finally:
                _end(process)
        raise UnavailableError(
            POOLER_UNAVAILABLE, f"pgbouncer does not start: {_last_word(folder)}"
        )


def _write_config(server: DatabaseServer, folder: Path) -> int:
    parameters = conninfo_to_dict(server.admin_dsn)
    user, password = (str(parameters.get(name) or "") for name in ("user", "password"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = _CONFIG.format(
        host=parameters.get("hostaddr") or parameters.get("host") or "127.0.0.1",
        port=parameters.get("port") or 5432,
        listen_port=port,
        folder=folder,
        user=user,
        # md5 uses SCRAM for every password that is stored so.
        auth_type="md5" if password else "trust",
    )
    quoted = (text.replace('"', '""') for text in (user, password))
    _write(folder / "users.txt", " ".join(f'"{text}"' for text in quoted) + "\n")
    _write(folder / "pgbouncer.ini", f"{config}logfile = {folder}/log\n")
    return port


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o600)


def _launch(program: str, folder: Path) -> subprocess.Popen[bytes]:
    # PgBouncer refuses to run as root.
    account = _unprivileged() if os.geteuid() == 0 else None
    if account is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
    command = ["/bin/sh", "-c", _GUARDED, "sh", program, "-q", str(folder / "pgbouncer.ini")]
    return subprocess.Popen(  # noqa: S603  # our own files
        command,
        stdin=subprocess.PIPE,
        cwd="/",
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )


def _unprivileged() -> pwd.struct_passwd:
    for name in _USUAL_ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise UnavailableError(
        POOLER_UNAVAILABLE, f"pgbouncer needs one of these accounts: {', '.join(_USUAL_ACCOUNTS)}"
    )


def _is_up(server: DatabaseServer, port: int, process: subprocess.Popen[bytes]) -> bool:
    # Its own console: whoever else listens there does not know it.
    console = make_conninfo(Pooler(port).dsn(server.admin_dsn), dbname="pgbouncer")
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with psycopg.connect(console, autocommit=True, prepare_threshold=None):
                return True
        except psycopg.OperationalError:
            time.sleep(_POLL_SECONDS)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_word(folder: Path) -> str:
    try:
        return (folder / "log").read_text("utf-8", "replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        return "it says nothing"
