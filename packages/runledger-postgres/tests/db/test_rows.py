from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from runledger_postgres._rows import Statement
from runledger_postgres._session import Bound, run

EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)
EAST = timezone(timedelta(hours=14))


@dataclass(frozen=True, slots=True)
class ValueRow:
    value: object


@pytest.fixture
def connection(runledger_unmigrated_database):
    connection = runledger_unmigrated_database.connect(
        options="-c datestyle=German -c timezone=America/Chicago -c extra_float_digits=-15"
    )
    connection.execute("CREATE TYPE public.mood AS ENUM ('SAD', 'GLÜCKLICH')")
    return connection


def read(connection, sql: Any, **params: object) -> Any:
    statement: Any = f"SELECT {sql} AS value"
    (row,) = run(connection, Bound(Statement(statement, ValueRow), params))
    return row.value


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("true", True),
        ("7::int2", 7),
        ("7::int4", 7),
        ("9223372036854775807", 2**63 - 1),
        ("0.1::float8 + 0.2::float8", 0.1 + 0.2),
        ("'é'::text", "é"),
        ("'n'::name", "n"),
        ("'GLÜCKLICH'::public.mood", "GLÜCKLICH"),
        ("NULL::public.mood", None),
        ("'00000000-0000-0000-0000-000000000007'::uuid", UUID(int=7)),
        ("ARRAY['a', NULL]", ["a", None]),
        ("ARRAY['SAD'::public.mood]::text[]", ["SAD"]),
        ("ARRAY[]::text[]", []),
        ('\'{"a": [1, "é"]}\'::jsonb', '{"a": [1, "é"]}'),
        ("'{\"a\":  1}'::json", '{"a":  1}'),
        ("interval '36 hours'", timedelta(hours=36)),
    ],
)
def test_value_comes_back_as_python_has_it(connection, sql, value):
    assert read(connection, sql) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-02-29 12:00:00.000001+02", datetime(2024, 2, 29, 10, 0, 0, 1, tzinfo=UTC)),
        ("1999-12-31 23:59:59.999999+00", datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("0001-01-01 00:00:00+00", EARLIEST),
        ("9999-12-31 23:59:59.999999+00", LATEST),
        ("0001-12-31 23:59:59+00 BC", EARLIEST),
        ("4713-01-01 00:00:00+00 BC", EARLIEST),
        ("10000-01-01 00:00:00+00", LATEST),
        ("294276-12-31 23:59:59+00", LATEST),
        ("-infinity", EARLIEST),
        ("infinity", LATEST),
    ],
)
def test_instant_comes_back_in_utc_or_as_the_nearest_there_is(connection, text, value):
    instant = read(connection, "%(text)s::text::timestamptz", text=text)

    assert instant == value
    assert instant.tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "cast"),
    [
        (5, "int4"),
        (-(2**63), "int8"),
        ("text", "text"),
        ("", "text"),
        (None, "text"),
        (True, "bool"),
        (1.5, "float8"),
        (UUID(int=5), "uuid"),
        (EARLIEST, "timestamptz"),
        (LATEST, "timestamptz"),
        (datetime(99, 1, 2, tzinfo=UTC), "timestamptz"),
        ([1, None, -5], "int4[]"),
        ([2**40], "int8[]"),
        ([], "text[]"),
        (['a"b\\c', "{", "NULL", " ", "", None], "text[]"),
        ([UUID(int=5), None], "uuid[]"),
        ([None, datetime(2024, 1, 2, tzinfo=UTC)], "timestamptz[]"),
        ([True, False], "bool[]"),
    ],
    ids=repr,
)
def test_value_goes_and_comes_back(connection, value, cast):
    assert read(connection, f"%(value)s::{cast}", value=value) == value


def test_list_of_nothing_but_null_is_filled_up_by_unnest(connection):
    # Elsewhere it is empty: NULL has no type of its own, and as text it depends on array_nulls.
    rows = "(SELECT array_agg(b) FROM unnest(%(a)s::int4[], %(b)s::int4[]) AS t (a, b))"

    assert read(connection, rows, a=[1, 2], b=[None, None]) == [None, None]
    connection.execute("SET array_nulls = off")
    assert read(connection, rows, a=[1, 2], b=[None, None]) == [None, None]
    assert read(connection, rows, a=[1, 2], b=[None, 3]) == [None, 3]


def test_instant_of_another_zone_goes_as_the_same_instant(connection):
    value = datetime(2024, 1, 1, 3, tzinfo=EAST)

    assert read(connection, "%(value)s::timestamptz", value=value) == datetime(
        2023, 12, 31, 13, tzinfo=UTC
    )


def test_array_of_json_texts_becomes_documents(connection):
    texts = ['{"a": "\\"\\\\{}, é"}', "null", "[]"]

    value = read(connection, "(%(value)s::jsonb[])[1] ->> 'a'", value=texts)

    assert value == '"\\{}, é'
