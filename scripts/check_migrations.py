"""Check the migration files: names, order, the link to them, and that released ones are frozen.

`migrations/frozen.sha256` lists each released file with its hash, in the form of `sha256sum`.
A listed file never changes again; a new one sorts behind every listed one. `--freeze` adds the
unlisted files (a release does that), `--fix` puts the link in the postgres distribution right.
"""

import argparse
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "migrations"
FROZEN = FOLDER / "frozen.sha256"
LINK = ROOT / "packages/runledger-postgres/src/runledger_postgres/migrations/sql"
TARGET = os.path.relpath(FOLDER, LINK.parent)
NAME = re.compile(r"(?P<version>\d{12})_[a-z0-9]+(_[a-z0-9]+)*\.sql")
BESIDE = {"README.md", FROZEN.name}


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_frozen() -> dict[str, str]:
    """Return the hash of each released file by its name."""
    lines = FROZEN.read_text("utf-8").splitlines()
    pairs = [line.split("  ", 1) for line in lines if line and not line.startswith("#")]
    return {name: digest for digest, name in pairs}


def check_names(files: list[Path]) -> Iterator[str]:
    """Yield each file whose name is no version and words, and each version used twice."""
    versions: set[str] = set()
    for path in files:
        match = NAME.fullmatch(path.name)
        if match is None:
            yield f"{path.name}: the name must be <12 digits>_<lower_case_words>.sql"
        elif match["version"] in versions:
            yield f"{path.name}: the version {match['version']} is used twice"
        else:
            versions.add(match["version"])


def check_frozen(files: list[Path]) -> Iterator[str]:
    """Yield each released file that changed or vanished, and each new one that sorts before it."""
    frozen = read_frozen()
    hashes = {path.name: hash_of(path) for path in files}
    newest = max(frozen, default="")
    for name, digest in frozen.items():
        if name not in hashes:
            yield f"{name}: released, but the file is gone"
        elif hashes[name] != digest:
            yield f"{name}: released, but its text changed; write a new migration instead"
    for name in hashes.keys() - frozen.keys():
        if name < newest:
            yield f"{name}: new, but sorts before the released {newest}"


def check_link() -> Iterator[str]:
    """Yield a line if the postgres distribution does not hold the folder by a relative link."""
    if not LINK.is_symlink() or str(LINK.readlink()) != TARGET:
        yield f"{LINK.relative_to(ROOT)}: must be a link to {TARGET}; run with --fix"


def fix_link() -> None:
    """Put the link right; a real folder in its place is left for a person to look at."""
    if LINK.is_symlink():
        LINK.unlink()
    LINK.symlink_to(TARGET)


def freeze(files: list[Path]) -> None:
    """Add the files that are not listed yet."""
    frozen = read_frozen()
    with FROZEN.open("a", encoding="utf-8") as listing:
        for path in files:
            if path.name not in frozen:
                listing.write(f"{hash_of(path)}  {path.name}\n")


def main() -> int:
    """Print each problem and return the exit status."""
    parser = argparse.ArgumentParser(description="check the migration files")
    parser.add_argument("--check", action="store_true", help="the default")
    parser.add_argument("--fix", action="store_true", help="put the link right first")
    parser.add_argument("--freeze", action="store_true", help="list all files as released first")
    arguments = parser.parse_args()
    files = sorted(path for path in FOLDER.iterdir() if path.name not in BESIDE)
    if arguments.fix:
        fix_link()
    if arguments.freeze:
        freeze(files)
    problems = [*check_names(files), *check_frozen(files), *check_link()]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
