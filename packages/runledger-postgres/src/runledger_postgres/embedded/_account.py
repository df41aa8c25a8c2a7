"""Who runs the server: we ourselves, or an unprivileged account when we are root."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, TypedDict

from ._errors import ACCOUNT_NOT_FOUND, EmbeddedServerError

# Existing accounts only: adding one to a machine is for its owner to decide.
_USUAL_ACCOUNTS: Final = ("postgres", "nobody")
_PROBE_SECONDS: Final = 30


class RunAs(TypedDict, total=False):
    """The arguments of `subprocess` that drop privileges; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged account that the server runs as."""

    name: str
    uid: int
    _: KW_ONLY
    gid: int


def choose_account(name: str | None, owners: Sequence[Path]) -> Account | None:
    """Return the account to run as, or None if we are an ordinary user.

    Args:
        name: The account asked for, or None.
        owners: Paths whose owner, unless root, is preferred, best first; they need not exist.

    Raises:
        EmbeddedServerError: `embedded.account_not_found` if there is none to use.
    """
    if os.geteuid() != 0:
        return None
    wanted = [name] if name is not None else [*_owner_names(owners), *_USUAL_ACCOUNTS]
    for candidate in wanted:
        try:
            entry = pwd.getpwnam(candidate)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_name, entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedServerError(
        ACCOUNT_NOT_FOUND,
        "PostgreSQL does not run as root and none of these accounts can be used: "
        + ", ".join(wanted)
        + "; name an unprivileged account, or run as an ordinary user",
    )


def _owner_names(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        try:
            # initdb wants a name: a bare number, as in volumes of containers, does not do.
            yield pwd.getpwuid(path.stat().st_uid).pw_name
        except (OSError, KeyError):
            continue


def run_as(account: Account | None) -> RunAs:
    """Return what `subprocess` needs to run a program as the account."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def can_enter(account: Account | None, directory: Path) -> bool:
    """Tell whether the account can enter the directory; found out by trying it."""
    # Tried, not computed from mode bits: access lists and mount options count as well.
    return run_probe(account, ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)]) is not None


def run_probe(account: Account | None, command: Sequence[str]) -> str | None:
    """Return what a short command prints when the account runs it, or None if it fails."""
    try:
        done = subprocess.run(  # noqa: S603  # Fixed programs and paths that the caller chose.
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
            cwd="/",
            **run_as(account),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
