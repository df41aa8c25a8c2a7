from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from runledger_core import UNSET, InternalError, JobStatus, decode_json
from runledger_postgres._rows import NoRow, column, rows_of


@dataclass(frozen=True, slots=True)
class SampleRow:
    id: int
    status: JobStatus = column(JobStatus)
    _: KW_ONLY
    payload: object = column(decode_json)
    output: object = column(decode_json, null=UNSET)
    note: str | None = field(default=None)


def cursor_with(names: list[str] | None) -> Any:
    if names is None:
        return SimpleNamespace(pgresult=None)
    result = SimpleNamespace(nfields=len(names), fname=lambda index: names[index].encode())
    return SimpleNamespace(pgresult=result)


def made(names: list[str], values: list[object]) -> SampleRow:
    return rows_of(SampleRow)(cursor_with(names))(values)


def test_columns_become_fields_of_the_same_names_in_any_order():
    row = made(
        ["output", "note", "payload", "status", "id"], ['{"a": 1}', "n", "[1]", "PENDING", 5]
    )

    assert row == SampleRow(5, JobStatus.PENDING, payload=[1], output={"a": 1}, note="n")


def test_null_becomes_what_the_column_says():
    row = made(["id", "status", "payload", "output"], [5, "PENDING", None, None])

    assert (row.payload, row.output, row.note) == (None, UNSET, None)


def test_json_null_is_a_value():
    row = made(["id", "status", "payload", "output"], [5, "PENDING", "null", "null"])

    assert (row.payload, row.output) == (None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "UNHEARD_OF"),
        ("payload", "[" * 100_000),
        ("payload", "9" * 5_000),
        ("payload", "{"),
        ("output", "1e999"),
    ],
    ids=["status", "deep", "long", "malformed", "infinite"],
)
def test_value_that_python_cannot_read_names_its_column_and_not_the_value(name, value):
    values = {"id": 5, "status": "PENDING", "payload": "{}", "output": None} | {name: value}

    with pytest.raises(InternalError) as caught:
        made(list(values), list(values.values()))

    assert (caught.value.code, caught.value.field) == ("job.undecodable_row", name)
    assert value[:20] not in f"{caught.value} {caught.value!r}"


def test_statement_without_rows_asks_for_none():
    assert rows_of(NoRow)(cursor_with(None)) is not None


def test_column_without_a_field_is_a_mistake_of_ours():
    with pytest.raises(TypeError):
        made(["id", "status", "payload", "output", "unknown"], [5, "PENDING", "{}", None, 1])


def test_adapters_that_the_application_registered_before_the_import_do_not_reach_ours():
    program = """
import uuid, psycopg
from psycopg.types.string import TextBinaryLoader, TextLoader
for name in ("uuid", "timestamptz", "int8", "bool"):
    psycopg.adapters.register_loader(name, TextLoader)
    psycopg.adapters.register_loader(name, TextBinaryLoader)
for kind in (str, bool, uuid.UUID):
    psycopg.adapters.register_dumper(kind, psycopg.adapters.get_dumper(bytes, "b"))
from runledger_postgres._rows import EngineCursor, NoRow
from psycopg.postgres import types
binary = psycopg.pq.Format.BINARY
ours = EngineCursor.adapters.fget(None)
for name in ("uuid", "timestamptz", "int8", "bool"):
    print(ours.get_loader(types[name].oid, binary).__name__)
for kind in (str, bool, uuid.UUID):
    print(ours.get_dumper(kind, psycopg.adapt.PyFormat.AUTO).__name__)
"""

    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PSYCOPG_IMPL": "python"},
    )

    assert done.stdout.split() == [
        "UUIDBinaryLoader",
        "_InstantLoader",
        "Int8BinaryLoader",
        "BoolBinaryLoader",
        "StrBinaryDumper",
        "BoolBinaryDumper",
        "UUIDBinaryDumper",
    ]
