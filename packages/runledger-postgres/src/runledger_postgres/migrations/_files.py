"""The migration files that this distribution carries."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from runledger_core import ErrorCategory

from ..errors import refusal

_FILE_NAME: Final = re.compile(r"(?P<name>(?P<version>[0-9]{12})_[a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file: version, name without suffix, text and the hash of the text."""

    version: int
    name: str
    _: KW_ONLY
    sql: bytes = field(repr=False)
    sha256: str


@cache
def bundled_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this version of the code, oldest first.

    Raises:
        InternalError: `schema.migration_files_missing` if the installation holds none.
    """
    folder = files("runledger_postgres.migrations").joinpath("sql")
    # A link that a checkout turned into a text file is no folder either.
    entries = list(folder.iterdir()) if folder.is_dir() else []
    found = [
        _migration(match["version"], match["name"], entry.read_bytes())
        for entry in entries
        if (match := _FILE_NAME.fullmatch(entry.name))
    ]
    if not found:
        raise refusal(
            ErrorCategory.INTERNAL,
            "schema.migration_files_missing",
            "this installation of runledger-postgres holds no migration files; install it anew",
        )
    return tuple(sorted(found, key=lambda migration: migration.version))


def _migration(version: str, name: str, text: bytes) -> Migration:
    # A checkout that writes CRLF must neither change the hash nor the functions in the database.
    sql = text.replace(b"\r\n", b"\n")
    return Migration(int(version), name, sql=sql, sha256=sha256(sql).hexdigest())
