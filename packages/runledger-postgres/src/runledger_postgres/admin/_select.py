"""SQLAlchemy Core without an engine: compiled here, run like every other statement."""

from __future__ import annotations

from typing import Final, LiteralString, TypeVar, cast

from sqlalchemy import SelectBase
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from .._database import Database
from .._rows import Statement
from .._session import Bound, run

Row = TypeVar("Row")

_DIALECT: Final = PGDialect_psycopg()


def fetch(db: Database, select: SelectBase, row: type[Row]) -> list[Row]:
    """Run a SELECT where `db` points to, and return its rows as `row`.

    Its columns must carry the names of the fields of `row`. Parameters are passed as they are:
    texts, numbers, UUIDs, instants and IN lists need no bind processor.
    """
    # IN lists are expanded, so that the text is complete without SQLAlchemy's own execution.
    compiled = select.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    # The text is built from tables.py and constants; every value of a caller is a parameter.
    sql = cast("LiteralString", str(compiled))
    return run(db, Bound(Statement(sql, row), compiled.params))
