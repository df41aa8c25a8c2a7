"""Statements with their row classes, and the cursor that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Generic, LiteralString, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap, Loader, PyFormat
from psycopg.postgres import register_default_adapters, types
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.rows import RowFactory
from psycopg.types.array import (
    BaseListDumper,
    ListBinaryDumper,
    ListDumper,
    register_all_arrays,
)
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

from runledger_core import ErrorCategory, RunledgerError

from .errors import QueryError, refusal

Row = TypeVar("Row")

_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
# The loader of types that have none of their own: enums. Arrays of those are cast to text[].
_ANY_TYPE: Final = 0


@dataclass(frozen=True, slots=True)
class Statement(Generic[Row]):
    """A statement and the dataclass its rows become: column name = field name.

    Statements are module constants, so that a test can prepare each on a migrated database and
    compare its columns with the fields of its row class.
    """

    sql: LiteralString
    row: type[Row]


@dataclass(frozen=True, slots=True)
class NoRow:
    """The row class of a statement that returns none."""


def column(decode: Callable[[Any], object], *, null: object = None) -> Any:
    """Declare a row field whose column value is decoded, and what NULL becomes."""

    def decode_or_null(value: object) -> object:
        return null if value is None else decode(value)

    return field(metadata={"decode": decode_or_null})


@cache
def _decoders(cls: type[Any]) -> dict[str, Callable[[object], object]]:
    return {f.name: f.metadata["decode"] for f in fields(cls) if "decode" in f.metadata}


def rows_of(cls: type[Row]) -> RowFactory[Row]:
    """Return the row factory that makes `cls` from columns of the same names."""
    decoders = _decoders(cls)

    def factory(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Row]:
        names = _column_names(cursor.pgresult)
        decoded = [(index, decoders[name]) for index, name in enumerate(names) if name in decoders]

        def make(values: Sequence[Any]) -> Row:
            if decoded:
                values = list(values)
                for index, decode in decoded:
                    try:
                        values[index] = decode(values[index])
                    except (RunledgerError, ValueError, RecursionError) as error:
                        raise _undecodable(names[index]) from error
            return cls(**dict(zip(names, values, strict=True)))

        return make

    return factory


def _column_names(result: PGresult | None) -> list[str]:
    # Not by the cursor's description, which asks for types and sizes too.
    if result is None:
        return []
    return [(result.fname(index) or b"").decode() for index in range(result.nfields)]


def _undecodable(name: str) -> QueryError:
    return refusal(
        ErrorCategory.INTERNAL,
        "job.undecodable_row",
        f"the stored {name} cannot be read by Python",
        field=name,
    )


class _InstantLoader(Loader):
    """Loads timestamptz as aware UTC; what Python has no date for becomes the nearest it has."""

    format = Format.BINARY

    def load(self, data: Any) -> datetime:
        microseconds = int.from_bytes(data, "big", signed=True)
        try:
            return _POSTGRES_EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            return _EARLIEST if microseconds < 0 else _LATEST


class _JsonbTextLoader(TextBinaryLoader):
    """Loads jsonb as its text."""

    def load(self, data: Any) -> Any:
        # The first byte is the version of the format, which is 1 for ever.
        return super().load(data[1:])


class _NullListDumper(ListDumper):
    """Sends a list without a value as an empty one: `unnest` and subscripts give NULL again."""

    def dump(self, obj: list[Any]) -> bytes:  # noqa: ARG002  # the base's parameter
        # Without an element type it could only go as the text {NULL}, which is a list of the word
        # where `array_nulls` is off.
        return b"{}"


class _ListDumper(ListBinaryDumper):
    """Sends lists in binary form: as text every quote of a document would be escaped twice."""

    def upgrade(self, obj: list[Any], format: PyFormat) -> BaseListDumper:  # noqa: A002  # the base's name
        if all(item is None for item in obj):
            return _NullListDumper(self.cls, self._tx)
        return super().upgrade(obj, format)


def _engine_adapters() -> AdaptersMap:
    # Not a copy of psycopg's: what the application has registered there is not meant for ours.
    adapters = AdaptersMap(types=types)
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    # psycopg types an int by its size and a str as unknown; one type each keeps one plan each.
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    adapters.register_dumper(list, _ListDumper)
    # JSON stays text until a row class decodes it: one bad document must not fail a whole result.
    adapters.register_loader("json", TextBinaryLoader)
    adapters.register_loader("jsonb", _JsonbTextLoader)
    adapters.register_loader("timestamptz", _InstantLoader)
    adapters.register_loader(_ANY_TYPE, TextBinaryLoader)
    return adapters


_ADAPTERS: Final = _engine_adapters()


class EngineCursor(psycopg.Cursor[Row]):
    """A cursor that sends and reads the same whatever the caller's connection is set to.

    Rows come in binary form, which DateStyle, IntervalStyle and TimeZone do not change.
    """

    def __init__(self, connection: psycopg.Connection[Any], row: type[Row]) -> None:
        """Make a cursor for one statement."""
        super().__init__(connection, row_factory=rows_of(row))
        self.format = Format.BINARY

    @property
    def adapters(self) -> AdaptersMap:
        """The engine's adapters, instead of the connection's."""
        return _ADAPTERS
