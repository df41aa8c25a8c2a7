"""Our directory: what is in it, who owns it, and where it really is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from ._account import Account, can_enter, choose_account
from ._errors import (
    DIRECTORY_FORBIDDEN,
    DIRECTORY_NOT_OURS,
    DIRECTORY_UNREACHABLE,
    EmbeddedServerError,
)

_MOVED: Final = "moved_to"
_START_LOCK: Final = "start.lock"
# Where a directory goes that its account cannot reach: as root, the place for state of programs.
_STATE_ROOT: Final = Path("/var/lib/runledger-embedded")
_IGNORED_NAMES: Final = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one server."""

    path: Path
    account: Account | None
    _: KW_ONLY
    asked_for: Path

    @property
    def data(self) -> Path:
        """PostgreSQL's own directory."""
        return self.path / "data"

    @property
    def log(self) -> Path:
        """What the server prints."""
        return self.path / "server.log"

    @property
    def password(self) -> Path:
        """The generated password."""
        return self.path / "password"

    @property
    def start_lock(self) -> Path:
        """Held by whoever starts or stops the server."""
        return self.path / _START_LOCK

    @property
    def users_lock(self) -> Path:
        """Held, shared, by every process that uses the server."""
        return self.path / "users.lock"

    @property
    def kept(self) -> Path:
        """There if the server is to outlive its users."""
        return self.path / "kept"

    @property
    def binaries(self) -> Path:
        """Copies of binaries that the account cannot reach where they are."""
        return self.path / "binaries"


def locate_home(directory: Path) -> Path:
    """Return where the directory really is; changes nothing."""
    directory = directory.resolve()
    try:
        return Path((directory / _MOVED).read_text().strip())
    except OSError:
        return directory


def prepare_home(
    directory: Path, account_name: str | None, *, notice: Callable[[str], None]
) -> Home:
    """Make the directory, or take an existing one that is empty or ours.

    Raises:
        EmbeddedServerError: `embedded.directory_not_ours`, `embedded.directory_forbidden`,
            `embedded.directory_unreachable`, `embedded.account_not_found`.
    """
    directory = directory.resolve()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(directory)
        home = locate_home(directory)
        account = choose_account(account_name, [home / "data", home])
        _make_private(directory, account)
        if account is not None and not can_enter(account, home):
            home = _move(directory, account, notice)
    except (OSError, NotADirectoryError) as error:
        raise EmbeddedServerError(
            DIRECTORY_FORBIDDEN,
            f"the directory {directory} cannot be used; choose one of your own",
            internal_message=str(error),
        ) from error
    return Home(home, account, asked_for=directory)


def open_private(path: Path, flags: int) -> int:
    """Open a file of ours, made readable by its owner only; never through a link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:
        # As root in somebody's directory: he must be able to go on with it by himself.
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid if owner.st_uid else 0)
    return descriptor


def write_private(path: Path, text: str) -> None:
    """Write a small file of ours."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
        file.write(text)


def _refuse_foreign(directory: Path) -> None:
    names = {entry.name for entry in directory.iterdir()} - _IGNORED_NAMES
    # The lock file is the first that we make, so a directory without it was never ours.
    if names and not names & {_START_LOCK, _MOVED}:
        raise EmbeddedServerError(
            DIRECTORY_NOT_OURS,
            f"the directory {directory} holds other files; choose an empty or a new one",
        )


def _make_private(directory: Path, account: Account | None) -> None:
    owner = directory.stat().st_uid
    if account is None or owner == account.uid:
        directory.chmod(0o700)
        return
    # Root keeps the directory itself; the account may pass through it to the data, no more.
    os.chown(directory, owner, account.gid)
    directory.chmod(0o710)


def _move(directory: Path, account: Account, notice: Callable[[str], None]) -> Path:
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    home = _STATE_ROOT / f"{directory.name}-{digest}"
    if not _STATE_ROOT.exists():
        _STATE_ROOT.mkdir(parents=True)
        _STATE_ROOT.chmod(0o711)
    home.mkdir(mode=0o700, exist_ok=True)
    _make_private(home, account)
    if not can_enter(account, home):
        raise EmbeddedServerError(
            DIRECTORY_UNREACHABLE,
            f"the server runs as {account.name}, who can reach neither {directory} nor {home}; "
            "choose a directory that every account can enter",
        )
    write_private(directory / _MOVED, f"{home}\n")
    notice(
        f"the server runs as {account.name}, who cannot reach {directory}; its files are in {home}"
    )
    return home
