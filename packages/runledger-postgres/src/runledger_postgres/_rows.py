"""Statements with their row classes, and the cursor that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, LiteralString, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap, Loader
from psycopg.postgres import register_default_adapters, types
from psycopg.pq import Format
from psycopg.rows import RowFactory
from psycopg.types.array import ListBinaryDumper, register_all_arrays
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


def rows_of(cls: type[Row]) -> RowFactory[Row]:
    """Return the row factory that makes `cls` from columns of the same names."""
    decoders = {f.name: f.metadata["decode"] for f in fields(cls) if "decode" in f.metadata}  # pyright: ignore[reportArgumentType]  # every row class is a dataclass

    def factory(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Row]:
        names = [column.name for column in cursor.description or ()]
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


def _engine_adapters() -> AdaptersMap:
    # Not a copy of psycopg's: what the application has registered there is not meant for ours.
    adapters = AdaptersMap(types=types)
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    # psycopg types an int by its size and a str as unknown; one type each keeps one plan each.
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    # As text every quote of a JSON document would be escaped, here and on the server.
    adapters.register_dumper(list, ListBinaryDumper)
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
